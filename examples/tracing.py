"""The trace of one message, from its publish to the queue where it is parked.

Its handler fails twice. Spans are kept in memory here and printed as a tree; a program of yours gives
OpenTelemetry an exporter instead. Needs `leveret[otel]` and `opentelemetry-sdk`.
"""

import asyncio

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from playground import WAIT_S, broker

from leveret.client import App, Park, Queue, Retry, Topology
from leveret.client.tracing import Tracing

ORDERS, PARKED = "tracing.orders", "tracing.orders.parked"


async def main(url: str, provider: TracerProvider) -> None:
    app = App(url, topology=Topology(Queue(ORDERS), Queue(PARKED)), hooks=Tracing(tracer_provider=provider))
    parked = asyncio.Event()

    @app.listener(ORDERS, retry=Retry(max_attempts=2, initial_s=0.01), recoverer=Park())
    async def take(order: dict) -> None:
        raise ValueError(f"order {order['id']} has no address")

    @app.listener(PARKED, ack="none")
    async def look(order: dict) -> None:
        parked.set()

    async with app:
        with provider.get_tracer("shop").start_as_current_span("checkout"):
            (await app.publisher.publish({"id": 1}, ORDERS)).check()
        await asyncio.wait_for(parked.wait(), WAIT_S)


def describe(span: ReadableSpan) -> str:
    found = span.attributes or {}
    words = [str(found[name]) for name in ("leveret.publish.status", "leveret.outcome") if name in found]
    if "leveret.attempt" in found:
        words.insert(0, f"attempt {found['leveret.attempt']}")
    if span.status.status_code is StatusCode.ERROR:
        words.append("ERROR")
    return f"{span.name}: {' '.join(words)}" if words else span.name


def show(spans: list[ReadableSpan], parent: ReadableSpan | None = None, depth: int = 0) -> None:
    for span in sorted(spans, key=lambda span: span.start_time or 0):
        if (span.parent.span_id if span.parent else None) == (parent.context.span_id if parent else None):
            print("  " * depth + describe(span))
            show(spans, span, depth + 1)


kept = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(kept))
with broker(ORDERS, PARKED) as url:
    asyncio.run(main(url, provider))
show(list(kept.get_finished_spans()))
