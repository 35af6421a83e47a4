"""`/api/bindings`: show, make and remove bindings of queues and exchanges to exchanges.

    GET    /api/bindings[/{vhost}]
    GET    /api/bindings/{vhost}/e/{source}/{q|e}/{destination}
    POST   /api/bindings/{vhost}/e/{source}/{q|e}/{destination}     {"routing_key": "a.*", "arguments": {…}}
    GET    /api/bindings/{vhost}/e/{source}/{q|e}/{destination}/{properties_key}
    DELETE /api/bindings/{vhost}/e/{source}/{q|e}/{destination}/{properties_key}

`q` leads to a queue or stream, `e` to an exchange. The default exchange is called `amq.default`. Fields,
statuses and the `Location` of a new binding are RabbitMQ's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leveret.broker.access.accounts import User
from leveret.broker.broker import Broker
from leveret.broker.operations import bindings as operations
from leveret.broker.operations.bindings import WantedBinding
from leveret.broker.operations.requester import Requester
from leveret.broker.views.exchanges import BindingView, bindings_between, each_binding
from leveret.fronts.http import amqp_refusals
from leveret.fronts.http.amqp_refusals import enter_to_declare
from leveret.fronts.http.auth import enter, visible
from leveret.fronts.http.binding_rows import binding_named, describe_binding, list_bindings, properties_key
from leveret.fronts.http.endpoints import Endpoints
from leveret.fronts.http.errors import NotFound
from leveret.fronts.http.json_tables import check_short, table_in
from leveret.fronts.http.listings import reply_object
from leveret.fronts.http.path_segments import exchange_segment, segment
from leveret.fronts.http.request_bodies import Body, text_in


class Bindings:
    def __init__(self, broker: Broker, *, changed: Callable[[], None]) -> None:
        self._broker = broker
        self._changed = changed

    def routes(self, make: Endpoints) -> list[Route]:
        between = "/api/bindings/{vhost}/e/{source}/{kind}/{destination}"
        return [
            Route("/api/bindings", make.reading(self.show_all)),
            Route("/api/bindings/{vhost}", make.reading(self.show_vhost)),
            make.by_method(between, GET=make.reading(self.show_between), POST=make.changing(self.post)),
            make.by_method(
                f"{between}/{{properties_key}}",
                GET=make.reading(self.show),
                DELETE=make.changing(self.delete),
            ),
        ]

    def show_all(self, request: Request, user: User) -> Awaitable[Response]:
        return list_bindings(request, each_binding(self._broker, visible(self._broker, user)))

    def show_vhost(self, request: Request, user: User) -> Awaitable[Response]:
        vhost = enter(self._broker, user, segment(request, "vhost"))
        return list_bindings(request, each_binding(self._broker, [vhost]))

    def show_between(self, request: Request, user: User) -> Awaitable[Response]:
        vhost = enter(self._broker, user, segment(request, "vhost"))
        return list_bindings(request, self._between(request, vhost))

    def show(self, request: Request, user: User) -> Response:
        vhost = enter(self._broker, user, segment(request, "vhost"))
        return reply_object(request, describe_binding(self._binding(request, vhost)))

    def post(self, request: Request, user: User, body: Body) -> Response:
        """Bind; 201 also if the binding exists, as in RabbitMQ."""
        vhost = enter_to_declare(self._broker, user, segment(request, "vhost"))
        wanted = WantedBinding(
            exchange_segment(request, "source"),
            _destination(request),
            is_queue=_is_queue(request),
            key=text_in(body, "routing_key") or "",
            table=table_in(body, "arguments"),
        )
        check_short("routing_key", wanted.key)
        with amqp_refusals.of_declarations():
            operations.bind(Requester(user, self._broker.vhosts[vhost]), wanted, begin=self._changed)
        view = BindingView(vhost, *wanted)
        name = properties_key(view.routing_key, view.arguments_hash)
        end = segment(request, "destination").encode("utf-8", "surrogateescape")
        location = f"{quote(end, safe='')}/{quote(name, safe='')}"
        return Response(status_code=201, headers={"location": location})

    def delete(self, request: Request, user: User, body: Body) -> Response:
        vhost = enter(self._broker, user, segment(request, "vhost"))
        found = self._binding(request, vhost)
        unwanted = WantedBinding(*found[1:5], table=dict(found.arguments))
        with amqp_refusals.of_declarations():
            operations.unbind(Requester(user, self._broker.vhosts[vhost]), unwanted, begin=self._changed)
        return Response(status_code=204)

    def _between(self, request: Request, vhost: str) -> list[BindingView]:
        source, destination = exchange_segment(request, "source"), _destination(request)
        return bindings_between(self._broker, vhost, source, destination, is_queue=_is_queue(request))

    def _binding(self, request: Request, vhost: str) -> BindingView:
        """Return the binding that the path names; raise if there is none."""
        key, arguments_hash = binding_named(segment(request, "properties_key"))
        for binding in self._between(request, vhost):
            if (binding.routing_key, binding.arguments_hash) == (key, arguments_hash):
                return binding
        raise NotFound


def _is_queue(request: Request) -> bool:
    """Return whether the path leads to a queue; raise if it leads to neither queue nor exchange."""
    kind = segment(request, "kind")
    if kind not in ("q", "e"):
        raise NotFound
    return kind == "q"


def _destination(request: Request) -> str:
    return segment(request, "destination") if _is_queue(request) else exchange_segment(request, "destination")
