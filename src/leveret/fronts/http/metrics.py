"""The pages for Prometheus: sums, single objects, and families of single objects.

    GET /metrics                    sums over all objects, histograms, figures of the process
    GET /metrics/per-object         single queues, channels, connections, exchanges, groups and queries
    GET /metrics/detailed           the families that the query names: ?family=queue_coarse_metrics&vhost=%2F

Owns which tables are on which page. Names are left to `metric_tables`, lines to `exposition`, the figures of
objects to `metric_reading`. The rule: all lines of a metric stand together. So a page first reads all objects
and then writes metric after metric, with pauses in which the event loop serves others.
"""

from __future__ import annotations

import platform
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Final, TypeAlias

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from leveret import __version__
from leveret.broker.access.accounts import User
from leveret.broker.broker import Broker
from leveret.broker.product import RABBITMQ_VERSION
from leveret.broker.views import metrics as views
from leveret.broker.views.nodes import logins
from leveret.broker.views.overview import totals
from leveret.broker.views.vhosts import vhost_names
from leveret.fronts.http import metric_tables as tables
from leveret.fronts.http.auth import check_monitor
from leveret.fronts.http.endpoints import Endpoints
from leveret.fronts.http.errors import answer
from leveret.fronts.http.exposition import CONTENT_TYPE, by_reason, head, histogram, labels, rows, sample
from leveret.fronts.http.metric_reading import KINDS, Objects, pause, read
from leveret.fronts.http.metric_tables import FAMILIES, Family, Metric
from leveret.fronts.http.node_facts import NodeFacts
from leveret.fronts.http.path_segments import RawPaths

Node: TypeAlias = Callable[[], NodeFacts]

_LINES: Final = 2_000
"""Lines written without a pause: a line takes 0.3 µs."""
_LABELS: Final = 200
"""Labels written without a pause: the names of an object take 2 µs."""
_DOUBLE: Final = "queue_consumer_count"
"""The family whose metric another family, `queue_metrics`, has as well."""
_FAMILIES: Final = tuple(name for name in FAMILIES if name != _DOUBLE)
_PROTOCOL: Final = 'protocol="amqp091"'


