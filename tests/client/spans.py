"""The spans that a test makes: kept in memory, found by the operation in their names.

Owns a provider for each test, so that nothing global is set, and the comparisons of spans with their parents
and links. Applications and handlers are the tests' own.
"""

from __future__ import annotations

import asyncio
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from leveret.client import App
from leveret.client.tracing import Tracing
from tests.client.listening import application
from tests.processes import WAIT_S


class Spans:
    """Ended spans of one test, in the order of their ends: `spans.of("send")`."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")
        self.tracing = Tracing(tracer_provider=self.provider)

    def of(self, operation: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name.startswith(operation)]

    def one(self, operation: str) -> ReadableSpan:
        (span,) = self.of(operation)
        return span

    async def reach(self, operation: str, count: int) -> list[ReadableSpan]:
        async with asyncio.timeout(WAIT_S):
            while len(self.of(operation)) < count:
                await asyncio.sleep(0.01)
        return self.of(operation)

    def outcomes(self) -> list[Any]:
        return [span.attributes["leveret.outcome"] for span in self.of("process")]


def traced(url: str, spans: Spans, *queues: str, **options: Any) -> App:
    return application(url, *queues, hooks=spans.tracing, **options)


def header(span: ReadableSpan) -> str:
    context = span.context
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    return (
        span.parent is not None
        and span.parent.span_id == parent.context.span_id
        and span.context.trace_id == parent.context.trace_id
    )


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]
