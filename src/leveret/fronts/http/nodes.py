"""`/api/nodes` and what else is about the node: cluster name, extensions, feature flags, logins.

    GET    /api/nodes[/{name}]                memory, disk, descriptors and so on; `?memory=true`
    GET    /api/nodes/{name}/memory           who uses the memory; /memory/relative in percent
    GET    /api/cluster-name                  the broker's name
    PUT    /api/cluster-name                  {"name": "orders in Berlin"}; for administrators
    GET    /api/extensions                    none: there are no plugins with pages of their own
    GET    /api/feature-flags                 all are enabled; for administrators
    GET    /api/auth/attempts/{node}          logins by protocol; DELETE begins to count again
    GET    /api/auth/attempts/{node}/source   empty: logins are not counted by address, RabbitMQ's default
    POST   /api/rebalance/queues              nothing to do on one node; for administrators

There is one node. Fields about Erlang (`mnesia_…`, `ra_…`, `net_ticktime`) have no meaning here and are left
out; so are average times, which metrics have.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leveret import __version__
from leveret.broker.access.accounts import User
from leveret.broker.broker import Broker
from leveret.broker.operations import nodes as operations
from leveret.broker.product import NAME, RABBITMQ_VERSION
from leveret.broker.views.nodes import LoginsView, NodeView, logins, node_view
from leveret.broker.views.overview import totals
from leveret.fronts.http.auth import check_administrator, check_monitor
from leveret.fronts.http.endpoints import Endpoints
from leveret.fronts.http.errors import NotFound
from leveret.fronts.http.json_replies import reply, text
from leveret.fronts.http.listings import reply_object
from leveret.fronts.http.node_facts import Figures, NodeFacts
from leveret.fronts.http.overview import RATES_MODE, churn_rates, contexts, exchange_types
from leveret.fronts.http.path_segments import segment
from leveret.fronts.http.rates import Ranges, detailed, ranges_of
from leveret.fronts.http.request_bodies import BadRequest, Body

_FEATURE_FLAGS: Final = {
    "classic_mirrored_queue_version": "Support setting version for classic mirrored queues",
    "drop_unroutable_metric": "Count unroutable publishes to be dropped in stats",
    "empty_basic_get_metric": "Count AMQP `basic.get` on empty queues in stats",
    "implicit_default_bindings": "Default bindings are now implicit, instead of being stored in the database",
    "maintenance_mode_status": "Maintenance mode status",
    "quorum_queue": "Support queues of type `quorum`",
    "stream_queue": "Support queues of type `stream`",
    "user_limits": "Configure connection and channel limits for a user",
    "virtual_host_metadata": "Virtual host metadata (description, tags, etc)",
}
"""Those of RabbitMQ 3.10, because clients look for them before they use a feature."""
_MECHANISMS: Final = {
    "PLAIN": "SASL PLAIN authentication mechanism",
    "AMQPLAIN": "QPid AMQPLAIN mechanism",
    "EXTERNAL": "SASL EXTERNAL authentication mechanism",
}
_NO_SUCH_PART: Final = dict.fromkeys(
    (
        *("connection_writers", "connection_channels", "queue_slave_procs", "quorum_queue_procs"),
        *("quorum_queue_dlx_procs", "stream_queue_procs", "stream_queue_replica_reader_procs"),
        *("stream_queue_coordinator_procs", "plugins", "other_proc", "metrics", "mgmt_db", "mnesia"),
        *("quorum_ets", "other_ets", "binary", "msg_index", "code", "atom", "allocated_unused"),
        "reserved_unallocated",
    ),
    0,
)
"""Users of memory that RabbitMQ has and this broker has not, or can't tell from others."""


