"""An AMQP connection: its channels, and how errors close a channel or the connection.

`receive` takes the scanner's events; `out` collects bytes until the socket takes them. `handshake` opens the
connection. Requests on a channel are left to `methods/` and `publishing`; the user and its permissions, to
the broker's `Session`. The rule: every `BrokerError` and `AmqpError` is caught here. It
closes the channel on which it happened, or the connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pamqp import commands

from leveret.amqp import methods
from leveret.amqp.errors import (
    AmqpError,
    ChannelError,
    ChannelException,
    CommandInvalid,
    ConnectionForced,
    ContentTooLarge,
    InternalError,
    NotAllowed,
    PreconditionFailed,
    UnexpectedFrame,
)
from leveret.amqp.events import (
    ContentBegun,
    Contents,
    Event,
    MethodFrame,
    Overfull,
    Oversized,
    ProtocolHeader,
    Settlement,
    Violation,
)
from leveret.amqp.frames import METHOD, frame
from leveret.amqp.methods import Method, make
from leveret.amqp.scanner import ACK, PUBLISH, Scanner
from leveret.broker.access.logins import Origin
from leveret.broker.errors import BrokerError, StorageError
from leveret.broker.sessions import publishing as broker_publishing
from leveret.broker.sessions import settling
from leveret.broker.sessions.session import PeerView
from leveret.broker.sessions.settlement import Tags, Verdict
from leveret.broker.sessions.turn_shares import Demand
from leveret.broker.usage_limits import channel_refusal
from leveret.fronts.amqp import handshake, publishing, requeue
from leveret.fronts.amqp.channel import AmqpChannel
from leveret.fronts.amqp.errors import as_amqp
from leveret.fronts.amqp.handshake import HungUp
from leveret.fronts.amqp.methods import HANDLERS
from leveret.fronts.amqp.wire import State, Wire

if TYPE_CHECKING:
    from leveret.broker.broker import Broker

_OUT_BYTES_MAX = 8 << 20
"""While more unsent bytes than this wait, no event is handled."""
_METHOD_COST, _DEFINITION_COST = 25, 500
"""Microseconds: for a method or for finding a route; for a method that declares, binds or deletes."""
_MESSAGE_COST, _COPY_COST = 1, 2
"""Microseconds: for a publish; for each queue that receives a copy."""
_DEFINITION_CLASSES = {b"\x00\x28", b"\x00\x32"}
"""Class ids of exchange and queue."""
_UNFINISHED_FREE_BYTES = 256 << 10
"""A connection that does not publish is held back if unfinished messages take more memory than this."""
_ACCESS_REQUEST = b"\x00\x1e\x00\x0a"
_ACCESS_GRANTED = b"\x00\x1e\x00\x0b\x00\x01"


class Connection(Wire):
    """Takes events with `connection.receive(events)` and collects the bytes to write in `connection.out`."""

    def __init__(
        self, broker: Broker, *, peer: str, loopback: bool, address: str = "", external: str | None = None
    ) -> None:
        """`peer` is the client's first name, before it sends a connection name; `address` has no port.
        `external` is the user whom the client's certificate names, as in `Wire.external`."""
        super().__init__(
            broker, broker.open_session(self, name=peer, origin=Origin(address, loopback, "AMQP"))
        )
        self.external = external
        self.scanner = Scanner(
            message_max_bytes=broker.limits.message_max_bytes,
            unfinished_max_bytes=broker.limits.unfinished_max_bytes,
        )
        self.scanner.channels = set()
        self.backlog: deque[Event] = deque()
        """Events that wait for the next turn, or until earlier answers are written."""
        self._share = 0
        """Cost of the work that is still allowed in this turn."""
        self.done_cost = 0
        """Cost of all work done for this client so far, in the unit of `TurnShares`."""
        self.channels: dict[int, AmqpChannel] = {}
        self.closing: set[int] = set()
        """Channels closed by the broker whose close-ok has not arrived."""
        self._closed_by_both: set[int] = set()
        """Channels that both sides closed at once and whose close-ok has not arrived."""
        self.unsent_bytes = 0
        """Bytes in the socket's write buffer while the peer does not read."""
        self._waiting_bytes = 0
        """Bytes of the messages in the backlog, counted when the last events arrived."""
        self._buffered_bytes = 0
        """This connection's part of `broker.buffered_bytes`."""
        self.is_unreadable = False
        """Whether the peer's bytes can no longer be parsed: no close-ok is awaited from it."""
        self.peer_closes_socket = False
        """Whether the peer has closed the connection and was answered, so the peer closes the socket."""
        self.close_error: AmqpError | None = None
        """The error with which the broker has closed the connection."""
        self.peer_close: tuple[int, str] | None = None
        """Code and text with which the peer has closed the connection."""

    # state

    @property
    def publishes(self) -> bool:
        """Whether the client has published: alarms for memory and disk stop reading from publishers."""
        return self.session.publishes

    @property
    def awaits_login(self) -> bool:
        """Whether the password is being checked. Until then events stay in the backlog."""
        return self.state is State.AUTHENTICATING

    def describe(self) -> PeerView:
        return PeerView(
            "AMQP 0-9-1",
            self.writable,
            self.unsent_bytes,
            self.channel_max,
            self.frame_max,
            self.heartbeat_s,
            self.properties,
            self.mechanism,
            self.tls,
        )

    def consumer_prefetch(self, channel: int) -> int:
        return self.channels[channel].consumer_prefetch

    # input

    def receive(self, events: Sequence[Event]) -> None:
        """Handle events in order, until the turn's share is used up or too many bytes wait to be written.

        Events not handled stay in `backlog`; the socket calls again.
        """
        self.backlog.extend(events)
        share = self._share = self.broker.shares.of(self.session, self._demand(), now_us=self.broker.turn_us)
        backlog, waiting = self.backlog, State.AUTHENTICATING
        while backlog and self._share > 0 and self.state is not waiting and self.out_bytes < _OUT_BYTES_MAX:
            event = backlog.popleft()
            self._share -= _cost_of(event) if isinstance(event, MethodFrame) else 1
            if self.state is State.CLOSED:
                self.backlog.clear()
                break
            channel = getattr(event, "channel", 0)
            try:
                self._handle(event)
            except HungUp:
                self.lost()
            except (AmqpError, BrokerError) as error:
                self._fail(channel, error, event)
            except StorageError as error:
                self._fail(channel, InternalError(error.message), event)
        self.done_cost += share - max(self._share, 0)
        if not self.backlog:
            self._waiting_bytes = 0
        elif events:
            contents = [event.contents for event in self.backlog if isinstance(event, Contents)]
            self._waiting_bytes = sum(len(body) for messages in contents for _, body in messages)
        self.count_buffers()

    def _demand(self) -> Demand:
        """Return what kind of work the next event asks for."""
        event = self.backlog[0] if self.backlog else None
        if event is None or isinstance(event, Settlement):
            return Demand.SETTLEMENT
        if isinstance(event, Contents | ContentBegun):
            channel = self.channels.get(event.channel)
            if channel is None or channel.core.owed.confirms is None:
                return Demand.WORK
        return Demand.ANSWER

    def count_buffers(self) -> None:
        """Update `broker.buffered_bytes`, the memory of all connections. Called once per read."""
        buffered_bytes = self.scanner.unfinished_bytes + self._waiting_bytes + self.unsent_bytes
        if self.state is State.CLOSED:
            buffered_bytes = 0
        if buffered_bytes != self._buffered_bytes:
            self.broker.buffered_bytes += buffered_bytes - self._buffered_bytes
            self._buffered_bytes = buffered_bytes

    @property
    def fills_memory(self) -> bool:
        """Whether to stop reading from the connection while the broker is short of memory or disk."""
        return self.publishes or self.scanner.unfinished_bytes > _UNFINISHED_FREE_BYTES

    def _handle(self, event: Event) -> None:  # noqa: C901  # one case for each event
        match event:
            case Contents():
                channel = self._open_channel(event.channel)
                if channel is not None:
                    if not self.session.publishes:
                        self._note_publish(event.method)
                    self._publish(channel, event)
            case ContentBegun():
                channel = self._open_channel(event.channel)
                if channel is None:
                    self.scanner.skip(event.channel)
                else:
                    self._check_content(channel, event.method)
            case Settlement():
                channel = self._open_channel(event.channel)
                if channel is not None:
                    self._settle(channel, event)
            case MethodFrame(channel=0):
                self._handle_connection_method(event.payload)
            case MethodFrame():
                self._handle_method(event.channel, event.payload)
            case ProtocolHeader():
                handshake.greet(self, event.data)
            case Oversized():
                if self._open_channel(event.channel) is not None:
                    limit = self.broker.limits.message_max_bytes
                    raise PreconditionFailed(
                        f"message size {event.size_bytes} is larger than configured max size {limit}"
                    )
            case Overfull():
                if self._open_channel(event.channel) is not None:
                    limit = self.broker.limits.unfinished_max_bytes
                    raise ContentTooLarge(
                        f"unfinished messages of this connection take {event.unfinished_bytes} bytes, "
                        f"more than the limit of {limit}: finish some before you begin others"
                    )
            case Violation():
                self.is_unreadable |= event.lost
                if self.state is State.CLOSING:
                    return
                raise event.error if self.state is State.RUNNING else HungUp

    def _publish(self, channel: AmqpChannel, event: Contents) -> None:
        """Publish as many of the messages as fit into this turn, at least one.

        Not split into functions: with ten routing keys it runs for each message, and two more calls cost 5 %.
        """
        method, contents = event.method, event.contents
        route = self.routes.get(method)
        if route is None or route.version != channel.vhost.version:
            self._share -= _METHOD_COST
            route = publishing.find_route(channel, method)
        # Where headers decide, each binding may be a copy, and an alternate exchange another one.
        copies = len(route.exchange.router) + 1 if route.by_headers else len(route.queues)
        cost = _MESSAGE_COST + _COPY_COST * copies
        self._share -= len(contents) * cost
        if self._share < 0 and len(contents) > 1:
            count = max(1, len(contents) + self._share // cost)
            self.backlog.appendleft(event._replace(contents=contents[count:]))
            contents = contents[:count]
        if route.by_headers:
            publishing.publish_by_headers(channel, route, method, contents)
        else:
            broker_publishing.publish(channel.core, route, contents)

    def _check_content(self, channel: AmqpChannel, method: bytes) -> None:
        """Refuse a message whose content has not arrived yet if it will be refused when complete."""
        if method[:4] != PUBLISH:
            raise CommandInvalid("unimplemented method", method=(60, method[3]))
        if not self.publishes:
            self._note_publish(method)
        publishing.find_route(channel, method)

    def _settle(self, channel: AmqpChannel, first: Settlement) -> None:
        """Settle the deliveries of an event, and of the following events that differ only in their tags."""
        tags = [
            Tags(event.first, event.last, event.multiple) for event in (first, *self._take_similar(first))
        ]
        refusal = Verdict.REQUEUE if first.requeue else Verdict.REJECT
        settling.settle(channel.core, tags, Verdict.ACK if first.kind == ACK else refusal)

    def _take_similar(self, settlement: Settlement) -> Iterator[Settlement]:
        """Take the following events out of the backlog that differ from this settlement only in the tags."""
        backlog = self.backlog
        wanted = settlement.channel, settlement.kind, settlement.multiple, settlement.requeue
        while backlog and not settlement.multiple and isinstance(following := backlog[0], Settlement):
            if (following.channel, following.kind, following.multiple, following.requeue) != wanted:
                return
            yield following
            backlog.popleft()

    def _open_channel(self, number: int) -> AmqpChannel | None:
        """Return the channel, or None when the event must be ignored because the channel is closing."""
        channel = self.channels.get(number)
        if channel is None:
            if self.state is State.CLOSING or number in self.closing:
                return None
            if self.state is not State.RUNNING:
                raise HungUp
            raise ChannelError("expected 'channel.open'")
        return channel

    def _handle_method(self, number: int, payload: bytes) -> None:
        if self.state is State.CLOSING:
            return
        if self.state is not State.RUNNING:
            if self.state is State.OPENING:
                octets = ",".join(map(str, payload))
                raise UnexpectedFrame(f"type 1, all octets = <<{octets}>>", method=None)
            raise HungUp
        if payload[:4] == _ACCESS_REQUEST:
            if self._open_channel(number) is not None:
                self.send(frame(METHOD, number, _ACCESS_GRANTED))
            return
        method = methods.decode(payload)
        if number in self.closing:
            self._handle_while_closing(number, method)
        elif isinstance(method, commands.Channel.CloseOk) and number in self._closed_by_both:
            self._closed_by_both.discard(number)
        elif isinstance(method, commands.Channel.Open) and number not in self.channels:
            self._open(number)
        elif isinstance(method, commands.Channel.Close) and number in self.channels:
            self._scanned_channels().discard(number)
            self._end_channel(number).reply(commands.Channel.CloseOk())
        else:
            channel = self._open_channel(number)
            handler = HANDLERS.get(type(method))
            if handler is None:
                raise CommandInvalid("unimplemented method")
            assert channel is not None
            handler(channel, method)

    def _handle_while_closing(self, number: int, method: Method) -> None:
        """Handle a method on a channel that the broker has closed: all but close and close-ok are ignored."""
        if isinstance(method, commands.Channel.Open):
            raise ChannelError("second 'channel.open' seen")
        if isinstance(method, commands.Channel.CloseOk | commands.Channel.Close):
            self.closing.discard(number)
            self._scanned_channels().discard(number)
        if isinstance(method, commands.Channel.Close):
            self._closed_by_both.add(number)
            self.send_method(number, commands.Channel.CloseOk())

    # channels

    def _scanned_channels(self) -> set[int]:
        """Return the channels whose contents the scanner assembles: open ones, and those without close-ok."""
        assert self.scanner.channels is not None
        return self.scanner.channels

    def _open(self, number: int) -> None:
        if len(self.channels) >= self.channel_max:
            count = len(self.channels)
            raise NotAllowed(
                f"number of channels opened ({count}) has reached the negotiated channel_max "
                f"({self.channel_max})",
                method=None,
            )
        refusal = channel_refusal(self.broker, self.session.user)
        if refusal is not None:
            raise NotAllowed(refusal, method=None)
        self.channels[number] = AmqpChannel(self, number)
        # The scanner has added the channel, but a close may have removed it in between.
        self._scanned_channels().add(number)
        self.send_method(number, make(commands.Channel.OpenOk, channel_id=""))

    def _end_channel(self, number: int) -> AmqpChannel:
        """Close a channel: its publishes take effect, unacked deliveries are requeued, confirms dropped."""
        channel = self.channels.pop(number)
        channel.core.close()
        return channel

    def fail_channel(self, number: int, error: BrokerError) -> None:
        if number in self.channels:
            self._fail(number, error, None)

    def _note_publish(self, method: bytes) -> None:
        if not requeue.is_request(method):
            self.session.publishes = True
            if self.broker.blocked:
                self.tell_blocked(self.broker.blocked)

    # errors

    def _fail(self, number: int, failure: AmqpError | BrokerError, event: Event | None) -> None:
        error = as_amqp(failure) if isinstance(failure, BrokerError) else failure
        ids = error.method or (0, 0)
        if event is not None and error.method == (0, 0):
            ids = _method_ids(event)
        if isinstance(error, ChannelException) and number in self.channels and self.state is State.RUNNING:
            channel = self._end_channel(number)
            self.closing.add(number)
            self.scanner.skip(number)
            channel.reply(_close(commands.Channel.Close, error, ids))
        elif self.state is not State.CLOSING:
            self.close(error, ids=ids)

    def close(self, error: AmqpError, *, ids: tuple[int, int] = (0, 0)) -> None:
        """Send connection.close; the peer answers with close-ok."""
        if self.state in (State.CLOSING, State.CLOSED):
            return
        self.close_error = error
        self._end_channels()
        self.send_method(0, _close(commands.Connection.Close, error, ids))
        self.state = State.CLOSING

    def fail(self, sentence: str) -> None:
        self.close(InternalError(sentence))

    def force_close(self, reason: str) -> None:
        if self.state is State.RUNNING:
            self.close(ConnectionForced(reason))
        else:
            self.lost()

    def lost(self) -> None:
        """End the connection without connection.close, and requeue unacked deliveries."""
        if self.state is not State.CLOSED:
            self._end_channels()
            self.state = State.CLOSED
            self.session.has_output()
        self.session.end()
        self.count_buffers()

    def _end_channels(self) -> None:
        for number in list(self.channels):
            self._end_channel(number)
            self.scanner.skip(number)
        self.session.delete_exclusive_queues()

    # methods on channel 0

    def _handle_connection_method(self, payload: bytes) -> None:
        try:
            method = methods.decode(payload)
        except AmqpError:
            if self.state in (State.RUNNING, State.CLOSING):
                raise
            raise HungUp from None
        if isinstance(method, commands.Connection.Close) and self.state in (
            State.OPENING,
            State.RUNNING,
            State.CLOSING,
        ):
            self._end_channels()
            self.send_method(0, commands.Connection.CloseOk())
            # When both sides close at once, the peer's close-ok is still to come.
            if self.state is not State.CLOSING:
                self.state = State.CLOSED
                self.peer_close = method.reply_code or 0, method.reply_text
                self.peer_closes_socket = True
                self.session.end()
        elif self.state is State.CLOSING:
            if isinstance(method, commands.Connection.CloseOk):
                self.state = State.CLOSED
                self.session.has_output()
        elif self.state is State.STARTING and isinstance(method, commands.Connection.StartOk):
            handshake.log_in(self, method)
        elif self.state is State.TUNING and isinstance(method, commands.Connection.TuneOk):
            handshake.tune(self, method)
            self.scanner.frame_max = self.frame_max
        elif self.state is State.OPENING and isinstance(method, commands.Connection.Open):
            handshake.enter(self, method)
        elif self.state is State.RUNNING and isinstance(method, commands.Connection.UpdateSecret):
            self.send_method(0, commands.Connection.UpdateSecretOk())
        elif self.state is State.RUNNING:
            raise ChannelError("unexpected method in connection state running")
        else:
            raise HungUp

    # alarms

    def tell_blocked(self, reason: str | None) -> None:
        if self.publishes and self.understands("connection.blocked"):
            blocked = None if reason is None else make(commands.Connection.Blocked, reason=reason)
            self.send_method(0, blocked or commands.Connection.Unblocked())


def _cost_of(method: MethodFrame) -> int:
    return _DEFINITION_COST if method.payload[:2] in _DEFINITION_CLASSES else _METHOD_COST


def _method_ids(event: Event) -> tuple[int, int]:
    """Return the class id and the method id of an event's method."""
    match event:
        case MethodFrame():
            return int.from_bytes(event.payload[:2], "big"), int.from_bytes(event.payload[2:4], "big")
        case ContentBegun() | Contents() | Oversized() | Overfull():
            return 60, 40
        case Settlement():
            return 60, event.kind
    return 0, 0


def _close(
    kind: type[commands.Channel.Close | commands.Connection.Close], error: AmqpError, ids: tuple[int, int]
) -> Method:
    return make(kind, reply_code=error.code, reply_text=error.reply_text, class_id=ids[0], method_id=ids[1])
