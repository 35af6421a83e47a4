"""queue.*: declare, bind, unbind, purge and delete queues."""

from __future__ import annotations

from typing import Any

from pamqp import commands as spec

from leveret.amqp.methods import make
from leveret.broker.errors import NotFound
from leveret.broker.operations import bindings, queues
from leveret.broker.operations.bindings import WantedBinding
from leveret.broker.operations.queues import QueueDeclaration
from leveret.broker.queues import direct_replies
from leveret.broker.vhosts.destination import Destination
from leveret.broker.vhosts.reserved_names import cleaned
from leveret.fronts.amqp.channel import AmqpChannel
from leveret.fronts.amqp.methods.fields import answer, in_turn, queue_name, requester, table_of


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
    wanted = QueueDeclaration(
        name,
        durable=method.durable,
        auto_delete=method.auto_delete,
        exclusive=method.exclusive,
        table=table_of(method),
    )
    queue, _ = queues.declare(channel.broker, requester(channel), wanted, begin=in_turn)
    return queue


def bind(channel: AmqpChannel, method: spec.Queue.Bind) -> None:
    defined = bindings.bind(requester(channel), _wanted(channel, method), begin=in_turn)
    answer(channel, method, spec.Queue.BindOk(), defined=defined)


def unbind(channel: AmqpChannel, method: spec.Queue.Unbind) -> None:
    defined = bindings.unbind(requester(channel), _wanted(channel, method), begin=in_turn)
    channel.reply(spec.Queue.UnbindOk(), defined=defined)


def _wanted(channel: AmqpChannel, method: spec.Queue.Bind | spec.Queue.Unbind) -> WantedBinding:
    """Return the binding; without a queue and a key, both are those of the queue declared last."""
    name, key = queue_name(channel, cleaned(method.queue)), method.routing_key
    if not method.queue and not key:
        key = name
    return WantedBinding(method.exchange, name, is_queue=True, key=key, table=table_of(method))


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
    deleted = queues.delete(
        channel.broker,
        requester(channel),
        name,
        if_unused=method.if_unused,
        if_empty=method.if_empty,
        begin=in_turn,
    )
    if not method.nowait:
        reply = spec.Queue.DeleteOk(deleted.messages)
        channel.reply(reply, defined=deleted.defined, ticket=deleted.ticket)


HANDLERS: dict[Any, Any] = {
    spec.Queue.Declare: declare,
    spec.Queue.Bind: bind,
    spec.Queue.Unbind: unbind,
    spec.Queue.Purge: purge,
    spec.Queue.Delete: delete,
}