class Nodes:
    def __init__(self, broker: Broker, *, changed: Callable[[], None], node: Callable[[], NodeFacts]) -> None:
        self._broker = broker
        self._changed = changed
        self._node = node

    def routes(self, make: Endpoints) -> list[Route]:
        return [
            Route("/api/nodes", make.reading(self.show_all)),
            Route("/api/nodes/{name}", make.reading(self.show)),
            Route("/api/nodes/{name}/memory", make.reading(self.show_memory)),
            Route("/api/nodes/{name}/memory/relative", make.reading(self.show_relative_memory)),
            make.by_method(
                "/api/cluster-name",
                GET=make.reading(self.show_cluster_name),
                PUT=make.changing(self.put_cluster_name),
            ),
            Route("/api/extensions", make.reading(self.show_extensions)),
            Route("/api/feature-flags", make.reading(self.show_feature_flags)),
            Route("/api/rebalance/queues", make.changing(self.rebalance), methods=["POST"]),
            make.by_method(
                "/api/auth/attempts/{name}",
                GET=make.reading(self.show_logins),
                DELETE=make.reading(self.forget_logins),
            ),
            make.by_method(
                "/api/auth/attempts/{name}/source",
                GET=make.reading(self.show_logins_by_source),
                DELETE=make.reading(self.forget_logins_by_source),
            ),
        ]

    def show_all(self, request: Request, user: User) -> Response:
        check_monitor(user)
        return reply_object(request, [self._described(request)])

    def show(self, request: Request, user: User) -> Response:
        check_monitor(user)
        node = self._named(request)
        content = self._described(request)
        if request.query_params.get("memory") == "true":
            content["memory"] = _memory(node, node_view(self._broker))
        return reply_object(request, content)

    def show_memory(self, request: Request, user: User) -> Response:
        check_monitor(user)
        return reply_object(request, {"memory": _memory(self._named(request), node_view(self._broker))})

    def show_relative_memory(self, request: Request, user: User) -> Response:
        check_monitor(user)
        memory = _memory(self._named(request), node_view(self._broker))
        total = max(1, memory["total"]["rss"])
        parts = {name: value for name, value in memory.items() if isinstance(value, int)}
        # RabbitMQ rounds up: a part that is there has at least one percent.
        shares = {name: -(-100 * value // total) for name, value in parts.items()}
        return reply_object(request, {"memory": {"total": 100, **shares}})

    def _named(self, request: Request) -> NodeFacts:
        if segment(request, "name") != self._broker.node:
            raise NotFound
        return self._node()

    def _described(self, request: Request) -> dict[str, Any]:
        broker, node = self._broker, self._node()
        view, ranges = node_view(broker), ranges_of(request, now_us=broker.now_us())
        return {
            "name": text(broker.node),
            "type": "disc",
            "running": True,
            "partitions": [],
            "cluster_links": [],
            "os_pid": str(node.os_pid),
            "uptime": node.uptime_ms,
            "processors": node.processors,
            "run_queue": view.waiting,
            "rates_mode": RATES_MODE,
            "mem_limit": node.mem_limit,
            "mem_alarm": "memory" in view.alarms,
            "mem_calculation_strategy": "rss",
            "disk_free_limit": node.disk_free_limit,
            "disk_free_alarm": "disk" in view.alarms,
            "fd_total": node.fd_total,
            "sockets_total": node.sockets_total,
            "proc_total": node.proc_total,
            "exchange_types": exchange_types(view.exchange_types),
            "auth_mechanisms": [
                {"name": name, "description": what, "enabled": True} for name, what in _MECHANISMS.items()
            ],
            "applications": _applications(),
            "contexts": contexts(node),
            "log_files": [text(path) for path in node.log_files],
            "db_dir": text(node.db_dir),
            "config_files": [text(path) for path in node.config_files],
            "enabled_plugins": [],
            **_figures(node, ranges),
            **churn_rates(totals(broker), view.past, Ranges(msg_rates=ranges.node_stats)),
        }

    # the cluster

    def show_cluster_name(self, request: Request, user: User) -> Response:
        return reply_object(request, {"name": text(self._broker.name)})

    def put_cluster_name(self, request: Request, user: User, body: Body) -> Response:
        check_administrator(user)
        name = body.get("name")
        if name is None:
            raise BadRequest("[{key_missing,name}]")
        if not isinstance(name, str):
            raise BadRequest("name must be a string.")
        operations.rename(self._broker, name, begin=self._changed)
        return Response(status_code=204)

    def show_extensions(self, request: Request, user: User) -> Response:
        return reply([])

    def show_feature_flags(self, request: Request, user: User) -> Response:
        check_administrator(user)
        fixed = {"doc_url": "", "state": "enabled", "stability": "stable", "provided_by": "rabbit"}
        flags = [{"name": name, "desc": what, **fixed} for name, what in _FEATURE_FLAGS.items()]
        return reply_object(request, flags)

    def rebalance(self, request: Request, user: User, body: Body) -> Response:
        check_administrator(user)
        return Response(status_code=204)

    # logins

    def show_logins(self, request: Request, user: User) -> Response:
        check_monitor(user)
        self._named(request)
        return reply_object(request, [_logins(view) for view in logins(self._broker)])

    def forget_logins(self, request: Request, user: User) -> Response:
        check_monitor(user)
        self._named(request)
        operations.forget_logins(self._broker)
        return Response(status_code=204)

    def show_logins_by_source(self, request: Request, user: User) -> Response:
        check_monitor(user)
        self._named(request)
        return reply([])

    def forget_logins_by_source(self, request: Request, user: User) -> Response:
        check_monitor(user)
        self._named(request)
        return Response(status_code=204)


def _figures(node: NodeFacts, ranges: Ranges) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for name in Figures._fields:
        rows |= detailed(name, getattr(node.figures, name), node.past, (name,), ranges.node_stats)
    return rows


def _memory(node: NodeFacts, view: NodeView) -> dict[str, Any]:
    """Return the memory by user. What clients and messages need is counted, the rest is the interpreter's."""
    total = node.figures.mem_used
    counted = view.buffered_bytes + view.message_bytes + node.helpers_bytes
    return {
        **_NO_SUCH_PART,
        "connection_readers": view.buffered_bytes,
        "queue_procs": view.message_bytes,
        "connection_other": 0,
        "plugins": node.helpers_bytes,
        "other_system": max(0, total - counted),
        "strategy": "rss",
        "total": {"erlang": total, "rss": total, "allocated": total},
    }


def _applications() -> list[object]:
    python = ".".join(map(str, sys.version_info[:3]))
    return [
        {"name": NAME.lower(), "description": NAME, "version": __version__},
        {"name": "python", "description": "The interpreter that runs the broker", "version": python},
        {"name": "rabbit", "description": "RabbitMQ whose API this is", "version": RABBITMQ_VERSION},
    ]


def _logins(view: LoginsView) -> dict[str, object]:
    return {
        "protocol": view.protocol,
        "auth_attempts": view.succeeded + view.failed,
        "auth_attempts_failed": view.failed,
        "auth_attempts_succeeded": view.succeeded,
    }
