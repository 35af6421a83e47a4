"""Spans from publish to settlement: their names, parents, links, attributes and statuses."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from leveret.amqp.tables import Value
from leveret.client import (
    AckAnyway,
    Batch,
    BatchFailed,
    BlockingConnection,
    Connection,
    Consumer,
    Delivery,
    Message,
    Park,
    Publisher,
    Queue,
    Reject,
    Requester,
    Requeue,
    Retry,
    RetryLater,
    Topology,
    WindowFull,
    redrive,
)
from leveret.testing.broker import Broker
from tests.client import grouping
from tests.client.listening import Notes, cut, on_a_loop, taken, until_ready
from tests.client.publishers import QUICK
from tests.client.spans import Spans, header, is_child, linked, traced
from tests.processes import WAIT_S

Fresh = Callable[..., str]
AT_ONCE = {"initial_s": 0.01, "multiplier": 1.0, "jitter": 0.0}
REMOTE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def spans() -> Spans:
    return Spans()


# a message that goes well


@on_a_loop
async def test_a_message_is_one_trace_from_publish_to_settlement(
    amqp_url: str, fresh: Fresh, spans: Spans
) -> None:
    queue, done = fresh(), Notes()
    app = traced(amqp_url, spans, queue)

    @app.listener(queue)
    async def take(body: bytes, delivery: Delivery) -> None:
        done.append((trace.get_current_span().get_span_context().span_id, delivery.headers))

    async with app:
        with spans.tracer.start_as_current_span("checkout") as checkout:
            receipt = (await app.publisher.publish(b"four", queue, correlation_id="c1")).check()
        await done.reach(1)
    send, process = spans.one("send"), spans.one("process")
    ((current, headers),) = done
    assert send.parent is not None
    assert send.parent.span_id == checkout.get_span_context().span_id
    assert (send.name, send.kind) == (f"send {queue}", SpanKind.PRODUCER)
    assert (process.name, process.kind) == (f"process {queue}", SpanKind.CONSUMER)
    assert is_child(process, send)
    assert current == process.context.span_id
    assert headers["traceparent"] == header(send)
    assert send.status.status_code is process.status.status_code is StatusCode.UNSET
    host, port = amqp_url.partition("@")[2].partition("/")[0].split(":")
    both = {
        "messaging.system": "rabbitmq",
        "messaging.destination.name": queue,
        "messaging.rabbitmq.destination.routing_key": queue,
        "messaging.message.id": receipt.message_id,
        "messaging.message.conversation_id": "c1",
        "messaging.message.body.size": 4,
        "server.address": host,
        "server.port": int(port),
    }
    assert dict(send.attributes) == {
        **both,
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "leveret.publish.status": "confirmed",
        "leveret.publish.attempts": 1,
    }
    assert dict(process.attributes) == {
        **both,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.rabbitmq.message.delivery_tag": 1,
        "leveret.attempt": 1,
        "leveret.outcome": "acked",
    }


@on_a_loop
async def test_what_a_handler_publishes_continues_the_trace(
    leveret_broker: Broker, fresh: Fresh, spans: Spans
) -> None:
    first, second, done = fresh(), fresh(), Notes()
    app = traced(leveret_broker.url, spans, first, second)

    @app.listener(first)
    def forward(body: bytes) -> None:
        app.blocking_publisher.publish(body, second).check()

    @app.listener(second)
    async def take(body: bytes) -> None:
        done.append(body)

    async with app:
        await app.publisher.publish(b"", first)
        await done.reach(1)
        await spans.reach("process", 2)
    (send,) = spans.of(f"send {first}")
    (forwarded,) = spans.of(f"send {second}")
    assert is_child(forwarded, spans.one(f"process {first}"))
    assert is_child(spans.one(f"process {second}"), forwarded)
    assert spans.one(f"process {second}").context.trace_id == send.context.trace_id


# publishing


@on_a_loop
async def test_a_context_that_the_message_has_stays_and_is_linked(
    leveret_broker: Broker, fresh: Fresh, spans: Spans
) -> None:
    queue = fresh()
    app = traced(leveret_broker.url, spans, queue)
    given: dict[str, Value] = {"traceparent": REMOTE, "tracestate": "vendor=1", "mine": 1}
    before = dict(given)
    message = Message(b"", queue, properties={"headers": given})
    async with app:
        await app.publisher.publish_many([message])
        with spans.tracer.start_as_current_span("relay") as relay:
            await app.publisher.publish_many([message])
    alone, inside = spans.of("send")
    assert given == before
    assert message.on_confirm is None
    assert f"{alone.parent.span_id:016x}" == REMOTE.split("-")[2]
    assert f"{alone.context.trace_id:032x}" == REMOTE.split("-")[1]
    assert alone.links == ()
    assert inside.parent.span_id == relay.get_span_context().span_id
    assert linked(inside) == [alone.parent.span_id]
    assert alone.kind is inside.kind is SpanKind.CLIENT
    for _, properties in await taken(leveret_broker.url, queue):
        headers = properties["headers"]
        assert {name: headers[name] for name in given} == before


@on_a_loop
async def test_headers_that_are_no_context_do_no_harm(
    leveret_broker: Broker, fresh: Fresh, spans: Spans
) -> None:
    queue, done = fresh(), Notes()
    app = traced(leveret_broker.url, spans, queue)

    @app.listener(queue)
    async def take(delivery: Delivery) -> None:
        done.append(delivery.headers["traceparent"])

    nonsense: list[Value] = ["", "00-zz-zz-01", b"\xff\x00", 7, {"a": 1}, None]
    async with app:
        for value in nonsense:
            (await app.publisher.publish(b"", queue, headers={"traceparent": value})).check()
        await done.reach(len(nonsense))
    assert all(span.parent is None for span in spans.of("process"))


@pytest.mark.parametrize("confirm", ["correlated", "none"])
@on_a_loop
async def test_a_publish_without_success_is_an_error_with_the_reason(
    leveret_broker: Broker, fresh: Fresh, spans: Spans, confirm: Any
) -> None:
    heard = Notes()
    async with (
        Connection(leveret_broker.url, hooks=spans.tracing, backoff=QUICK) as connection,
        Publisher(connection, confirm=confirm) as publisher,
    ):
        await publisher.publish(b"", "nowhere", exchange="amq.topic", on_confirm=heard.append)
    span = spans.one("send amq.topic")
    assert len(heard) == 1
    assert span.attributes["messaging.destination.name"] == "amq.topic:nowhere"
    if confirm == "none":
        assert span.attributes["leveret.publish.status"] == "sent"
        assert span.status.status_code is StatusCode.UNSET
    else:
        assert span.attributes["leveret.publish.status"] == "returned"
        assert span.attributes["error.type"] == "leveret.client.receipt.MessageReturned"
        assert span.status.status_code is StatusCode.ERROR
        assert "NO_ROUTE" in span.status.description


@on_a_loop
async def test_a_message_that_a_publisher_refuses_ends_its_span(
    leveret_broker: Broker, fresh: Fresh, spans: Spans
) -> None:
    async with (
        Connection(leveret_broker.url, hooks=spans.tracing, backoff=QUICK) as connection,
        Publisher(connection, window=1) as publisher,
    ):
        with pytest.raises(ValueError, match="the properties take"):
            await publisher.publish(b"", "q", headers={"large": "x" * 200_000})
        with pytest.raises(ValueError, match="seq must"):
            publisher.send(b"", "q", seq=-1)
        publisher.send(b"", "nowhere")
        with pytest.raises(WindowFull):
            publisher.send(b"", "nowhere")
        await publisher.flush()
    first, second, third = spans.of("send")
    assert first.attributes["error.type"] == second.attributes["error.type"] == "ValueError"
    assert third.attributes["leveret.publish.status"] == "returned"


@on_a_loop
async def test_a_message_keeps_its_span_while_the_broker_is_restarted(
    leveret_broker: Broker, fresh: Fresh, spans: Spans
) -> None:
    queue = fresh()
    app = traced(leveret_broker.url, spans, queue)
    async with app:
        leveret_broker.faults.withhold_confirms(1)
        publishing = asyncio.create_task(app.publisher.publish(b"", queue, timeout_s=WAIT_S))
        await asyncio.to_thread(
            leveret_broker.wait_until, lambda: not leveret_broker.faults.confirms_to_withhold, "it came"
        )
        await asyncio.to_thread(leveret_broker.restart)
        (await publishing).check()
    span = spans.one("send")
    assert span.attributes["leveret.publish.attempts"] == 2
    assert span.attributes["leveret.publish.status"] == "confirmed"


# what handlers do


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Reject("never"), "rejected"),
        (ValueError("wrong"), "rejected"),
        (AckAnyway("known"), "acked"),
    ],
    ids=["reject", "failure", "ack-anyway"],
)
@on_a_loop
async def test_the_exception_of_a_handler_and_what_became_of_the_message_are_in_the_span(
    leveret_broker: Broker, fresh: Fresh, spans: Spans, error: Exception, outcome: str
) -> None:
    queue = fresh()
    app = traced(leveret_broker.url, spans, queue)

    @app.listener(queue, retry=Retry.never())
    async def take(body: bytes) -> None:
        raise error

    async with app:
        await app.publisher.publish(b"", queue)
        await spans.reach("process", 1)
    span = spans.one("process")
    assert spans.outcomes() == [outcome]
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == f"{type(error).__name__}: {error}"
    (event,) = span.events
    assert event.name == "exception"
    assert event.attributes["exception.message"] == str(error)


@pytest.mark.parametrize("stateful", [False, True], ids=["in-process", "in-broker"])
@on_a_loop
async def test_each_attempt_is_a_span_of_the_same_trace_up_to_the_parked_copy(
    amqp_url: str, fresh: Fresh, spans: Spans, stateful: bool
) -> None:
    queue = fresh()
    app = traced(amqp_url, spans, queue)

    @app.listener(queue, retry=Retry(3, stateful=stateful, **AT_ONCE), recoverer=Park())
    async def take(body: bytes) -> None:
        raise ValueError("wrong")

    async with app:
        await app.publisher.publish(b"", queue)
        attempts = await spans.reach("process", 3)
        await until_ready(amqp_url, f"{queue}.parked", 1)
    send = spans.of("send")[0]
    assert [span.attributes["leveret.attempt"] for span in attempts] == [1, 2, 3]
    assert spans.outcomes() == [*["retried" if stateful else "waiting"] * 2, "acked"]
    assert all(is_child(span, send) for span in attempts)
    parked = spans.of(f"send {queue}.parked")[0]
    assert is_child(parked, attempts[-1])
    assert linked(parked) == [send.context.span_id]
    ((_, properties),) = await taken(amqp_url, f"{queue}.parked")
    assert properties["headers"]["traceparent"] == header(send)


@on_a_loop
async def test_a_dead_letter_and_what_is_redriven_stay_in_the_trace(
    amqp_url: str, fresh: Fresh, spans: Spans
) -> None:
    queue, dead = fresh(), fresh("dead")
    source = Queue(queue, dead_letter_exchange="", dead_letter_key=dead)
    app, refusals = traced(amqp_url, spans, source, dead), [Reject("not now"), None]

    @app.listener(queue)
    async def take(body: bytes) -> None:
        if refusal := refusals.pop(0):
            raise refusal

    async with app, Connection(amqp_url, hooks=spans.tracing, backoff=QUICK) as connection:
        await app.publisher.publish(b"", queue)
        await until_ready(amqp_url, dead, 1)
        assert (await redrive(connection, dead)).moved == 1
        await spans.reach("process", 2)
    assert spans.outcomes() == ["rejected", "acked"]
    send, *_ = spans.of("send")
    assert all(is_child(span, send) for span in spans.of("process"))


@on_a_loop
async def test_a_message_that_comes_back_later_says_so(
    leveret_broker: Broker, fresh: Fresh, spans: Spans
) -> None:
    queue = fresh()
    app = traced(leveret_broker.url, spans, queue)
    errors: list[Exception | None] = [RetryLater(0.01), Requeue(), None]

    @app.listener(queue)
    async def take(body: bytes) -> None:
        if error := errors.pop(0):
            raise error

    async with app:
        await app.publisher.publish(b"", queue)
        await spans.reach("process", 3)
    assert spans.outcomes() == ["retried", "requeued", "acked"]


@on_a_loop
async def test_a_manual_ack_is_in_the_attempt_or_a_span_of_its_own(
    leveret_broker: Broker, fresh: Fresh, spans: Spans
) -> None:
    queue, later = fresh(), Notes()
    app = traced(leveret_broker.url, spans, queue)

    @app.listener(queue, ack="manual")
    async def take(body: bytes, delivery: Delivery) -> None:
        if body == b"now":
            await delivery.ack()
        else:
            later.append(delivery)

    async with app:
        await app.publisher.publish(b"now", queue)
        await app.publisher.publish(b"later", queue)
        await spans.reach("process", 2)
        await later.reach(1)
        await later[0].reject()
    assert spans.outcomes() == ["acked", "unsettled"]
    reject = spans.one(f"reject {queue}")
    assert (reject.kind, reject.attributes["messaging.operation.type"]) == (SpanKind.CLIENT, "settle")
    assert is_child(reject, spans.of("send")[1])


@on_a_loop
async def test_without_acks_nothing_is_settled(leveret_broker: Broker, fresh: Fresh, spans: Spans) -> None:
    queue = fresh()
    app = traced(leveret_broker.url, spans, queue)

    @app.listener(queue, ack="none")
    async def take(body: bytes) -> None:
        return None

    async with app:
        await app.publisher.publish(b"", queue)
        await spans.reach("process", 1)
    assert spans.outcomes() == ["not needed"]


# batches and groups


@on_a_loop
async def test_a_batch_is_one_span_with_a_link_for_each_message(
    amqp_url: str, fresh: Fresh, spans: Spans
) -> None:
    queue = fresh()
    app = traced(amqp_url, spans, queue)

    @app.listener(queue, batch=Batch(3, WAIT_S), retry=Retry.never())
    async def take(bodies: list[bytes]) -> None:
        raise BatchFailed({1: ValueError("wrong")})

    async with app:
        receipts = await app.publisher.publish_many([Message(b"", queue) for _ in range(3)])
        await spans.reach("process", 1)
    span = spans.one("process")
    assert span.parent is None
    assert linked(span) == [send.context.span_id for send in spans.of("send")]
    assert span.attributes["messaging.batch.message_count"] == 3
    assert "messaging.message.id" not in span.attributes
    assert span.attributes["leveret.outcome"] == ("acked", "rejected")
    settled = {
        event.attributes["messaging.message.id"]: event.attributes["leveret.outcome"]
        for event in span.events
        if event.name == "settled"
    }
    wanted = ["acked", "rejected", "acked"]
    assert settled == dict(zip([receipt.message_id for receipt in receipts], wanted, strict=True))
    assert span.status.status_code is StatusCode.ERROR


@on_a_loop
async def test_a_batch_that_fails_as_a_whole_records_its_exception_once(
    leveret_broker: Broker, fresh: Fresh, spans: Spans
) -> None:
    queue = fresh()
    app = traced(leveret_broker.url, spans, queue)

    @app.listener(queue, batch=Batch(3, WAIT_S), retry=Retry.never())
    async def take(bodies: list[bytes]) -> None:
        raise ValueError("wrong")

    async with app:
        await app.publisher.publish_many([Message(b"", queue) for _ in range(3)])
        await spans.reach("process", 1)
    events = sorted(event.name for event in spans.one("process").events)
    assert events == ["exception", *["settled"] * 3]


@on_a_loop
async def test_a_group_listener_names_group_and_partition(leveret_broker: Broker, spans: Spans) -> None:
    app = grouping.application(leveret_broker.url, hooks=spans.tracing)

    @app.group_listener("orders", group="billing")
    async def take(body: bytes) -> None:
        return None

    async with app:
        await grouping.put(app.publisher, [b"one"])
        await spans.reach("process", 1)
    span = spans.one("process")
    assert is_child(span, spans.one("send"))
    assert span.attributes["messaging.consumer.group.name"] == "billing"
    assert span.attributes["messaging.destination.partition.id"] == "orders-0"
    assert spans.outcomes() == ["acked"]


# ends that are no settlement


@on_a_loop
async def test_an_attempt_whose_connection_is_lost_is_stale(
    leveret_broker: Broker, fresh: Fresh, spans: Spans
) -> None:
    queue, calls, go = fresh(), Notes(), asyncio.Event()
    app = traced(leveret_broker.url, spans, queue)

    @app.listener(queue)
    async def take(body: bytes) -> None:
        calls.append(body)
        await go.wait()

    async with app:
        await app.publisher.publish(b"", queue)
        await calls.reach(1)
        cut(app)
        go.set()
        await spans.reach("process", 2)
    first, second = spans.of("process")
    assert spans.outcomes() == ["stale", "acked"]
    assert first.status.status_code is StatusCode.ERROR
    assert first.attributes["error.type"] == "stale"
    assert is_child(first, spans.one("send"))
    assert is_child(second, spans.one("send"))


@on_a_loop
async def test_a_handler_that_is_cancelled_at_the_end_requeues_its_message(
    leveret_broker: Broker, fresh: Fresh, spans: Spans
) -> None:
    queue, calls = fresh(), Notes()
    app = traced(leveret_broker.url, spans, queue, grace_s=0.01)

    @app.listener(queue)
    async def take(body: bytes) -> None:
        calls.append(body)
        await asyncio.Event().wait()

    async with app:
        await app.publisher.publish(b"", queue)
        await calls.reach(1)
    span = spans.one("process")
    assert spans.outcomes() == ["requeued"]
    assert span.attributes["error.type"] == "asyncio.exceptions.CancelledError"
    assert spans.tracing._attempts == {}


@on_a_loop
async def test_a_retry_that_waits_at_the_end_goes_back_with_a_span(
    leveret_broker: Broker, fresh: Fresh, spans: Spans
) -> None:
    queue = fresh()
    app = traced(leveret_broker.url, spans, queue)

    @app.listener(queue, retry=Retry(3, stateful=False, initial_s=2 * WAIT_S, max_s=2 * WAIT_S))
    async def take(body: bytes) -> None:
        raise ValueError("wrong")

    async with app:
        await app.publisher.publish(b"", queue)
        await spans.reach("process", 1)
    assert spans.outcomes() == ["waiting"]
    requeue = spans.one("requeue")
    assert is_child(requeue, spans.one("send"))
    assert requeue.status.status_code is StatusCode.UNSET


# without handlers


@on_a_loop
async def test_a_consumer_receives_and_settles_in_spans(amqp_url: str, fresh: Fresh, spans: Spans) -> None:
    queue = fresh()
    app = traced(amqp_url, spans, queue)
    async with app, Connection(amqp_url, hooks=spans.tracing) as connection:
        await app.publisher.publish_many([Message(b"", queue)] * 2)
        async with Consumer(connection, queue) as consumer:
            first = await consumer.take(WAIT_S)
            assert first is not None
            await first.ack()
            with spans.tracer.start_as_current_span("job") as job:
                second = await consumer.take(WAIT_S)
            assert second is not None
            with spans.tracing.processing([second]):
                await second.nack()
    sends, receives = spans.of("send"), spans.of("receive")
    assert receives[0].kind is SpanKind.CONSUMER
    assert is_child(receives[0], sends[0])
    assert is_child(spans.one("ack"), sends[0])
    assert receives[1].parent.span_id == job.get_span_context().span_id
    assert linked(receives[1]) == [sends[1].context.span_id]
    assert is_child(spans.one("process"), sends[1])
    assert spans.outcomes() == ["requeued"]


def test_the_blocking_interface_makes_the_same_spans(
    leveret_broker: Broker, fresh: Fresh, spans: Spans
) -> None:
    queue = fresh()
    with (
        BlockingConnection(leveret_broker.url, hooks=spans.tracing, topology=Topology(Queue(queue))) as link,
        spans.tracer.start_as_current_span("job") as job,
    ):
        with link.publisher() as publisher:
            publisher.publish_many([Message(b"", queue)] * 2)
            publisher.send(b"", queue).result(WAIT_S)
        for delivery in link.consume(queue, limit=3):
            with spans.tracing.processing([delivery.delivery]):
                delivery.ack()
    sends = spans.of("send")
    for children in (sends, spans.of("receive")):
        assert [span.parent.span_id for span in children] == [job.get_span_context().span_id] * 3
    assert spans.outcomes() == ["acked"] * 3
    for process, send in zip(spans.of("process"), sends, strict=True):
        assert is_child(process, send)


@on_a_loop
async def test_a_request_and_its_reply_are_one_trace(amqp_url: str, fresh: Fresh, spans: Spans) -> None:
    queue = fresh()
    app = traced(amqp_url, spans, queue)

    @app.listener(queue)
    async def answer(delivery: Delivery) -> None:
        await app.publisher.publish(
            b"yes", delivery.reply_to or "", correlation_id=delivery.correlation_id or "", mandatory=False
        )

    async with (
        app,
        Connection(amqp_url, hooks=spans.tracing, backoff=QUICK) as connection,
        Requester(connection, timeout_s=WAIT_S) as requester,
    ):
        with spans.tracer.start_as_current_span("ask") as ask:
            assert (await requester.request(b"?", queue)).body == b"yes"
        await spans.reach("process", 1)
        await spans.reach("send", 2)
    (request,), (reply,) = spans.of(f"send {queue}"), spans.of("send amq.rabbitmq.reply-to")
    assert request.parent.span_id == ask.get_span_context().span_id
    assert is_child(spans.one("process"), request)
    assert is_child(reply, spans.one("process"))
    assert reply.attributes["messaging.destination.temporary"] is True
    receive = spans.one("receive")
    assert receive.parent.span_id == ask.get_span_context().span_id
    assert linked(receive) == [reply.context.span_id]


# what it costs


@pytest.mark.real
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import leveret.client; print([name for name in sys.modules if 'opentelemetry' in name])", "[]"),
        ("sys.modules['opentelemetry'] = None; import leveret.client.tracing", "install 'leveret[otel]'"),
    ],
    ids=["unused", "missing"],
)
def test_only_tracing_needs_opentelemetry(code: str, said: str) -> None:
    command = [sys.executable, "-c", f"import sys; {code}"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert said in ran.stdout + ran.stderr