class Metrics:
    """The pages of one broker. `node` measures the process."""

    def __init__(self, broker: Broker, *, node: Node) -> None:
        self._broker = broker
        self._node = node
        self._started_s = time.time()

    def routes(self, make: Endpoints) -> list[Route]:
        return [
            Route("/metrics", make.reading(self.show_sums)),
            Route("/metrics/per-object", make.reading(self.show_objects)),
            Route("/metrics/detailed", make.reading(self.show_detailed)),
        ]

    def show_sums(self, request: Request, user: User) -> Response:
        check_monitor(user)
        return self.sums(request)

    def show_objects(self, request: Request, user: User) -> Response:
        check_monitor(user)
        return self.objects(request)

    def show_detailed(self, request: Request, user: User) -> Response:
        check_monitor(user)
        return self.detailed(request)

    def sums(self, request: Request) -> Response:
        return _streamed(self._page(single=False))

    def objects(self, request: Request) -> Response:
        return _streamed(self._page(single=True))

    def detailed(self, request: Request) -> Response:
        """Return the families of the query; unknown families and virtual hosts add nothing."""
        query = request.query_params
        return _streamed(self._detailed(query.getlist("family"), query.getlist("vhost") or None))

    async def _page(self, *, single: bool) -> AsyncIterator[str]:
        """Yield the lines of all objects, as sums or one by one, then those of the whole broker."""
        objects = {kind: await read(kind, self._broker, keeps_rows=single) for kind in KINDS}
        async for text in self._objects(objects) if single else self._sums(objects):
            yield text
        for text in self._whole(objects):
            yield text
            await pause()

    # objects

    async def _sums(self, objects: Mapping[str, Objects]) -> AsyncIterator[str]:
        ended = totals(self._broker).counters
        for name in _FAMILIES:
            family = FAMILIES[name]
            for metric in family.metrics:
                if metric.name in tables.NOT_SUMMED:
                    continue
                value = objects[family.source].total(metric.field)
                if metric.kind == tables.COUNTER and family.source in ("channel", "connection"):
                    # With channels and connections that have ended.
                    value = getattr(ended, metric.field)
                yield _head(metric) + sample(metric.name, value)
        for metric in tables.MAXIMA:
            kind, _, name = metric.field.partition(".")
            yield _head(metric) + sample(metric.name, objects[kind].most(name))
        yield _table(tables.ALARMS, views.broker_view(self._broker))

    async def _objects(self, objects: Mapping[str, Objects]) -> AsyncIterator[str]:
        for name in _FAMILIES:
            async for text in _lines(FAMILIES[name], objects[FAMILIES[name].source], detailed=False):
                yield text

    async def _detailed(self, names: Collection[str], vhosts: Collection[str] | None) -> AsyncIterator[str]:
        hidden = {_DOUBLE} if "queue_metrics" in names else set()
        for name in [name for name in FAMILIES if name in names and name not in hidden]:
            family = FAMILIES[name]
            objects = await read(family.source, self._broker, vhosts, keeps_rows=True)
            async for text in _lines(family, objects, detailed=True):
                yield text
        if "vhost_status" in names:
            yield self._vhosts(vhosts)
        for name in [name for name in tables.OF_EXCHANGES if name in names]:
            async for text in self._exchanges(tables.OF_EXCHANGES[name], vhosts):
                yield text
        if "connection_churn_metrics" in names:
            yield _table(tables.CHURN, totals(self._broker).churn, detailed=True)
        if "auth_attempt_metrics" in names:
            yield self._logins(detailed=True)
        for name in [name for name in tables.OF_NODE if name in names]:
            yield _table(tables.OF_NODE[name], self._measured(), detailed=True)
        yield self._identity()

    def _vhosts(self, vhosts: Collection[str] | None) -> str:
        names = [name for name in vhost_names(self._broker) if vhosts is None or name in vhosts]
        lines = (sample(tables.VHOST_STATUS.name, 1, labels(("vhost",), (name,))) for name in names)
        return _head(tables.VHOST_STATUS) + "".join(lines)

    async def _exchanges(self, metric: Metric, vhosts: Collection[str] | None) -> AsyncIterator[str]:
        yield _head(metric)
        exchanges = views.public_exchanges(self._broker, vhosts)
        for start in range(0, len(exchanges), _LABELS):
            piece = exchanges[start : start + _LABELS]
            counts = [each.bindings if metric.field else 1 for each in piece]
            shown = [labels(("vhost", "exchange", "type"), each[:3]) for each in piece]
            yield "".join(map(sample, repeat(metric.name), counts, shown))
            await pause()

    # the whole broker

    def _whole(self, objects: Mapping[str, Objects]) -> Iterator[str]:
        view, sums = views.broker_view(self._broker), totals(self._broker)
        counted = {"consumers": objects["channel"].total("consumers")}
        yield _table(tables.CHURN, sums.churn) + _table(tables.TOTALS, {**view._asdict(), **counted})
        for table in (*tables.OF_NODE.values(), tables.PROCESS):
            yield _table(table, self._measured())
        yield self._logins(detailed=False)
        yield _table(tables.GLOBAL_GAUGES, {**view._asdict(), **counted}, label=f"{{{_PROTOCOL}}}")
        yield _table(tables.GLOBAL, sums.counters, label=f"{{{_PROTOCOL}}}")
        for metric in tables.GLOBAL_BY_TYPE:
            yield _by_queue_type(metric, objects["queue"])
        yield _table(tables.COUNTS, {kind: each.count for kind, each in objects.items()})
        yield _table(tables.BROKER, view) + _table(tables.OWN_TOTALS, sums)
        for metric in tables.REASONS:
            yield by_reason(metric.name, metric.help, getattr(sums, metric.field))
        for each in tables.HISTOGRAMS:
            yield histogram(each.name, each.help, view.histograms[each.field], divisor=each.divisor)
        yield self._identity()

    def _measured(self) -> Mapping[str, float]:
        """Return the figures of the process, and its limits."""
        facts = self._node()
        return {
            **facts.figures._asdict(),
            "fd_total": facts.fd_total,
            "sockets_total": facts.sockets_total,
            "mem_limit": facts.mem_limit,
            "disk_free_limit": facts.disk_free_limit,
            "started_s": self._started_s,
            "cpu_s": time.process_time(),
        }

    def _logins(self, *, detailed: bool) -> str:
        counted = logins(self._broker)
        parts = []
        for metric in tables.LOGINS:
            name = metric.named(detailed=detailed)
            parts.append(head(name, metric.kind, metric.help))
            for each in counted:
                count = sum(getattr(each, field) for field in metric.field.split(" "))
                parts.append(sample(name, count, labels(("protocol",), (each.protocol,))))
        return "".join(parts)

    def _identity(self) -> str:
        built = labels(
            ("rabbitmq_version", "prometheus_plugin_version", "prometheus_client_version"),
            (RABBITMQ_VERSION, __version__, __version__),
        )
        ours = labels(("version", "python_version"), (__version__, platform.python_version()))
        names = self._broker.node, self._broker.name
        values = (built, labels(("rabbitmq_node", "rabbitmq_cluster"), names), ours)
        return "".join(
            _head(metric) + sample(metric.name, 1, label)
            for metric, label in zip(tables.IDENTITY, values, strict=True)
        )


