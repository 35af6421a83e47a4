"""Views of connections, their channels and their consumers, for every protocol.

A connection is a session of the broker. The session's peer, its front's end, describes the facts that only
the front knows (`session.PeerView`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from leveret.broker.canonical import Value
from leveret.broker.counters import Counters
from leveret.broker.groups.group import Group
from leveret.broker.queues import direct_replies
from leveret.broker.queues.consumer import NO_ARGUMENTS
from leveret.broker.queues.deliverer import Deliverer
from leveret.broker.sessions.channel import Channel
from leveret.broker.sessions.session import PeerView

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.queues.consumer import Consumer
    from leveret.broker.sessions.session import Session


class ConnectionView(NamedTuple):
    name: str
    """The addresses at both ends, and the client's name for the connection."""
    addresses: str
    """The addresses and ports at both ends, the client's first: RabbitMQ's name of the connection."""
    user: str
    vhost: str
    address: str
    """The peer's address without the port."""
    since_us: int
    state: str
    """`running`; `blocked` if its publishes are held back; `flow` if the client does not read its socket."""
    channels: int
    peer: PeerView
    counters: Counters
    """The counters of the connection and its channels together."""


class ChannelView(NamedTuple):
    connection: str
    addresses: str
    number: int
    user: str
    vhost: str
    confirms: bool
    transactional: bool
    prefetch: int
    """The limit that all consumers share; 0 for no limit."""
    consumer_prefetch: int
    """The limit of each consumer that starts from now on; 0 for no limit."""
    consumers: int
    unacked: int
    unconfirmed: int
    """Publishes that were neither acked nor nacked."""
    uncommitted: int
    """Publishes in an open transaction."""
    uncommitted_acks: int
    nacks: Mapping[str, int]
    """Refused publishes by reason."""
    idle_since_us: int | None
    """Time since which nothing was counted on the channel, or None if something was in the last seconds."""
    counters: Counters


class ConsumerView(NamedTuple):
    connection: str
    addresses: str
    channel: int
    tag: str
    user: str
    vhost: str
    queue: str
    """The queue; for a member of a group, the stream or topic that the group reads."""
    group: str | None
    acks: bool
    exclusive: bool
    active: bool
    """False if the queue has a single active consumer and it is another consumer."""
    prefetch: int
    priority: int
    timeout_us: int
    """Time that a delivery may take; 0 for no limit."""
    unacked: int
    arguments: Mapping[str, Value] = NO_ARGUMENTS
    is_single_active: bool = False
    """Whether the queue has a single active consumer, and it is this one."""


def session_at(broker: Broker, addresses: str) -> Session[Channel] | None:
    """Return the connection between these addresses: RabbitMQ's name of a connection."""
    return next((session for session in running(broker) if session.addresses == addresses), None)


def channel_at(broker: Broker, addresses: str, number: int) -> Channel | None:
    session = session_at(broker, addresses)
    channels = () if session is None else session.channels
    return next((channel for channel in channels if channel.number == number), None)


def running(
    broker: Broker, vhosts: Collection[str] | None = None, *, user: str | None = None
) -> Iterator[Session[Channel]]:
    """Return the sessions that have entered one of these virtual hosts, or any; of all users or one."""
    return (
        session
        for session in broker.sessions
        if session.peer.is_open
        and (vhosts is None or session.vhost.name in vhosts)
        and (user is None or session.user.name == user)
    )


def counters_of(session: Session[Channel]) -> Counters:
    """Return the sum of the counters of a connection and its channels."""
    sums = session.counters.copy()
    for channel in session.channels:
        sums.take_over(channel.counters)
    return sums


def consumer_view(consumer: Consumer) -> ConsumerView:
    """Return the view of a consumer, a reader's consumer or a member of a group."""
    channel = consumer.channel
    assert isinstance(channel, Channel)
    return _consumer(channel, consumer)


def describe(session: Session[Channel]) -> ConnectionView:
    peer = session.peer.describe()
    return ConnectionView(
        session.name,
        session.addresses,
        session.user.name,
        session.vhost.name,
        session.origin.address,
        session.since_us,
        _state(session, peer),
        len(session.channels),
        peer,
        counters_of(session),
    )


def _state(session: Session[Channel], peer: PeerView) -> str:
    if session.publishes and session.broker.blocked is not None:
        return "blocked"
    return "running" if peer.reads else "flow"


def sorted_channels(session: Session[Channel]) -> list[Channel]:
    return sorted(session.channels, key=attrgetter("number"))


def describe_channel(channel: Channel) -> ChannelView:
    transaction, history = channel.transaction, channel.counters.history
    return ChannelView(
        channel.session.name,
        channel.session.addresses,
        channel.number,
        channel.session.user.name,
        channel.vhost.name,
        channel.owed.confirms is not None,
        transaction is not None,
        channel.prefetch,
        channel.session.peer.consumer_prefetch(channel.number),
        _consumer_count_on(channel),
        channel.unacked.count,
        0 if channel.owed.confirms is None else len(channel.owed.confirms),
        0 if transaction is None else sum(len(messages) for _, messages in transaction.publishes),
        0 if transaction is None else sum(map(len, transaction.settled())),
        dict(channel.nack_reasons),
        channel.session.since_us if history is None else history.unchanged_since_us,
        channel.counters.copy(),
    )


def _consumer_count_on(channel: Channel) -> int:
    return len(channel.consumers) + (channel.reply_tag is not None)


def consumers_on(channel: Channel) -> list[tuple[Channel, Consumer | None]]:
    """Return the channel with each of its consumers, and with None for its consumer of direct replies."""
    found: list[tuple[Channel, Consumer | None]] = [
        (channel, consumer) for _, consumer in sorted(channel.consumers.items())
    ]
    return found if channel.reply_tag is None else [*found, (channel, None)]


def describe_consumer(part: tuple[Channel, Consumer | None]) -> ConsumerView | None:
    """Return the view of an element of `consumers_on`; None if the consumer has ended meanwhile."""
    channel, consumer = part
    if consumer is not None:
        return _consumer(channel, consumer) if consumer.tag in channel.consumers else None
    if channel.reply_tag is None:
        return None
    own = _identity(channel, channel.reply_tag)
    return ConsumerView(*own, direct_replies.NAME, None, False, False, True, 0, 0, 0, 0)


def _consumer(channel: Channel, consumer: Consumer) -> ConsumerView:
    source = consumer.source
    queue, group = (source.subject, source.name) if isinstance(source, Group) else (source.name, None)
    active = source.consumers.active if isinstance(source, Deliverer) else None
    return ConsumerView(
        *_identity(channel, consumer.tag),
        queue,
        group,
        not consumer.no_ack,
        consumer.exclusive,
        active in (None, consumer),
        consumer.prefetch,
        consumer.priority,
        consumer.timeout_us,
        consumer.outstanding,
        consumer.arguments,
        active is consumer,
    )


def _identity(channel: Channel, tag: str) -> tuple[str, str, int, str, str, str]:
    session = channel.session
    return session.name, session.addresses, channel.number, tag, session.user.name, channel.vhost.name
