"""`/api/connections`, `/api/channels` and `/api/consumers`: the clients of the broker, and what they do.

    GET    /api/connections                      all connections that the user may see
    GET    /api/vhosts/{vhost}/connections       those of a virtual host
    GET    /api/connections/{name}               one connection: "127.0.0.1:50020 -> 127.0.0.1:5672"
    DELETE /api/connections/{name}               closes the connection; the client gets the header X-Reason
    GET    /api/connections/{name}/channels      its channels
    GET    /api/connections/username/{user}      connections of a user
    DELETE /api/connections/username/{user}      closes them
    GET    /api/channels                         all channels; also /api/vhosts/{vhost}/channels
    GET    /api/channels/{name}                  one channel, with its consumers: "… -> 127.0.0.1:5672 (1)"
    GET    /api/consumers[/{vhost}]              all consumers

Fields are RabbitMQ's; `client_rows` makes them. As there, only the lists of all virtual hosts and those of a
user have pages, and a single object is always shown whole. Users without the tag `monitoring` or
`administrator` see only their own connections, and only an administrator closes those of others.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from itertools import chain
from operator import attrgetter
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leveret.broker.access.accounts import User
from leveret.broker.broker import Broker
from leveret.broker.operations import connections as operations
from leveret.broker.views import connections as views
from leveret.broker.views.vhosts import vhost_names
from leveret.fronts.http.auth import check_administrator, enter, is_administrator, is_monitor
from leveret.fronts.http.client_rows import ClientRows
from leveret.fronts.http.endpoints import Endpoints
from leveret.fronts.http.errors import NotAuthorised, NotFound
from leveret.fronts.http.json_replies import reply
from leveret.fronts.http.listings import Rows, reply_listed
from leveret.fronts.http.path_segments import segment
from leveret.fronts.http.rates import ranges_of
from leveret.fronts.http.request_bodies import Body

_CHANNEL: Final = re.compile(r"(.*) \((\d{1,5})\)", re.DOTALL)


class Connections:
    def __init__(self, broker: Broker, *, changed: Callable[[], None]) -> None:
        self._broker = broker
        self._changed = changed

    def routes(self, make: Endpoints) -> list[Route]:
        return [
            Route("/api/connections", make.reading(self.show_all)),
            Route("/api/vhosts/{vhost}/connections", make.reading(self.show_vhost)),
            make.by_method(
                "/api/connections/username/{username}",
                GET=make.reading(self.show_of_user),
                DELETE=make.changing(self.close_of_user),
            ),
            make.by_method(
                "/api/connections/{name}",
                GET=make.reading(self.show),
                DELETE=make.changing(self.close),
            ),
            Route("/api/connections/{name}/channels", make.reading(self.show_channels_of)),
            Route("/api/channels", make.reading(self.show_channels)),
            Route("/api/vhosts/{vhost}/channels", make.reading(self.show_channels_in)),
            Route("/api/channels/{name}", make.reading(self.show_channel)),
            Route("/api/consumers", make.reading(self.show_consumers)),
            Route("/api/consumers/{vhost}", make.reading(self.show_consumers_in)),
        ]

    # connections

    def show_all(self, request: Request, user: User) -> Awaitable[Response]:
        return self._connections(request, user, None)

    def show_vhost(self, request: Request, user: User) -> Awaitable[Response]:
        return self._connections(request, user, self._vhost(request, user), paged=False)

    def _connections(
        self, request: Request, user: User, vhosts: list[str] | None, *, paged: bool = True
    ) -> Awaitable[Response]:
        rows = self._rows(request)
        cheap: dict[str, Callable[[Any], Any]] = {
            "name": attrgetter("addresses"),
            "user": attrgetter("user.name"),
            "vhost": attrgetter("vhost.name"),
            "channels": lambda session: len(session.channels),
            "connected_at": attrgetter("since_us"),
        }
        listed = Rows(self._seen(user, vhosts), row=rows.connection, cheap=cheap)
        return reply_listed(request, listed, paged=paged)

    def show(self, request: Request, user: User) -> Response:
        return reply(self._rows(request).connection(self._session(request, user)))

    def close(self, request: Request, user: User, body: Body) -> Response:
        session = self._session(request, user)
        if session.user.name != user.name and not is_administrator(user):
            raise NotAuthorised("User not authorised to access object")
        operations.close(self._broker, session.addresses, reason=_reason(request), begin=self._changed)
        return Response(status_code=204)

    def show_of_user(self, request: Request, user: User) -> Awaitable[Response]:
        name = segment(request, "username")
        if name != user.name and not is_monitor(user):
            raise NotAuthorised("User not authorised to access object")
        sessions = list(views.running(self._broker, user=name))
        return reply_listed(
            request,
            Rows(sessions, row=self._rows(request).short_connection, cheap={"name": attrgetter("addresses")}),
        )

    def close_of_user(self, request: Request, user: User, body: Body) -> Response:
        name = segment(request, "username")
        if name != user.name:
            check_administrator(user)
        operations.close_all_of(self._broker, name, reason=_reason(request), begin=self._changed)
        return Response(status_code=204)

    # channels

    def show_channels_of(self, request: Request, user: User) -> Awaitable[Response]:
        return self._channels(request, [self._session(request, user)], paged=False)

    def show_channels(self, request: Request, user: User) -> Awaitable[Response]:
        return self._channels(request, self._seen(user, None))

    def show_channels_in(self, request: Request, user: User) -> Awaitable[Response]:
        return self._channels(request, self._seen(user, self._vhost(request, user)), paged=False)

    def _channels(self, request: Request, sessions: list[Any], *, paged: bool = True) -> Awaitable[Response]:
        channels = list(chain.from_iterable(map(views.sorted_channels, sessions)))
        cheap: dict[str, Callable[[Any], Any]] = {
            "name": lambda channel: f"{channel.session.addresses} ({channel.number})",
            "number": attrgetter("number"),
            "user": attrgetter("session.user.name"),
            "vhost": attrgetter("vhost.name"),
        }
        listed = Rows(channels, row=self._rows(request).channel, cheap=cheap)
        return reply_listed(request, listed, paged=paged)

    def show_channel(self, request: Request, user: User) -> Response:
        found = _CHANNEL.fullmatch(segment(request, "name"))
        channel = views.channel_at(self._broker, found[1], int(found[2])) if found is not None else None
        if channel is None:
            raise NotFound
        self._check_sees(user, channel.session.user.name)
        return reply(self._rows(request).whole_channel(channel))

    # consumers

    def show_consumers(self, request: Request, user: User) -> Awaitable[Response]:
        return self._consumers(request, user, None)

    def show_consumers_in(self, request: Request, user: User) -> Awaitable[Response]:
        vhost = segment(request, "vhost")
        if vhost not in vhost_names(self._broker):
            raise NotFound
        return self._consumers(request, user, [vhost])

    def _consumers(self, request: Request, user: User, vhosts: list[str] | None) -> Awaitable[Response]:
        channels = chain.from_iterable(map(views.sorted_channels, self._seen(user, vhosts)))
        consumers = list(chain.from_iterable(map(views.consumers_on, channels)))
        return reply_listed(request, Rows(consumers, row=self._rows(request).consumer), paged=False)

    # who sees what

    def _seen(self, user: User, vhosts: list[str] | None) -> list[Any]:
        """Return connections that the user may see, of these virtual hosts or of all, in RabbitMQ's order."""
        owner = None if is_monitor(user) else user.name
        sessions = views.running(self._broker, vhosts, user=owner)
        return sorted(sessions, key=attrgetter("vhost.name", "addresses"))

    def _session(self, request: Request, user: User) -> Any:
        session = views.session_at(self._broker, segment(request, "name"))
        if session is None:
            raise NotFound
        self._check_sees(user, session.user.name)
        return session

    def _check_sees(self, user: User, owner: str) -> None:
        if owner != user.name and not is_monitor(user):
            raise NotAuthorised("User not authorised to access object")

    def _vhost(self, request: Request, user: User) -> list[str]:
        return [enter(self._broker, user, segment(request, "vhost"))]

    def _rows(self, request: Request) -> ClientRows:
        return ClientRows(self._broker.node, ranges_of(request, now_us=self._broker.now_us()))


def _reason(request: Request) -> str:
    """Return the text for the client; HTTP has Latin-1 in headers, and AMQP at most 255 bytes."""
    reason = request.headers.get("x-reason", "") or operations.REASON
    return reason.encode("utf-8", "replace")[:200].decode("utf-8", "ignore")
