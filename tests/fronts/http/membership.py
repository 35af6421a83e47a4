"""A member of a group, on a connection of its own, and what tests of groups look at inside of the broker.

Members are pika's: any AMQP client can be one. Waits are bounded, and end when something comes.
"""

from __future__ import annotations

import time
from typing import Any

import pika

from leveret.broker.groups.group import Group
from leveret.storage.journal import Entry
from leveret.testing.broker import WAIT_S, Broker


class Member:
    """`member = Member(url, "orders", "billing"); member.take(3)` are the offsets of three deliveries."""

    def __init__(self, url: str, subject: str, group: str, *, prefetch: int = 100, **arguments: Any) -> None:
        self.connection = pika.BlockingConnection(pika.URLParameters(url))
        self.channel = self.connection.channel()
        self.channel.basic_qos(prefetch_count=prefetch)
        self.tags: dict[tuple[str, int], int] = {}
        self.cancelled = False
        self._got: list[int] = []
        self.channel.add_on_cancel_callback(self._cancelled)
        given = {f"x-group-{name.replace('_', '-')}": value for name, value in arguments.items()}
        self.tag = self.channel.basic_consume(subject, self._receive, arguments={"x-group": group, **given})

    def _receive(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        offset = int(properties.headers["x-stream-offset"])
        self.tags[properties.headers["x-stream"], offset] = method.delivery_tag
        self._got.append(offset)

    def _cancelled(self, _: Any) -> None:
        self.cancelled = True

    def take(self, count: int) -> list[int]:
        """The offsets of the next deliveries, when there are so many."""
        deadline_s = time.monotonic() + WAIT_S
        while len(self._got) < count:
            assert time.monotonic() < deadline_s, f"{len(self._got)} of {count} deliveries came"
            self.connection.process_data_events(time_limit=0.05)
        taken, self._got = self._got[:count], self._got[count:]
        return taken

    def wait_until_cancelled(self) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not self.cancelled:
            assert time.monotonic() < deadline_s, "nobody has told it"
            self.connection.process_data_events(time_limit=0.05)

    def take_none(self) -> None:
        """What was sent before an answer of the broker to this member is here then: nothing was."""
        self.channel.queue_declare("amq.rabbitmq.reply-to", passive=True)
        self.connection.process_data_events(time_limit=0)
        assert self._got == []

    def ack(self, *offsets: int, stream: str) -> None:
        for offset in offsets:
            self.channel.basic_ack(self.tags[stream, offset])

    def nack(self, offset: int, *, stream: str, requeue: bool = True) -> None:
        self.channel.basic_nack(self.tags[stream, offset], requeue=requeue)

    def close(self) -> None:
        self.connection.close()


def group_of(broker: Broker, subject: str, name: str) -> Group:
    return broker.server.broker.vhosts["/"].groups.get(subject, name)


def journal_of(broker: Broker, subject: str, name: str, stream: str) -> list[Entry]:
    """What the cursor of a group in a stream has been through."""

    def read() -> list[Entry]:
        journal = group_of(broker, subject, name).partitions[stream].cursor.journal
        return [Entry.of(record) for record in journal.read([(journal.first, journal.next)])]

    return broker.call(read)
