"""basic.*: consume, get, recover, qos. Publishes and settlements are handled in `connection`."""

from __future__ import annotations

from typing import Any

from pamqp import commands as spec

from leveret.amqp import methods
from leveret.amqp.errors import NotAllowed, NotImplemented_
from leveret.amqp.frames import content_frames
from leveret.amqp.methods import make
from leveret.amqp.names import to_text
from leveret.broker.queues import direct_replies
from leveret.broker.sessions import consuming
from leveret.broker.sessions.consuming import ConsumeRequest, GetResult
from leveret.fronts.amqp.channel import AmqpChannel
from leveret.fronts.amqp.methods.fields import answer, queue_name, table_of

_REDELIVER_DELAY_US = 5_000


def qos(channel: AmqpChannel, method: spec.Basic.Qos) -> None:
    if method.prefetch_size:
        raise NotImplemented_(f"prefetch_size!=0 ({method.prefetch_size})")
    # A limit per consumer removes the limit of the channel.
    channel.core.change_prefetch(method.prefetch_count if method.global_ else 0)
    if not method.global_:
        channel.consumer_prefetch = method.prefetch_count
        if channel.connection.properties.get("product") == "py-amqp":
            _change_prefetch_of_consumers(channel, method.prefetch_count)
    channel.reply(spec.Basic.QosOk())


def _change_prefetch_of_consumers(channel: AmqpChannel, prefetch: int) -> None:
    """Change the prefetch of running consumers, as Kombu expects of a broker (decision 10).

    Except from RabbitMQ, Kombu expects what the specification says: the limit holds for the channel at once.
    Celery raises the limit for every task with a future ETA, and its consumer must notice. A delivery
    received together with the reply would stay in py-amqp's buffer until the next delivery, so deliveries
    wait 5 ms.
    """
    broker = channel.broker
    for consumer in channel.core.consumers.values():
        consumer.prefetch = prefetch
        source = consumer.source
        source.unblock(channel.core)
        broker.timers.set((source, "prefetch"), broker.turn_us + _REDELIVER_DELAY_US, source.wake)


def consume(channel: AmqpChannel, method: spec.Basic.Consume) -> None:
    if channel.core.has_consumer(method.consumer_tag):
        raise NotAllowed(f"attempt to reuse consumer tag '{method.consumer_tag}'")
    tag = method.consumer_tag or f"amq.ctag-{channel.broker.token()}"
    if method.queue == direct_replies.NAME:
        consuming.consume_replies(channel.core, tag, no_ack=method.no_ack)
        ticket = 0
    else:
        request = ConsumeRequest(
            queue_name(channel, method.queue),
            tag,
            no_ack=method.no_ack,
            exclusive=method.exclusive,
            prefetch=channel.consumer_prefetch,
            arguments=table_of(method),
        )
        ticket = consuming.consume(channel.core, request)
    if not method.nowait:
        channel.reply(make(spec.Basic.ConsumeOk, consumer_tag=tag), ticket=ticket)
    elif ticket:
        channel.core.owed.answer(b"", ticket=ticket)


def cancel(channel: AmqpChannel, method: spec.Basic.Cancel) -> None:
    consuming.cancel(channel.core, method.consumer_tag or "")
    answer(channel, method, make(spec.Basic.CancelOk, consumer_tag=method.consumer_tag))


def get(channel: AmqpChannel, method: spec.Basic.Get) -> None:
    name = queue_name(channel, method.queue)
    consuming.get(channel.core, name, no_ack=method.no_ack, encode=lambda got: _get_answer(channel, got))


def _get_answer(channel: AmqpChannel, got: GetResult | None) -> bytes:
    """Return the frames of get-ok or get-empty."""
    if got is None:
        return methods.frame(channel.number, spec.Basic.GetEmpty())
    get_ok = make(
        spec.Basic.GetOk,
        delivery_tag=got.tag,
        redelivered=got.redelivered,
        exchange=to_text(got.exchange),
        routing_key=to_text(got.key),
        message_count=got.left,
    )
    frame_max = channel.connection.frame_max
    content = content_frames(channel.number, got.header, got.body, frame_max=frame_max)
    return b"".join((methods.frame(channel.number, get_ok), *content))


def recover(channel: AmqpChannel, method: spec.Basic.Recover) -> None:
    recover_async(channel, method)
    channel.reply(spec.Basic.RecoverOk())


def recover_async(channel: AmqpChannel, method: spec.Basic.Recover | spec.Basic.RecoverAsync) -> None:
    if not method.requeue:
        raise NotImplemented_("requeue=false")
    consuming.recover(channel.core)


HANDLERS: dict[Any, Any] = {
    spec.Basic.Qos: qos,
    spec.Basic.Consume: consume,
    spec.Basic.Cancel: cancel,
    spec.Basic.Get: get,
    spec.Basic.Recover: recover,
    spec.Basic.RecoverAsync: recover_async,
}
