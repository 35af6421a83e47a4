"""`leveret groups describe`: a group as a page, with a picture of where each partition stands.

Owns the words and their order; the figures are the HTTP API's, the signs of a picture `picture`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from rich.text import Text

from leveret.cli.durations import moment, short, told
from leveret.cli.partition_chart import SIGNS, Sign, picture
from leveret.cli.screen import counted
from leveret.cli.tables import Page, plain

Shown: TypeAlias = Mapping[str, Any]

CELLS = 64
_INDENT = "  "


def describe(page: Page, group: Shown) -> None:
    """Prints it: what it is, who is there, and each partition."""
    page.line(
        Text(f"{plain(group['name'])} on {plain(group['subject'])}", style="bold"), f": {_state(group)}"
    )
    page.line(_settings(group["settings"]))
    if group["members"]:
        now_ms = group["now_ms"]
        page.line()
        page.table(
            ("members", "since", "in flight", "partitions"),
            [_member(each, now_ms, shares=group["mode"] != "orderly") for each in group["members"]],
        )
    for partition in group["partitions"]:
        page.line()
        for line in _partition(partition, now_ms=group["now_ms"], ascii_only=page.ascii_only):
            page.line(line)
    if any(partition["window"]["cells"] for partition in group["partitions"]):
        page.line()
        page.line(_legend(page.ascii_only))


def _state(group: Shown) -> str:
    figures = [
        f"{group['mode']}{', paused' if group['paused'] else ''}",
        counted(sum(not each["leaving"] for each in group["members"]), "member"),
        f"lag {group['lag']:,}",
        f"{group['in_flight']:,} in flight",
        f"{group['delayed']:,} delayed",
        counted(group["dead_letters"], "dead letter"),
    ]
    if group["stale_acks"]:
        figures.append(f"{counted(group['stale_acks'], 'settlement')} came too late")
    return ", ".join(figures)


def _settings(settings: Shown) -> str:
    delays = " ".join(short(each) for each in settings["delays"])
    return (
        f"max_span {settings['max_span']}, consume_timeout {short(settings['consume_timeout_ms'])}, "
        f"max_reconsume {settings['max_reconsume']}, delays {delays} from level {settings['first_level']} on"
    )


def _member(member: Shown, now_ms: int, *, shares: bool) -> Sequence[object]:
    name = f"{member['id']} (leaving)" if member["leaving"] else member["id"]
    since = f"{moment(member['since_ms'])}, {told(now_ms - member['since_ms'])}"
    owned = "all" if shares else ", ".join(member["partitions"]) or "none"
    return name, since, member["in_flight"], owned


# partitions


def _partition(partition: Shown, *, now_ms: int, ascii_only: bool) -> list[Text | str]:
    """Its figures, its picture, who holds it up, and what waits for its next try."""
    lines: list[Text | str] = [_figures(partition)]
    if partition["window"]["cells"]:
        lines.append(_drawn(partition, ascii_only=ascii_only))
    if partition["stuck"] is not None:
        lines.append(_INDENT + _stuck(partition, now_ms))
    delayed = partition["delayed"]
    lines.extend(f"{_INDENT}{_delay(each, now_ms)}" for each in delayed["soonest"])
    more = delayed["count"] - len(delayed["soonest"])
    if more > 0:
        lines.append(f"{_INDENT}and {more:,} more are delayed")
    return lines


def _figures(partition: Shown) -> Text:
    places = ("low", "watermark", "highest", "end") if partition["lag"] else ("end",)
    figures = ", ".join(f"{name} {partition[name]:,}" for name in ("lag", *places))
    for name in ("in_flight", "delayed"):
        if partition[name]["count"]:
            figures += f", {partition[name]['count']:,} {name.replace('_', ' ')}"
    if partition["settled_above"]:
        holes = counted(partition["holes"]["count"], "hole")
        figures += f", {partition['settled_above']:,} settled above {holes}"
    if partition["retired_below"]:
        figures += f", retention took some below {partition['retired_below']:,}"
    if partition["owner"] is not None:
        figures += f", owned by {plain(partition['owner'])}"
    return Text(plain(partition["stream"]), style="bold").append(f"  {figures}", style="not bold")


def _drawn(partition: Shown, *, ascii_only: bool) -> Text:
    window, stuck = partition["window"], partition["stuck"]
    line = Text(_INDENT)
    for sign in picture(window, stuck=None if stuck is None else stuck["offset"]):
        line.append(_glyph(sign, ascii_only), style=sign.style)
    line.append(f"  {window['start']:,} to {window['stop'] - 1:,}")
    if window["size"] > 1:
        line.append(f", {window['size']:,} a cell")
    behind = partition["end"] - window["stop"]
    if behind > 0:
        line.append(f"; {behind:,} behind it")
    return line


def _stuck(partition: Shown, now_ms: int) -> str:
    stuck = partition["stuck"]
    holds = " and holds up the watermark" if stuck["offset"] == partition["watermark"] else ""
    if stuck["member"] is None:
        return f"{stuck['offset']:,} is in flight{holds}; more is than was looked at to find out who has it"
    since = f"since {moment(stuck['since_ms'])}, {told(now_ms - stuck['since_ms'])}"
    return (
        f"{stuck['offset']:,} is with {plain(stuck['member'])} {since}{holds} "
        f"(attempt {stuck['attempts']}{_error(stuck)})"
    )


def _delay(delay: Shown, now_ms: int) -> str:
    return (
        f"{delay['offset']:,} comes again at {moment(delay['due_ms'])}, in {told(delay['due_ms'] - now_ms)} "
        f"({counted(delay['attempts'], 'attempt')}{_error(delay)})"
    )


def _error(tried: Shown) -> str:
    return "" if tried["error"] is None else f", last error: {plain(tried['error'])}"


def _legend(ascii_only: bool) -> Text:
    line = Text()
    for sign in SIGNS:
        line.append(_glyph(sign, ascii_only), style=sign.style).append(f" {sign.meaning}   ")
    line.rstrip()
    return line


def _glyph(sign: Sign, ascii_only: bool) -> str:
    return sign.ascii if ascii_only else sign.glyph