async def _lines(family: Family, objects: Objects, *, detailed: bool) -> AsyncIterator[str]:
    """Yield the lines of single objects, metric by metric."""
    labelled: list[tuple[str, tuple[int, ...]]] = []
    used = len(family.labels)
    for start in range(0, len(objects.rows), _LABELS):
        piece = objects.rows[start : start + _LABELS]
        labelled += [(labels(family.labels, row.names[:used]), row.figures) for row in piece]
        await pause()
    for metric in family.metrics:
        name, column = metric.named(detailed=detailed), objects.fields.index(metric.field)
        yield head(name, metric.kind, metric.help)
        for start in range(0, len(labelled), _LINES):
            yield rows(name, labelled[start : start + _LINES], column)
            await pause()


def _table(table: Sequence[Metric], values: object, *, detailed: bool = False, label: str = "") -> str:
    """Return the lines of metrics whose values are fields of a view, or values of a mapping."""
    parts = []
    for metric in table:
        value = values[metric.field] if isinstance(values, Mapping) else getattr(values, metric.field)
        name = metric.named(detailed=detailed)
        parts.append(head(name, metric.kind, metric.help) + sample(name, value, label))
    return "".join(parts)


def _by_queue_type(metric: Metric, queues: Objects) -> str:
    names = metric.field.split(" ")
    lines = (
        sample(
            metric.name,
            sum(queues.total_of(kind, name) for name in names),
            f'{{{_PROTOCOL},queue_type="rabbit_{kind}_queue"}}',
        )
        for kind in tables.QUEUE_TYPES
    )
    return _head(metric) + "".join(lines)


def _head(metric: Metric) -> str:
    return head(metric.name, metric.kind, metric.help)


def _streamed(page: AsyncIterator[str]) -> Response:
    return StreamingResponse(page, headers={"cache-control": "no-cache"}, media_type=CONTENT_TYPE)


def create_metrics_app(broker: Broker, *, node: Node) -> Starlette:
    """Return an application with the pages for Prometheus alone, which asks for no login."""
    metrics = Metrics(broker, node=node)

    def route(path: str, page: Callable[[Request], Response]) -> Route:
        async def endpoint(request: Request) -> Response:
            return page(request)

        return Route(path, endpoint)

    return Starlette(
        routes=[
            route("/metrics", metrics.sums),
            route("/metrics/per-object", metrics.objects),
            route("/metrics/detailed", metrics.detailed),
        ],
        middleware=[Middleware(RawPaths)],
        exception_handlers={HTTPException: answer, Exception: answer},
    )
