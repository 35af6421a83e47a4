"""`/api/exchanges`: show, declare and delete exchanges.

    GET    /api/exchanges[/{vhost}]            exchanges, in pages, orders and columns: see `listings`
    GET    /api/exchanges/{vhost}/{name}       one exchange
    PUT    /api/exchanges/{vhost}/{name}       {"type": "topic", "durable": true, "auto_delete": false,
                                                "internal": false, "arguments": {…}}
    DELETE /api/exchanges/{vhost}/{name}       deletes an exchange; `?if-unused=true`
    GET    /api/exchanges/{vhost}/{name}/bindings/source       bindings from the exchange
    GET    /api/exchanges/{vhost}/{name}/bindings/destination  bindings to the exchange

Fields and statuses are RabbitMQ's. In a path the default exchange is called `amq.default`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from operator import attrgetter
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from leveret.broker.access.accounts import User
from leveret.broker.broker import Broker
from leveret.broker.operations import exchanges as operations
from leveret.broker.operations.exchanges import ExchangeDeclaration
from leveret.broker.operations.requester import Requester
from leveret.broker.views.exchanges import (
    ExchangeView,
    PresentExchange,
    bindings_to,
    each_binding,
    each_exchange,
    exchange_view,
    one_exchange,
)
from leveret.fronts.http import amqp_refusals
from leveret.fronts.http.amqp_refusals import enter_to_declare
from leveret.fronts.http.auth import enter, visible
from leveret.fronts.http.binding_rows import list_bindings
from leveret.fronts.http.errors import NotFound
from leveret.fronts.http.json_replies import jsonable, text
from leveret.fronts.http.json_tables import check_short, table_in
from leveret.fronts.http.listings import Rows, reply_listed, reply_object
from leveret.fronts.http.path_segments import exchange_segment, segment
from leveret.fronts.http.rates import OF_EXCHANGE, Ranges, message_stats, ranges_of
from leveret.fronts.http.request_bodies import Body, text_in, truth_in

_CHEAP: Final[dict[str, Callable[[PresentExchange], Any]]] = {
    "vhost": attrgetter("host.name"),
    **{
        name: attrgetter(f"exchange.{name}")
        for name in ("name", "type", "durable", "auto_delete", "internal")
    },
}


class Exchanges:
    def __init__(self, broker: Broker, *, changed: Callable[[], None]) -> None:
        self._broker = broker
        self._changed = changed

    # showing

    def show_all(self, request: Request, user: User) -> Awaitable[Response]:
        return self._list(request, visible(self._broker, user))

    def show_vhost(self, request: Request, user: User) -> Awaitable[Response]:
        return self._list(request, [enter(self._broker, user, segment(request, "vhost"))])

    def _list(self, request: Request, vhosts: Collection[str]) -> Awaitable[Response]:
        ranges = ranges_of(request, now_us=self._broker.now_us())
        present = each_exchange(self._broker, vhosts)
        rows = Rows(present, row=lambda each: _described(exchange_view(each), ranges), cheap=_CHEAP)
        return reply_listed(request, rows)

    def show(self, request: Request, user: User) -> Response:
        ranges = ranges_of(request, now_us=self._broker.now_us())
        # Leveret does not count by channel and exchange, nor by exchange and queue.
        described = _described(self._exchange(request, user), ranges) | {"incoming": [], "outgoing": []}
        return reply_object(request, described)

    def show_bindings_from(self, request: Request, user: User) -> Awaitable[Response]:
        vhost = enter(self._broker, user, segment(request, "vhost"))
        source = exchange_segment(request, "name")
        return list_bindings(request, each_binding(self._broker, [vhost], source=source))

    def show_bindings_to(self, request: Request, user: User) -> Awaitable[Response]:
        vhost = enter(self._broker, user, segment(request, "vhost"))
        name = exchange_segment(request, "name")
        return list_bindings(request, bindings_to(self._broker, vhost, name, is_queue=False))

    # changing

    def put(self, request: Request, user: User, body: Body) -> Response:
        """Declare an exchange: 201 if the exchange is new, 204 if an equivalent one exists."""
        vhost = enter_to_declare(self._broker, user, segment(request, "vhost"))
        type_ = text_in(body, "type")
        wanted = ExchangeDeclaration(
            exchange_segment(request, "name"),
            "direct" if type_ is None else type_,
            table_in(body, "arguments"),
            durable=truth_in(body, "durable"),
            auto_delete=truth_in(body, "auto_delete"),
            internal=truth_in(body, "internal"),
        )
        check_short("exchange", wanted.name)
        with amqp_refusals.of_declarations():
            requester = Requester(user, self._broker.vhosts[vhost])
            _, is_new = operations.declare(requester, wanted, begin=self._changed)
        return Response(status_code=201 if is_new else 204)

    def delete(self, request: Request, user: User, body: Body) -> Response:
        view = self._exchange(request, user)
        if_unused = request.query_params.get("if-unused") == "true"
        with amqp_refusals.of_declarations():
            requester = Requester(user, self._broker.vhosts[view.vhost])
            operations.delete(requester, view.name, if_unused=if_unused, begin=self._changed)
        return Response(status_code=204)

    def _exchange(self, request: Request, user: User) -> ExchangeView:
        """Return the exchange that the path names; raise if there is none."""
        vhost = enter(self._broker, user, segment(request, "vhost"))
        view = one_exchange(self._broker, vhost, exchange_segment(request, "name"))
        if view is None:
            raise NotFound
        return view


def _described(exchange: ExchangeView, ranges: Ranges) -> dict[str, object]:
    described: dict[str, object] = {
        "name": text(exchange.name),
        "vhost": text(exchange.vhost),
        "type": exchange.type,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": jsonable(exchange.arguments),
    }
    if exchange.policies.policy is not None:
        described["policy"] = text(exchange.policies.policy)
    stats = message_stats(exchange.counters, OF_EXCHANGE, ranges.msg_rates)
    return described | ({"message_stats": stats} if stats else {})
