"""Groups for tests over AMQP: members that join with `basic.consume`, and what an operator sees and does.

`join` makes a channel a member, `offsets` says what was delivered by its numbers, `Watched` looks at a group
on the broker's own thread and changes it there, as the HTTP API does. Nothing here waits without a bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from pamqp import commands
from pamqp.base import Frame

from leveret.amqp import methods
from leveret.broker.groups.group import Group
from leveret.broker.groups.partition import Partition
from leveret.broker.vhosts.vhost import VirtualHost
from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.semantics.client import Channel, Got

T = TypeVar("T")
Joined = Callable[..., Channel]
"""The fixture `joined`."""
STREAM = {"x-queue-type": "stream"}
MOMENT_S = 0.000_001


def arguments(group: str = "billing", **settings: Any) -> dict[str, Any]:
    """`arguments(mode="orderly", max_span=5)`: those of a `basic.consume` that joins."""
    named = {f"x-group-{name.replace('_', '-')}": value for name, value in settings.items()}
    return {"x-group": group, **named}


def join(
    channel: Channel,
    subject: str = "s",
    *,
    prefetch: int = 10,
    tag: str = "c",
    group: str = "billing",
    **settings: Any,
) -> Channel:
    """The channel is a member from here on."""
    channel.qos(prefetch)
    channel.consume(subject, tag, arguments=arguments(group, **settings))
    return channel


def stream(channel: Channel, name: str = "s", **more: Any) -> None:
    channel.declare(name, arguments={**STREAM, **more})


def topic(channel: Channel, count: int, name: str = "orders") -> list[str]:
    """A topic made as any client can make it; the names of its partitions."""
    channel.exchange(name, "x-consistent-hash")
    names = [f"{name}-{number}" for number in range(count)]
    for each in names:
        stream(channel, each)
        channel.bind(each, name, "1")
    return names


def publish(channel: Channel, *texts: str, stream: str = "s") -> None:
    """Confirmed, hence readable; on a channel of its own."""
    other = channel.client.channel().confirm_select()
    other.publish_confirmed(stream, *texts)
    other.close()


def synced(channel: Channel) -> None:
    """What has happened so far is on disk: a confirm says so."""
    other = channel.client.channel().confirm_select()
    other.declare("sync")
    other.publish_confirmed("sync", "now")
    other.close()


def dead_letter(channel: Channel, group: str = "billing") -> Got | None:
    """The next one of a group. Its queue has a name that pamqp would not let a client say."""
    get = methods.make(commands.Basic.Get, ticket=0, queue=f"%DLQ%{group}", no_ack=True)
    channel.client.send(methods.frame(channel.number, get))
    answer = channel.answer(Frame)
    return answer if isinstance(answer.method, commands.Basic.GetOk) else None


def numbered(count: int, start: int = 0) -> list[str]:
    return [f"m{number}" for number in range(start, start + count)]


def one_taken(channel: Channel, member: Channel, count: int = 1, **settings: Any) -> None:
    """So many messages of `s`, all of them with the member."""
    stream(channel)
    publish(channel, *numbered(count))
    join(member, **settings)
    assert received(member, count) == list(range(count))


def restart(broker: Broker, *, clean: bool) -> None:
    """Restart the broker, after a graceful stop or after a kill."""
    if clean:
        broker.restart()
    else:
        broker.crash()
        broker.start()


def comes_after(member: Channel, clock: VirtualClock, seconds: float) -> bool:
    """Whether nothing comes before that time, and one message then."""
    clock.advance(seconds - MOMENT_S)
    early = member.quiet()
    clock.advance(MOMENT_S)
    return not early and len(member.deliveries(1)) == 1


def offsets(found: Iterable[Got]) -> list[int]:
    return [got.headers["x-stream-offset"] for got in found]


def received(channel: Channel, count: int) -> list[int]:
    """The offsets of the next deliveries, of which there are so many."""
    return offsets(channel.deliveries(count))


class Watched:
    """A group as its operator has it: `watched.progress()`, `watched.change(paused=True)`."""

    def __init__(self, broker: Broker, subject: str = "s", group: str = "billing") -> None:
        self.broker = broker
        self.subject = subject
        self.name = group

    @property
    def vhost(self) -> VirtualHost:
        return self.broker.server.broker.vhosts["/"]

    def look(self, look: Callable[[Group], T]) -> T:
        return self.broker.call(lambda: look(self.vhost.groups.get(self.subject, self.name)))

    def at(self, look: Callable[[Partition], T], stream: str = "s") -> T:
        return self.look(lambda group: look(group.partitions[stream]))

    def watermark(self, stream: str = "s") -> int:
        return self.at(lambda partition: partition.watermark, stream)

    def lag(self) -> int:
        return self.look(lambda group: group.lag)

    def in_flight(self) -> int:
        return self.look(lambda group: group.in_flight)

    def stale_acks(self) -> int:
        return self.look(lambda group: group.stale_acks)

    def owners(self) -> dict[str, str | None]:
        """The consumer tag of who has each partition, in orderly mode."""
        return self.look(
            lambda group: {
                name: None if each.owner is None else each.owner.tag
                for name, each in group.partitions.items()
            }
        )

    # changes

    def act(self, act: Callable[[Group], T]) -> T:
        """Does something to it, in a turn of the broker."""

        def run() -> T:
            self.broker.server.turns.begin()
            return act(self.vhost.groups.get(self.subject, self.name))

        return self.broker.call(run)

    def change(self, **settings: Any) -> None:
        self.act(lambda group: self.vhost.groups.change(group, settings))

    def seek(self, offset: int, stream: str = "s") -> None:
        self.act(lambda group: group.partitions[stream].seek(offset, who=b"operator", why=b"a test"))

    def skip(self, offset: int, stream: str = "s") -> None:
        self.act(lambda group: group.partitions[stream].skip(offset, who=b"operator", why=b"a test"))

    def delete(self) -> None:
        self.act(self.vhost.groups.delete)
