"""`leveret groups describe`: one group as a page, with a chart of each partition.

Owns the words of the page and their order. The figures come from the HTTP API, the signs of a chart from
`partition_chart`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from rich.text import Text

from leveret.cli.durations import compact_duration, readable_duration, utc_time
from leveret.cli.partition_chart import SIGNS, Sign, chart_signs
from leveret.cli.screen import counted
from leveret.cli.tables import Page, printable

JsonObject: TypeAlias = Mapping[str, Any]

CELLS = 64
_INDENT = "  "


def describe(page: Page, group: JsonObject) -> None:
    """Print a group: its state, its settings, its members and its partitions."""
    page.line(
        Text(f"{printable(group['name'])} on {printable(group['subject'])}", style="bold"),
        f": {_state(group)}",
    )
    page.line(_settings(group["settings"]))
    if group["members"]:
        now_ms = group["now_ms"]
        page.line()
        page.table(
            ("members", "since", "in flight", "partitions"),
            [_member(member, now_ms, shares=group["mode"] != "orderly") for member in group["members"]],
        )
    for partition in group["partitions"]:
        page.line()
        for line in _partition(partition, now_ms=group["now_ms"], ascii_only=page.ascii_only):
            page.line(line)
    if any(partition["window"]["cells"] for partition in group["partitions"]):
        page.line()
        page.line(_legend(page.ascii_only))


def _state(group: JsonObject) -> str:
    figures = [
        f"{group['mode']}{', paused' if group['paused'] else ''}",
        counted(sum(not member["leaving"] for member in group["members"]), "member"),
        f"lag {group['lag']:,}",
        f"{group['in_flight']:,} in flight",
        f"{group['delayed']:,} delayed",
        counted(group["dead_letters"], "dead letter"),
    ]
    if group["stale_acks"]:
        figures.append(f"{counted(group['stale_acks'], 'settlement')} came too late")
    return ", ".join(figures)


def _settings(settings: JsonObject) -> str:
    delays = " ".join(compact_duration(delay_ms) for delay_ms in settings["delays"])
    timeout = compact_duration(settings["consume_timeout_ms"])
    return (
        f"max_span {settings['max_span']}, consume_timeout {timeout}, "
        f"max_reconsume {settings['max_reconsume']}, delays {delays} from level {settings['first_level']} on"
    )


def _member(member: JsonObject, now_ms: int, *, shares: bool) -> Sequence[object]:
    name = f"{member['id']} (leaving)" if member["leaving"] else member["id"]
    since = f"{utc_time(member['since_ms'])}, {readable_duration(now_ms - member['since_ms'])}"
    owned = "all" if shares else ", ".join(member["partitions"]) or "none"
    return name, since, member["in_flight"], owned


def _partition(partition: JsonObject, *, now_ms: int, ascii_only: bool) -> list[Text | str]:
    """Return the lines of a partition: figures, chart, stuck message, delayed messages."""
    lines: list[Text | str] = [_figures(partition)]
    if partition["window"]["cells"]:
        lines.append(_chart(partition, ascii_only=ascii_only))
    if partition["stuck"] is not None:
        lines.append(_INDENT + _stuck(partition, now_ms))
    delayed = partition["delayed"]
    lines.extend(f"{_INDENT}{_delay(delay, now_ms)}" for delay in delayed["soonest"])
    more = delayed["count"] - len(delayed["soonest"])
    if more > 0:
        lines.append(f"{_INDENT}and {more:,} more are delayed")
    return lines


def _figures(partition: JsonObject) -> Text:
    offset_names = ("low", "watermark", "highest", "end") if partition["lag"] else ("end",)
    figures = ", ".join(f"{name} {partition[name]:,}" for name in ("lag", *offset_names))
    for name in ("in_flight", "delayed"):
        if partition[name]["count"]:
            figures += f", {partition[name]['count']:,} {name.replace('_', ' ')}"
    if partition["settled_above"]:
        holes = counted(partition["holes"]["count"], "hole")
        figures += f", {partition['settled_above']:,} settled above {holes}"
    if partition["retired_below"]:
        figures += f", retention removed messages below {partition['retired_below']:,}"
    if partition["owner"] is not None:
        figures += f", owned by {printable(partition['owner'])}"
    return Text(printable(partition["stream"]), style="bold").append(f"  {figures}", style="not bold")


def _chart(partition: JsonObject, *, ascii_only: bool) -> Text:
    window, stuck = partition["window"], partition["stuck"]
    line = Text(_INDENT)
    for sign in chart_signs(window, stuck=None if stuck is None else stuck["offset"]):
        line.append(_glyph(sign, ascii_only), style=sign.style)
    line.append(f"  {window['start']:,} to {window['stop'] - 1:,}")
    if window["size"] > 1:
        line.append(f", {window['size']:,} per cell")
    not_shown = partition["end"] - window["stop"]
    if not_shown > 0:
        line.append(f"; {not_shown:,} more after it")
    return line


def _stuck(partition: JsonObject, now_ms: int) -> str:
    stuck = partition["stuck"]
    blocks = " and holds up the watermark" if stuck["offset"] == partition["watermark"] else ""
    if stuck["member"] is None:
        return f"{stuck['offset']:,} is in flight{blocks}; too many are in flight to find its member"
    since = f"since {utc_time(stuck['since_ms'])}, {readable_duration(now_ms - stuck['since_ms'])}"
    return (
        f"{stuck['offset']:,} is with {printable(stuck['member'])} {since}{blocks} "
        f"(attempt {stuck['attempts']}{_error(stuck)})"
    )


def _delay(delay: JsonObject, now_ms: int) -> str:
    due = f"{utc_time(delay['due_ms'])}, in {readable_duration(delay['due_ms'] - now_ms)}"
    return (
        f"{delay['offset']:,} is redelivered at {due} "
        f"({counted(delay['attempts'], 'attempt')}{_error(delay)})"
    )


def _error(message: JsonObject) -> str:
    return "" if message["error"] is None else f", last error: {printable(message['error'])}"


def _legend(ascii_only: bool) -> Text:
    line = Text()
    for sign in SIGNS:
        line.append(_glyph(sign, ascii_only), style=sign.style).append(f" {sign.meaning}   ")
    line.rstrip()
    return line


def _glyph(sign: Sign, ascii_only: bool) -> str:
    return sign.ascii if ascii_only else sign.glyph
