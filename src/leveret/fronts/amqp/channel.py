"""An AMQP channel: the broker's `Outlet` that turns deliveries, confirms, returns and answers into frames.

Owns what only AMQP knows of a channel: the prefetch of consumers started later, and the queue declared last.
Delivery tags, credit and closing are left to the broker's `Channel`, here `core`. Requests of the client are
handled in `connection`, `publishing` and `methods/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING, Final

from pamqp import commands

from leveret.amqp import methods
from leveret.amqp.deliveries import deliver_frames
from leveret.amqp.frames import END, FRAME, METHOD, content_frames
from leveret.amqp.methods import Method, make
from leveret.broker.sessions.channel import Channel
from leveret.fronts.amqp.wire import DELIVER_BYTES_MAX, Wire

if TYPE_CHECKING:
    from leveret.broker.errors import BrokerError
    from leveret.broker.queues.consumer import Consumer
    from leveret.broker.sessions.outlet import Deliveries
    from leveret.broker.sessions.route import Route

NO_ROUTE: Final = 312
_CONFIRM: Final = Struct(">HHQB")
_BASIC: Final = 60
_ACK, _NACK = 80, 120


class AmqpChannel:
    """One channel of a connection; `channel.core` is the broker's `Channel`."""

    def __init__(self, connection: Wire, number: int) -> None:
        self.connection = connection
        self.number = number
        self.broker = connection.broker
        self.session = connection.session
        self.vhost = connection.session.vhost
        self.core = Channel(connection.session, self, number=number)
        self.consumer_prefetch = 0
        """Prefetch of consumers started from now on."""
        self.last_queue = ""
        """Name of the queue declared last, which an empty queue name stands for."""

    def reply(self, method: Method, *, defined: int = 0, ticket: int = 0) -> None:
        """Send a method after all earlier ones, once the definition and the ticket are durable."""
        self.core.owed.answer(methods.frame(self.number, method), defined=defined, ticket=ticket)

    # Outlet

    @property
    def has_room(self) -> bool:
        connection = self.connection
        return connection.writable and connection.out_bytes < DELIVER_BYTES_MAX

    def has_room_for_reply(self, size_bytes: int) -> bool:
        connection = self.connection
        if connection.writable:
            connection.unread_reply_bytes = 0
            return True
        connection.unread_reply_bytes += size_bytes
        return connection.unread_reply_bytes <= connection.broker.limits.unread_replies_max_bytes

    def deliver(self, consumer_tag: bytes, run: Deliveries) -> None:
        self.connection.send_all(
            deliver_frames(
                self.number,
                consumer_tag,
                run.first_tag,
                exchanges=run.exchanges,
                keys=run.keys,
                headers=run.headers,
                bodies=run.bodies,
                redelivered=run.redelivered,
                frame_max=self.connection.frame_max,
            )
        )

    def answer(self, data: bytes) -> None:
        self.connection.send(data)

    def confirm(self, last: int, *, nack: bool, multiple: bool) -> None:
        payload = _CONFIRM.pack(_BASIC, _NACK if nack else _ACK, last, multiple)
        self.connection.send(FRAME.pack(METHOD, self.number, len(payload)) + payload + END)

    def return_messages(self, route: Route, contents: Sequence[tuple[bytes, bytes]]) -> None:
        returned = make(
            commands.Basic.Return,
            reply_code=NO_ROUTE,
            reply_text="NO_ROUTE",
            exchange=route.exchange.name,
            routing_key=route.key,
        )
        frame, frame_max = methods.frame(self.number, returned), self.connection.frame_max
        for header, body in contents:
            content = content_frames(self.number, header, body, frame_max=frame_max)
            self.connection.send_all([frame, *content])

    def cancel(self, consumer: Consumer) -> bool:
        if not self.connection.understands("consumer_cancel_notify"):
            return False
        self.broker.tell_later(lambda: self._tell_cancelled(consumer))
        return True

    def _tell_cancelled(self, consumer: Consumer) -> None:
        if not self.core.closed:
            self.reply(make(commands.Basic.Cancel, consumer_tag=consumer.tag, nowait=True))

    def fail(self, error: BrokerError) -> None:
        self.connection.fail_channel(self.number, error)
