"""Operations on messages for clients without a connection: publish one, get some from a queue.

Each request has a session and a channel of its own, which end with the request:

    with RequestChannel(broker, user, "/", begin=turns.begin) as channel:
        publish(channel, message, done=publication.set_result)

So permissions, limits, confirms and requeues are those of every other channel. The rule: when the request
has ended, however it ends, the broker holds no reference to its session, and nothing is in flight to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from leveret.broker.access.logins import Origin
from leveret.broker.canonical import Value, decode, encode, to_text
from leveret.broker.errors import BrokerError, PreconditionFailed
from leveret.broker.sessions import consuming, publishing, settling
from leveret.broker.sessions.channel import Channel
from leveret.broker.sessions.confirms import Confirms
from leveret.broker.sessions.consuming import GetResult
from leveret.broker.sessions.content_headers import check_delivery_mode
from leveret.broker.sessions.session import PeerView
from leveret.broker.sessions.settlement import Tags, Verdict

if TYPE_CHECKING:
    from leveret.broker.access.accounts import User
    from leveret.broker.broker import Broker
    from leveret.broker.queues.consumer import Consumer
    from leveret.broker.sessions.outlet import Deliveries
    from leveret.broker.sessions.route import Route


class NewMessage(NamedTuple):
    """`NewMessage("events", "order.new", {"delivery_mode": 2}, b"…")`; the default exchange has no name."""

    exchange: str
    key: str
    properties: Mapping[str, Value]
    body: bytes


class Publication(NamedTuple):
    """The result of a publish."""

    routed: bool
    """Whether a queue took the message."""
    refused: bool
    """Whether a queue refused the message, or the message could not be written."""


class GotMessage(NamedTuple):
    """A message that was got from a queue."""

    exchange: str
    key: str
    properties: Mapping[str, Value]
    body: bytes
    redelivered: bool
    left: int
    """Number of messages that are ready behind this one."""


class RequestChannel:
    """The channel of one request, and both front's ends (`Outlet` and `Peer`) of its session."""

    is_open = False
    """Sessions of requests are not listed among the connections."""
    has_room = False

    def __init__(self, broker: Broker, user: User, vhost: str, *, begin: Callable[[], None]) -> None:
        """`begin` begins a turn of the broker."""
        begin()
        self._begin = begin
        self._session = broker.open_session(self, name="HTTP request", origin=Origin())
        self._session.logged_in(user)
        self._session.enter(broker.vhosts[vhost])
        self.core = Channel(self._session, self)
        self.core.owed.confirms = Confirms()
        self.returned = False
        self._answers: deque[Callable[[], None]] = deque()
        self._publications: deque[Callable[[Publication], None]] = deque()

    def __enter__(self) -> RequestChannel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Requeue what is unacked, and forget the session."""
        self._begin()
        self._end()

    def _end(self) -> None:
        self.core.close()
        self._session.end()

    def check_access(self, what: str, kind: str, name: str) -> None:
        self._session.check_access(what, kind, name)

    def expect_confirm(self, done: Callable[[Publication], None]) -> None:
        """Call `done` when the publish is confirmed or refused."""
        self._publications.append(done)

    def expect_answer(self, done: Callable[[], None]) -> None:
        """Call `done` when the next answer may be sent."""
        self._answers.append(done)

    # Outlet

    def has_room_for_reply(self, size_bytes: int) -> bool:
        return False

    def deliver(self, consumer_tag: bytes, run: Deliveries) -> None:
        raise AssertionError("the channel of a request has no consumers")

    def answer(self, data: bytes) -> None:
        self._answers.popleft()()

    def confirm(self, last: int, *, nack: bool, multiple: bool) -> None:
        self._publications.popleft()(Publication(routed=not self.returned, refused=nack))

    def return_messages(self, route: Route, contents: Sequence[tuple[bytes, bytes]]) -> None:
        self.returned = True

    def cancel(self, consumer: Consumer) -> bool:
        return False

    # Peer

    def describe(self) -> PeerView:
        return PeerView("HTTP")

    def consumer_prefetch(self, channel: int) -> int:
        return 0

    def tell_blocked(self, reason: str | None) -> None:
        pass

    def fail(self, why: BrokerError | str) -> None:
        pass

    def force_close(self, reason: str) -> None:
        """End the request: its publish is refused, and its get finds nothing."""
        self._end()
        while self._publications:
            self._publications.popleft()(Publication(routed=False, refused=True))
        while self._answers:
            self._answers.popleft()()


def publish(channel: RequestChannel, message: NewMessage, done: Callable[[Publication], None]) -> None:
    """Publish one message; `done` is called when a confirm would be sent."""
    core = channel.core
    channel.check_access("write", "exchange", message.exchange)
    route = publishing.resolve(core.vhost, message.exchange, message.key, mandatory=True)
    mode = message.properties.get("delivery_mode")
    if isinstance(mode, int):
        check_delivery_mode(mode)
    try:
        header = encode(message.properties, len(message.body))
    except ValueError as error:
        raise PreconditionFailed(f"invalid message: {error}") from None
    channel.expect_confirm(done)
    publishing.publish(core, route, [(header, message.body)])


def get(
    channel: RequestChannel, queue: str, *, no_ack: bool, done: Callable[[GotMessage | None], None]
) -> None:
    """Get one message; `done` is called with None if no message is ready, perhaps only after a sync."""
    found: list[GetResult | None] = []
    channel.expect_answer(lambda: done(_got(found[0]) if found else None))

    def keep(result: GetResult | None) -> bytes:
        found.append(result)
        return b"got"

    consuming.get(channel.core, queue, no_ack=no_ack, encode=keep)


def settle(channel: RequestChannel, count: int, *, requeue: bool) -> None:
    """Reject the first `count` messages that were got; a requeue returns them to the queue."""
    if count:
        settling.settle(channel.core, [Tags(1, count)], Verdict.REQUEUE if requeue else Verdict.REJECT)


def _got(result: GetResult | None) -> GotMessage | None:
    if result is None:
        return None
    return GotMessage(
        to_text(result.exchange),
        to_text(result.key),
        decode(result.header),
        result.body,
        result.redelivered,
        result.left,
    )
