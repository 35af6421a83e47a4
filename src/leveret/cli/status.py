"""`leveret status`: the broker on one screen.

Parses, calls the HTTP API of the broker, prints. The exit code is 1 if an alarm is on or damage was found.
The API is RabbitMQ's, so the command works on RabbitMQ too; what RabbitMQ does not tell is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from leveret.cli.api import DEFAULT_HTTP, Api, Http, exit_on_error
from leveret.cli.command_runner import FAILED
from leveret.cli.durations import readable_duration
from leveret.cli.options import AsJson
from leveret.cli.resources import value_at
from leveret.cli.tables import Page, printable
from leveret.cli.watching import Watch, present

Status: TypeAlias = dict[str, Any]

_MIB = 2**20
_RATES = {
    "per second: ": {"published": "publish", "confirmed": "confirm"},
    "            ": {"delivered": "deliver_get", "acked": "ack", "redelivered": "redeliver"},
}
"""Rates on each line."""
_ALARMS = {"mem_alarm": "memory", "disk_free_alarm": "disk"}


def status(watch: Watch = None, http: Http = DEFAULT_HTTP, as_json: AsJson = False) -> None:
    """Show the broker on one screen. The exit code is 1 if an alarm is on or damage was found."""
    with exit_on_error(as_json=as_json):
        api = Api(http, vhost=None)
        shown = present(lambda: fetch(api), _draw, as_json=as_json, watch_s=watch)
    if problems(shown):
        raise typer.Exit(FAILED)


def fetch(api: Api) -> Status:
    """Return what the API tells of the broker and its nodes."""
    overview = api.get("overview")
    # Users without the tag `monitoring` may see their own part of the overview, and no nodes.
    nodes = api.get("nodes") if overview.get("listeners") else []
    return {"overview": overview, "nodes": nodes}


def problems(status: Status) -> list[str]:
    """Return the alarms that are on and the damage that was found, as sentences.

    >>> problems({"overview": {"damaged": 2}, "nodes": [{"name": "a", "mem_alarm": True}]})
    ['the memory alarm of a is on: publishers are held back', '2 damaged places: see /health and the log']
    """
    found = [
        f"the {alarm} alarm of {printable(node['name'])} is on: publishers are held back"
        for node in status["nodes"]
        for field, alarm in _ALARMS.items()
        if node.get(field)
    ]
    found += [
        f"{printable(node['name'])} is not running"
        for node in status["nodes"]
        if not node.get("running", True)
    ]
    damaged = status["overview"].get("damaged", 0)
    if damaged:
        found.append(f"{damaged:,} damaged place{'s' if damaged > 1 else ''}: see /health and the log")
    return found


def _draw(page: Page, status: Status) -> RenderableType:
    overview, nodes = status["overview"], status["nodes"]
    product = f"{overview.get('product_name') or 'RabbitMQ'} "
    version = overview.get("product_version") or overview["rabbitmq_version"]
    lines: list[RenderableType] = [
        Text(printable(f"{product}{version}"), style="bold").append(
            printable(f"  {overview['cluster_name']}"), style="not bold"
        )
    ]
    lines += [Text(f"! {problem}", style="bold red") for problem in problems(status)]
    if not nodes:
        lines.append(Text("Only what this user may see: the tag monitoring shows all."))
    elif not problems(status):
        lines.append(Text("No alarms, no damage found." if "damaged" in overview else "No alarms."))
    for node in nodes:
        lines += [Text(), *_of_node(node)]
    lines += [Text(), *totals(overview)]
    if overview.get("listeners"):
        lines += [Text(), page.narrow_table(("listener", "address", "port"), _listeners(overview))]
    return Group(*lines)


def totals(overview: Mapping[str, Any]) -> list[Text]:
    """Return the lines about the whole broker: objects, messages, rates."""
    objects, messages = overview["object_totals"], overview.get("queue_totals") or {}
    return [
        _figures(
            {name: objects[name] for name in ("connections", "channels", "consumers", "exchanges", "queues")}
        ),
        _figures(
            {
                "messages": messages.get("messages", 0),
                "ready": messages.get("messages_ready", 0),
                "unacked": messages.get("messages_unacknowledged", 0),
            }
        ),
        *_per_second(overview),
    ]


def _of_node(node: Mapping[str, Any]) -> Iterator[Text]:
    # RabbitMQ has no figures of a node in the first seconds after its start.
    if not node.get("running", True) or "mem_used" not in node:
        return
    yield Text(printable(node["name"]), style="bold").append(
        f"  up {readable_duration(node['uptime'])}, {node['processors']} processors", style="not bold"
    )
    yield Text(
        f"memory {_mib(node['mem_used'])} of {_mib(node['mem_limit'])}, "
        f"disk {_mib(node['disk_free'])} free (at least {_mib(node['disk_free_limit'])})"
    )
    yield Text(
        f"files {node['fd_used']:,} of {node['fd_total']:,}, sockets {node['sockets_used']:,} of "
        f"{node['sockets_total']:,}"
    )


def _listeners(overview: Mapping[str, Any]) -> Sequence[Sequence[object]]:
    return [
        (listener["protocol"], listener["ip_address"], str(listener["port"]))
        for listener in overview["listeners"]
    ]


def _per_second(overview: Mapping[str, Any]) -> Iterator[Text]:
    for heading, rates in _RATES.items():
        figures = {
            title: value_at(overview, f"message_stats.{name}_details.rate") or 0.0
            for title, name in rates.items()
        }
        yield Text(heading + ", ".join(f"{title} {rate:,.1f}" for title, rate in figures.items()))


def _figures(figures: Mapping[str, int]) -> Text:
    return Text(", ".join(f"{name} {value:,}" for name, value in figures.items()))


def _mib(size: int) -> str:
    """
    >>> _mib(5 * 2**30), _mib(123456)
    ('5,120 MiB', '0 MiB')
    """
    return f"{size // _MIB:,} MiB"
