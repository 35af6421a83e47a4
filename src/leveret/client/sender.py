"""Sending messages, again after a lost connection, and finding out what became of them.

Messages wait in an outbox until there is a channel, then in `Unconfirmed` until the broker confirms them.
When a connection ends, unconfirmed messages go back to the head of the outbox. They are sent again, in
order, marked `x-republished`, because they may be stored already. When the broker closes only the channel,
the culprit gets the broker's reason and the other messages go out on a new channel. The rule: a receipt is
*nacked* only if the message is certainly not stored. If it may be stored, the receipt is *lost*.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from pamqp import commands

from leveret.amqp import properties
from leveret.amqp.errors import AmqpError
from leveret.amqp.events import Settlement
from leveret.amqp.frames import BODY, END, FRAME, HEADER, METHOD, OVERHEAD_BYTES, content_frames
from leveret.amqp.methods import make
from leveret.amqp.scanner import ACK
from leveret.client.backoff import Backoff
from leveret.client.channel import Channel, Content
from leveret.client.close_cause import certainly_refused, find_culprit, mark_doubt
from leveret.client.connection import Connection
from leveret.client.direct_replies import Replies
from leveret.client.errors import ChannelClosed, ClientError, Closed, ConfirmTimeout, ConnectionBlocked
from leveret.client.exchanges import KnownExchanges
from leveret.client.hooks import notice
from leveret.client.message import SEQ
from leveret.client.receipt import Doubt, Receipt, Status
from leveret.client.session import Session
from leveret.client.unconfirmed import Unconfirmed

_CHUNK_BYTES: Final = 256 << 10
"""Bytes that are written before the socket is asked whether it takes more."""
_FRAMES_MAX: Final = 1024
_EAGER: Final = 200
"""Messages that are written without waiting for the end of the turn: 25 % more messages a second."""
_RENEWALS: Final = Backoff(initial_s=0.5, multiplier=2.0, max_s=10.0, jitter=0.0)
_FRAME_MAX: Final = 131_072
_SMALL_BYTES: Final = 4000
_MARK_BYTES: Final = 32
"""Room for the header `x-republished`."""


class Sender:
    """`sender.put(receipt)`; `resolve` is called with receipts and their final status."""

    def __init__(
        self,
        connection: Connection,
        *,
        confirms: bool,
        resolve: Callable[[Iterable[Receipt], Status], None],
        returned: Callable[[Receipt], None],
        replies: Replies | None = None,
    ) -> None:
        self._connection = connection
        self._replies = replies
        self._confirms = confirms
        self._resolve = resolve
        self._on_returned = returned
        self._outbox: deque[Receipt] = deque()
        self._unconfirmed = Unconfirmed()
        self._isolating = 0
        """How many of the next messages are sent one at a time, to find the one that the broker refuses."""
        self._session: Session | None = None
        """The session of the channel, also while it is being opened."""
        self._open_error: ClientError | None = None
        """The error of the last attempt to open a channel, or None."""
        self._channel: Channel | None = None
        self._frames: dict[bytes, bytes] = {}
        """Method frames for the channel, by their payload."""
        self._pump_due = False
        self._closed = False
        self._exchanges = KnownExchanges(on_found=self._pump, on_missing=self._exchange_missing)
        self._has_acked = False
        """Whether the broker has acked a message on this channel."""
        self._resting = False
        """Whether nothing more is sent on this channel, because it is about to be replaced."""
        self._renewals = 0
        self._renewal: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None

    @property
    def sending(self) -> bool:
        """Whether there is a channel, and the broker takes messages."""
        # Read the attribute once: other threads ask too.
        channel = self._channel
        return channel is not None and channel.session.blocked is None

    def failure(self, waited_s: float) -> ClientError:
        """Return why nothing was sent in this time."""
        if self._open_error is not None and self._connection.session is not None:
            return self._open_error
        if not self.sending:
            return self._connection.failure(waited_s)
        sentence = f"the broker has not read from its socket for {waited_s:.3g} s"
        return ConnectionBlocked(sentence, hint="it is behind; nothing of this message was sent")

    def check_size(self, header: bytes) -> None:
        """Raise `ValueError` for a content header that does not fit into one frame."""
        if len(header) <= _SMALL_BYTES:
            return
        frame_max = self._channel.session.frame_max if self._channel is not None else _FRAME_MAX
        if frame_max and len(header) > frame_max - OVERHEAD_BYTES - _MARK_BYTES:
            raise ValueError(
                f"the properties take {len(header)} bytes, but a frame holds at most {frame_max}"
            )

    def put(self, receipt: Receipt) -> None:
        self._outbox.append(receipt)
        if not self._pump_due:
            self._pump_soon()
        elif len(self._outbox) >= _EAGER and not self._isolating:
            # The broker works on these messages while the caller makes more.
            self._pump()
            # `_pump` has reset this, but the call at the end of the turn is still to come.
            self._pump_due = True

    def open_receipts(self) -> list[Receipt]:
        """Return the receipts that are pending, in order."""
        return [*self._unconfirmed, *self._outbox]

    def give_up(self, now_s: float) -> None:
        """Resolve receipts whose deadline has passed as lost."""
        late = [receipt for receipt in self._unconfirmed if receipt.deadline_s <= now_s]
        for receipt in late:
            waited_s = now_s - receipt.started_s
            receipt.cause = ConfirmTimeout(f"no confirm of {receipt.message_id} came in {waited_s:.3g} s")
        unsent = [receipt for receipt in self._outbox if receipt.deadline_s <= now_s]
        for receipt in unsent:
            if not receipt.attempts or receipt.cause is None:
                receipt.cause = self.failure(now_s - receipt.started_s)
        if unsent:
            self._outbox = deque(receipt for receipt in self._outbox if receipt.deadline_s > now_s)
        if late or unsent:
            self._resolve((*late, *unsent), Status.LOST)
            self._unconfirmed.trim()
            self._renew_if_at_rest()
            self._pump_soon()

    async def close(self, error: ClientError) -> None:
        self._closed = True
        channel = self._channel
        self._give_up_all(error)
        if channel is not None:
            self._let_go(channel)
            await channel.close()

    def _give_up_all(self, error: ClientError) -> None:
        pending = [*self._unconfirmed.take_all(), *self._outbox]
        self._outbox.clear()
        for receipt in pending:
            receipt.cause = error
        self._resolve(pending, Status.LOST)

    # the connection's tenant

    async def attach(self, session: Session) -> None:
        """Open a channel on this session and send what waits, the oldest message first."""
        if self._session is session or self._closed:
            return
        self._session = session
        try:
            await self._open(session)
        except BaseException as error:
            if self._session is session:
                self._session = None
            self._open_error = error if isinstance(error, ClientError) else None
            raise

    async def _open(self, session: Session) -> None:
        channel = await session.open_channel()
        channel.on_ended = self._channel_ended
        channel.on_settled = self._settled
        channel.on_returned = self._returned
        if self._confirms:
            await channel.call(make(commands.Confirm.Select, nowait=False))
        if self._replies is not None:
            await self._replies.consume(channel)
        if self._closed:
            channel.on_ended = _ignore
            await channel.close()
            return
        self._open_error = None
        self._frames.clear()
        self._exchanges.forget_all()
        self._has_acked = False
        self._channel = channel
        session.on_writable.append(self._pump)
        self._pump()

    def detach(self, error: ClientError) -> None:
        """Resolve all receipts as lost if the connection was closed.

        When only the session has ended, `_channel_ended` has been called already.
        """
        if isinstance(error, Closed):
            self._give_up_all(error)

    def blocked(self, reason: str | None) -> None:
        if reason is None:
            self._pump()

    # onto the wire

    def _pump_soon(self) -> None:
        asyncio.get_running_loop().call_soon(self._pump)
        self._pump_due = True

    def _pump(self) -> None:
        """Write messages from the outbox while the socket takes them."""
        self._pump_due = False
        channel, session = self._channel, self._session
        while self._outbox and channel is not None and session is not None and channel.error is None:
            if not session.writable or session.blocked is not None or self._resting:
                return
            if self._isolating and len(self._unconfirmed):
                return
            chunk = self._next_chunk(session)
            if not chunk:
                return
            self._write(channel, chunk)
            session.flush()

    def _next_chunk(self, session: Session) -> list[Receipt]:
        """Take the next messages from the outbox, up to the first whose exchange must be asked for."""
        chunk: list[Receipt] = []
        outbox, known = self._outbox, self._exchanges.known
        size = 0
        while outbox and size < _CHUNK_BYTES:
            receipt = outbox[0]
            if receipt.exchange not in known and self._confirms:
                self._exchanges.ask(session, receipt.exchange)
                break
            chunk.append(outbox.popleft())
            size += len(receipt.body) + 256
            if self._isolating:
                self._isolating -= 1
                break
        return chunk

    def _exchange_missing(self, exchange: str, error: ChannelClosed) -> None:
        """Refuse the messages in the outbox for an exchange that does not exist."""
        refused = [receipt for receipt in self._outbox if receipt.exchange == exchange]
        self._outbox = deque(receipt for receipt in self._outbox if receipt.exchange != exchange)
        self._refuse(refused, f"{error.code} {error.text}", error)
        self._pump()

    def _write(self, channel: Channel, receipts: list[Receipt]) -> None:
        """Write all frames of these messages at once: about 1 us a message."""
        number = channel.number
        frame_max = channel.session.frame_max
        body_max = frame_max - OVERHEAD_BYTES if frame_max else 1 << 62
        frames, head, add = self._frames, FRAME.pack, self._unconfirmed.add
        pieces: list[bytes] = []
        for receipt in receipts:
            method = frames.get(receipt.method)
            if method is None:
                if len(frames) >= _FRAMES_MAX:
                    frames.clear()
                payload = receipt.method
                method = frames[payload] = head(METHOD, number, len(payload)) + payload + END
            header, body = receipt.header, receipt.body
            if 0 < len(body) <= body_max:
                pieces += (method, head(HEADER, number, len(header)), header, END)
                pieces += (head(BODY, number, len(body)), body, END)
            else:
                pieces += (method, *content_frames(number, header, body, frame_max=frame_max))
            receipt.attempts += 1
            if self._confirms:
                add(receipt)
        channel.session.send(b"".join(pieces))
        if not self._confirms:
            self._resolve(receipts, Status.SENT)

    # answers of the broker

    def _settled(self, event: Settlement) -> None:
        receipts = self._unconfirmed.settled(event)
        if event.kind == ACK:
            self._renewals = 0
            self._has_acked = True
            self._resolve(receipts, Status.CONFIRMED)
        else:
            self._refuse(receipts, "a queue refused it or could not write it")
            if not self._has_acked and self._renewal is None and self._connection.sessions > 1:
                delay_s = _RENEWALS.delay_s(self._renewals + 1)
                self._renewal = asyncio.get_running_loop().call_later(delay_s, self._rest)
        self._unconfirmed.trim()
        self._renew_if_at_rest()
        if self._outbox and not self._pump_due:
            self._pump_soon()

    def _rest(self) -> None:
        """Replace a channel on which nothing was ever acked, as soon as nothing on it is unconfirmed.

        RabbitMQ 3.10 nacks every publish on a channel that was opened while a quorum queue elected a leader.
        """
        self._resting = not self._has_acked
        self._renew_if_at_rest()

    def _renew_if_at_rest(self) -> None:
        channel = self._channel
        if self._resting and channel is not None and not len(self._unconfirmed):
            self._renewals += 1
            self._let_go(channel)
            self._closing = asyncio.get_running_loop().create_task(channel.close())
            self._connection.attach(self)

    def _returned(self, content: Content) -> None:
        method = content.method
        assert isinstance(method, commands.Basic.Return)
        try:
            seq = properties.headers_of(content.header).get(SEQ)
        except AmqpError:
            seq = None
        address = method.exchange or "", method.routing_key or ""
        receipt = self._unconfirmed.returned(seq, *address) if isinstance(seq, int) else None
        if receipt is not None and not receipt.done:
            receipt.reply_code, receipt.reply_text = method.reply_code or 0, method.reply_text
            self._on_returned(receipt)

    def _refuse(self, receipts: Iterable[Receipt], reason: str, cause: ClientError | None = None) -> None:
        """Resolve refused messages as nacked, or as lost if an earlier attempt may have stored them."""
        nacked: list[Receipt] = []
        lost: list[Receipt] = []
        for receipt in receipts:
            receipt.reason = reason
            receipt.cause = cause or receipt.cause
            (nacked if certainly_refused(receipt, cause) else lost).append(receipt)
        self._resolve(nacked, Status.NACKED)
        self._resolve(lost, Status.LOST)

    # the end of a channel

    def _channel_ended(self, error: ClientError) -> None:
        """Send again what is unconfirmed, except the publish that the broker closed the channel for."""
        if self._channel is None:
            self._session = None
            return
        has_overdue = self._unconfirmed.has_overdue
        receipts = self._let_go(self._channel)
        if isinstance(error, ChannelClosed):
            receipts = self._refuse_culprit(receipts, error, has_overdue=has_overdue)
            self._connection.attach(self)
        else:
            mark_doubt(receipts, Doubt.CUT_OFF, error)
        self._outbox.extendleft(reversed(receipts))

    def _refuse_culprit(
        self, receipts: list[Receipt], error: ChannelClosed, *, has_overdue: bool
    ) -> list[Receipt]:
        """Refuse the publish that the broker closed the channel for, and return the others.

        The culprit is unknown while a receipt is overdue: it may be that one, which is resolved already.
        """
        if not self._confirms:
            sentence = f"{error}: earlier publishes on this channel may be lost too (confirm='none')"
            notice(self._connection.hooks, "channel_closed", sentence, code=error.code, text=error.text)
            return receipts
        culprit = None if has_overdue else find_culprit(receipts, error)
        if culprit is None:
            mark_doubt(receipts, Doubt.SUSPECT, error)
            self._isolating = len(receipts)
            return receipts
        mark_doubt(receipts[:culprit], Doubt.CUT_OFF, error)
        self._refuse([receipts[culprit]], f"{error.code} {error.text}", error)
        return receipts[:culprit] + receipts[culprit + 1 :]

    def _let_go(self, channel: Channel) -> list[Receipt]:
        """Leave the channel, and return the receipts on it that are pending."""
        self._channel = self._session = None
        channel.on_ended = channel.on_settled = channel.on_returned = _ignore
        self._resting = False
        if self._renewal is not None:
            self._renewal.cancel()
            self._renewal = None
        if self._pump in channel.session.on_writable:
            channel.session.on_writable.remove(self._pump)
        return self._unconfirmed.take_all()


def _ignore(_: object) -> None:
    return None
