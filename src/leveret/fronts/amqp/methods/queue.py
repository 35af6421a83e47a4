"""queue.*: declare, bind, unbind, purge and delete queues."""

from __future__ import annotations

from typing import Any

from pamqp import commands as spec

from leveret.amqp.methods import make
from leveret.broker.errors import NotFound, PreconditionFailed
from leveret.broker.queues import arguments, direct_replies
from leveret.broker.queues.arguments import declared_settings
from leveret.broker.queues.queue import Queue
from leveret.broker.vhosts.destination import Destination
from leveret.broker.vhosts.reserved_names import check_not_default, check_not_reserved, cleaned
from leveret.fronts.amqp.channel import AmqpChannel
from leveret.fronts.amqp.methods.fields import answer, queue_name, table_of


def declare(channel: AmqpChannel, method: spec.Queue.Declare) -> None:
    name = cleaned(method.queue)
    if name == direct_replies.NAME or (method.passive and direct_replies.is_reply_key(name)):
        _declare_reply(channel, name, method)
        return
    if method.passive:
        queue = channel.vhost.queue(name)
        queue.check_access(channel.session)
    else:
        queue = _declare(channel, name, method)
    queue.used()
    channel.last_queue = queue.name
    if not method.nowait:
        channel.broker.bring_up_to_date(queue)
        reply = make(
            spec.Queue.DeclareOk,
            queue=queue.name,
            message_count=queue.ready,
            consumer_count=queue.consumer_count,
        )
        channel.reply(reply, defined=queue.defined)
    elif queue.defined:
        channel.core.owed.await_definition(queue.defined)


def _declare_reply(channel: AmqpChannel, name: str, method: spec.Queue.Declare) -> None:
    """Answer a declare of a direct-reply queue: whether its requester still waits."""
    if name != direct_replies.NAME and not channel.broker.replies.exists(name):
        raise NotFound(f"no queue '{name}' in vhost '{channel.vhost.name}'")
    answer(channel, method, make(spec.Queue.DeclareOk, queue=name, message_count=0, consumer_count=1))


def _declare(channel: AmqpChannel, name: str, method: spec.Queue.Declare) -> Destination:
    vhost, session = channel.vhost, channel.session
    generated = not name
    if generated:
        name = f"amq.gen-{channel.broker.token()}"
    session.check_access("configure", "queue", name)
    current = vhost.queues.get(name)
    if current is not None:
        _check_equivalent(channel, current, method)
        channel.broker.counters.churn.queues_declared += 1
        return current
    if generated:
        arguments.check_server_named(table_of(method))
    else:
        check_not_reserved("queue", name)
    wanted = declared_settings(table_of(method), queue=name, vhost=vhost.name)
    if wanted.queue_type != "classic":
        arguments.check_lasting(
            queue=name,
            vhost=vhost.name,
            durable=method.durable,
            exclusive=method.exclusive,
            auto_delete=method.auto_delete,
        )
    arguments.check_segment_bytes(wanted)
    if wanted.queue_type == "stream":
        vhost.groups.check_declaration(name)
    if wanted.dead_letter_exchange is not None:
        session.check_access("read", "queue", name)
        session.check_access("write", "exchange", wanted.dead_letter_exchange)
    return vhost.add_queue(
        name,
        durable=method.durable,
        auto_delete=method.auto_delete,
        owner=channel.session if method.exclusive else None,
        table=table_of(method),
        declared=wanted,
    )


def _check_equivalent(channel: AmqpChannel, current: Destination, method: spec.Queue.Declare) -> None:
    subject = {"kind": "queue", "name": current.name, "vhost": channel.vhost.name}
    current.check_access(channel.session)
    if method.exclusive != (current.owner is not None):
        raise current.locked()
    arguments.check_same("durable", current.durable, method.durable, **subject)
    arguments.check_same("auto_delete", current.auto_delete, method.auto_delete, **subject)
    arguments.check_equivalent(current.table, table_of(method), **subject)


def _check_binding(channel: AmqpChannel, method: spec.Queue.Bind | spec.Queue.Unbind) -> tuple[str, str]:
    """Return the queue's name and the routing key; raise if the user may not bind them."""
    name, key = queue_name(channel, cleaned(method.queue)), method.routing_key
    if not method.queue and not key:
        key = name
    check_not_default(method.exchange)
    channel.session.check_access("write", "queue", name)
    channel.session.check_access("read", "exchange", method.exchange)
    return name, key


def bind(channel: AmqpChannel, method: spec.Queue.Bind) -> None:
    name, key = _check_binding(channel, method)
    exchange = channel.vhost.exchange(method.exchange)
    queue = channel.vhost.queue(name)
    queue.check_access(channel.session)
    exchange.router.check_arguments(table_of(method))
    defined = channel.vhost.bind(exchange, queue, key, table_of(method))
    answer(channel, method, spec.Queue.BindOk(), defined=defined)


def unbind(channel: AmqpChannel, method: spec.Queue.Unbind) -> None:
    name, key = _check_binding(channel, method)
    exchange = channel.vhost.exchanges.get(method.exchange)
    queue = channel.vhost.queues.get(name)
    defined = 0
    if exchange is not None and queue is not None:
        if exchange.router.has(queue, key, table_of(method)):
            queue.check_access(channel.session)
        channel.vhost.groups.check_unbind(exchange, queue)
        defined = channel.vhost.unbind(exchange, queue, key, table_of(method))
    channel.reply(spec.Queue.UnbindOk(), defined=defined)


def purge(channel: AmqpChannel, method: spec.Queue.Purge) -> None:
    name = queue_name(channel, cleaned(method.queue))
    channel.session.check_access("read", "queue", name)
    channel.vhost.queue(name).check_access(channel.session)
    queue = channel.vhost.plain_queue(name, what="queue.purge")
    channel.broker.bring_up_to_date(queue)
    count = queue.purge(who=channel.core.label(""))
    answer(channel, method, spec.Queue.PurgeOk(count))


def delete(channel: AmqpChannel, method: spec.Queue.Delete) -> None:
    name = queue_name(channel, cleaned(method.queue))
    channel.session.check_access("configure", "queue", name)
    queue = channel.vhost.queues.get(name)
    count = defined = ticket = 0
    if queue is not None:
        queue.check_access(channel.session)
        channel.broker.bring_up_to_date(queue)
        if name in channel.vhost.streams:
            channel.vhost.groups.check_deletion(channel.vhost.streams[name])
        else:
            count = _count_deleted(channel.vhost.plain_queues[name], method)
        defined = channel.vhost.delete_queue(queue)
        # Before the ticket is durable, a crash could bring the queue back.
        ticket = channel.broker.store.ticket if queue.durable else 0
    if not method.nowait:
        channel.reply(spec.Queue.DeleteOk(count), defined=defined, ticket=ticket)


def _count_deleted(queue: Queue, method: spec.Queue.Delete) -> int:
    """Return how many messages a deletion removes; raise if if-unused or if-empty forbids it."""
    if method.if_unused and (queue.consumers or queue.is_held):
        raise PreconditionFailed(f"{queue} in use")
    count = queue.ready + queue.delayed
    if method.if_empty and (count or queue.hidden):
        raise PreconditionFailed(f"{queue} not empty")
    return count


HANDLERS: dict[Any, Any] = {
    spec.Queue.Declare: declare,
    spec.Queue.Bind: bind,
    spec.Queue.Unbind: unbind,
    spec.Queue.Purge: purge,
    spec.Queue.Delete: delete,
}
