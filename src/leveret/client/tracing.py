"""Spans of OpenTelemetry for messages, from publish to settlement: `App(url, hooks=Tracing())`.

    send      from the acceptance of a message by its publisher to the receipt
    process   each attempt: the call of a handler, and what was decided after the call
    receive   a delivery was taken from a `Consumer`, or a reply from a `Requester`
    ack, ...  a settlement outside an attempt, such as an ack long after the handler

This module makes spans of what hooks are told, and writes and reads the headers of the W3C (`traceparent`,
`tracestate`) with OpenTelemetry's propagator. Names are those of OpenTelemetry's conventions for messaging;
exporting is left to OpenTelemetry. The rules: a context that a message has is never replaced, and every span
ends, whatever becomes of its message. Needs the extra `otel`; nothing else imports this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from leveret import __version__
from leveret.amqp.names import to_text
from leveret.amqp.tables import Value
from leveret.client.callbacks import call_back
from leveret.client.delivery import Delivery
from leveret.client.direct_replies import REPLY_TO
from leveret.client.endpoint import Endpoint
from leveret.client.errors import ClientError
from leveret.client.hooks import Accepting, Hooks
from leveret.client.message import Message
from leveret.client.receipt import PublishFailed, Receipt

try:
    from opentelemetry import context, propagate, trace
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "tracing needs opentelemetry-api, which is not installed (pip install 'leveret[otel]')",
        name=missing.name,
    ) from missing
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter, TextMapPropagator
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider

Attributes = dict[str, str | int | bool]

_SYSTEM: Final = "rabbitmq"
"""The name by which OpenTelemetry knows brokers for AMQP 0-9-1."""
_DEFAULT_EXCHANGE: Final = "amq.default"
_SETTLEMENTS: Final = {"acked": "ack", "rejected": "reject", "requeued": "requeue", "retried": "retry"}
"""The operation that settles a delivery, by its outcome."""
OUTCOME: Final = "leveret.outcome"
ATTEMPT: Final = "leveret.attempt"
STALE: Final = "stale"
WAITING: Final = "waiting"
_AGAIN: Final = "the channel ended before the settlement: the broker delivers the message again"


class _Headers(Getter[Mapping[str, Value]]):
    """Reads contexts from AMQP headers, whose values may have any type."""

    def get(self, carrier: Mapping[str, Value], key: str) -> list[str] | None:
        value = carrier.get(key)
        if isinstance(value, bytes | bytearray):
            value = to_text(bytes(value))
        return [value] if isinstance(value, str) else None

    def keys(self, carrier: Mapping[str, Value]) -> list[str]:
        return list(carrier)


_HEADERS: Final = _Headers()


class Tracing(Hooks):
    """`App(url, hooks=Tracing())`; for hooks of your own besides, make a subclass.

    A subclass that overrides `accepting`, `received`, `processing`, `handling` or `settled` calls `super()`.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        propagator: TextMapPropagator | None = None,
    ) -> None:
        """Without arguments, OpenTelemetry's global provider and propagator are used."""
        self._tracer = trace.get_tracer("leveret.client", __version__, tracer_provider)
        self._own_propagator = propagator
        self._attempts: dict[Delivery, _Attempt] = {}
        """The attempts under way."""

    # publishing

    @contextmanager
    def accepting(self, message: Message, publisher: Accepting) -> Iterator[Message]:
        """Start a send span, which ends with the receipt, and put the span's context into the headers.

        A context that the message has already stays. The span is then linked with this context.
        """
        given = message.properties.get("headers") or {}
        created = self._context_in(given)
        parent = created if created is not None and not _is_in_span() else None
        address = _sending_to(message)
        destination = message.exchange or message.routing_key or _DEFAULT_EXCHANGE
        if "messaging.destination.temporary" in address:
            destination = REPLY_TO
        span = self._tracer.start_span(
            f"send {destination}",
            context=parent,
            kind=SpanKind.PRODUCER if created is None else SpanKind.CLIENT,
            attributes=address,
            links=_links([] if created is None or parent is not None else [created]),
        )
        if created is None:
            headers: dict[str, str] = {}
            self._propagator.inject(headers, trace.set_span_in_context(span))
            properties = message.properties.copy()
            properties["headers"] = {**headers, **given}
            message = message._replace(properties=properties)
        if span.is_recording():
            message = message._replace(on_confirm=_ending(span, publisher, message.on_confirm))
        try:
            yield message
        except Exception as error:
            _fail(span, error)
            span.end()
            raise

    # consuming

    def received(self, delivery: Delivery) -> None:
        """Make a span for a delivery that was taken, in the trace of its taker or else of its sender."""
        self._mark("receive", "receive", delivery, SpanKind.CONSUMER, in_trace_of_caller=_is_in_span())

    @contextmanager
    def processing(self, deliveries: Sequence[Delivery], *, batch: bool = False) -> Iterator[None]:
        """Have a process span around an attempt. Also for code that takes deliveries from a `Consumer`.

        The span of one message is a child of its sender's span; that of a batch has a link for each message.
        """
        batch = batch or len(deliveries) != 1
        contexts = [self._context_of(delivery) for delivery in deliveries]
        parent = Context() if batch or contexts[0] is None else contexts[0]
        span = self._tracer.start_span(
            f"process {deliveries[0].queue}",
            context=parent,
            kind=SpanKind.CONSUMER,
            attributes=operation("process", "process") | _received_from(deliveries, batch=batch),
            links=_links(contexts) if batch else None,
        )
        attempt = _Attempt(span, deliveries, batch=batch)
        self._attempts.update(dict.fromkeys(deliveries, attempt))
        token = context.attach(trace.set_span_in_context(span, parent))
        try:
            yield
        except BaseException as error:
            attempt.fail(error)
            raise
        finally:
            context.detach(token)
            for delivery in deliveries:
                self._attempts.pop(delivery, None)
            attempt.end()

    @contextmanager
    def handling(self, delivery: Delivery) -> Iterator[None]:
        """Record the exception that a handler raises."""
        try:
            yield
        except BaseException as error:
            if (attempt := self._attempts.get(delivery)) is not None:
                attempt.fail(error)
            raise

    def settled(self, delivery: Delivery, outcome: str, error: BaseException | None) -> None:
        """Note the outcome in the attempt's span. Outside of an attempt, make a span for the settlement."""
        if (attempt := self._attempts.get(delivery)) is not None:
            attempt.settled(delivery, outcome, error)
        else:
            # The error, if there was one, is in the attempt's span: the settlement did not fail.
            self._mark(_SETTLEMENTS.get(outcome, outcome), "settle", delivery, SpanKind.CLIENT)

    def _mark(
        self,
        name: str,
        kind_of_operation: str,
        delivery: Delivery,
        kind: SpanKind,
        *,
        in_trace_of_caller: bool = False,
    ) -> None:
        """Make a span without duration, linked with the message's context or a child of this context."""
        created = self._context_of(delivery)
        span = self._tracer.start_span(
            f"{name} {delivery.queue}",
            context=None if in_trace_of_caller else created or Context(),
            kind=kind,
            attributes=operation(name, kind_of_operation) | _received_from([delivery], batch=False),
            links=_links([created]) if in_trace_of_caller else None,
        )
        span.end()

    # contexts

    @property
    def _propagator(self) -> TextMapPropagator:
        return self._own_propagator or propagate.get_global_textmap()

    def _context_of(self, delivery: Delivery) -> Context | None:
        try:
            return self._context_in(delivery.headers)
        except ClientError:
            # The properties can't be read. The handler's failure says so.
            return None

    def _context_in(self, headers: Mapping[str, Value]) -> Context | None:
        """Return the context in a message's headers, or None if there is none that is valid."""
        found = self._propagator.extract(headers, Context(), _HEADERS)
        return found if trace.get_current_span(found).get_span_context().is_valid else None


class _Attempt:
    """An attempt under way: its span, and what became of its deliveries."""

    def __init__(self, span: Span, deliveries: Sequence[Delivery], *, batch: bool) -> None:
        self._span = span
        self._local_attempts = {delivery: delivery.local_attempts for delivery in deliveries}
        self._batch = batch
        self._outcomes: dict[Delivery, str] = {}
        self._errors: list[BaseException] = []
        """The errors that are recorded, each once."""

    def fail(self, error: BaseException) -> None:
        if not any(error is known for known in self._errors):
            self._errors.append(error)
            _fail(self._span, error)

    def settled(self, delivery: Delivery, outcome: str, error: BaseException | None) -> None:
        self._outcomes[delivery] = outcome
        if error is not None:
            self.fail(error)
        if self._batch:
            event = {"messaging.message.id": _message_id(delivery), OUTCOME: outcome}
            self._span.add_event("settled", {name: value for name, value in event.items() if value})

    def end(self) -> None:
        outcomes = []
        for delivery, before in self._local_attempts.items():
            outcome = self._outcomes.get(delivery) or _unreported(delivery, before)
            if outcome == STALE and not self._errors:
                self._span.set_status(Status(StatusCode.ERROR, _AGAIN))
                self._span.set_attribute("error.type", STALE)
            outcomes.append(outcome)
        # A batch may have several.
        self._span.set_attribute(OUTCOME, outcomes[0] if not self._batch else sorted(set(outcomes)))
        self._span.end()


def _unreported(delivery: Delivery, local_attempts: int) -> str:
    """Return the outcome of a delivery for which `settled` was not called, as the attempt ends."""
    if delivery.source.settle is None:
        return "not needed"
    if not delivery.ledger.alive:
        return STALE
    if delivery.leaving:
        return "paused"
    if delivery.local_attempts > local_attempts:
        return WAITING
    return "settled before" if delivery.settled else "unsettled"


def _ending(
    span: Span, publisher: Accepting, on_confirm: Callable[[Receipt], None] | None
) -> Callable[[Receipt], None]:
    """Return a callback that ends a send span as the receipt says, and then calls the caller's own."""

    def end(receipt: Receipt) -> None:
        span.set_attributes(
            {
                "messaging.message.id": receipt.message_id,
                "leveret.publish.status": receipt.status.value,
                "leveret.publish.attempts": receipt.attempts,
                **_server(publisher.endpoint),
            }
        )
        try:
            receipt.check()
        except PublishFailed as error:
            span.set_status(Status(StatusCode.ERROR, str(error)))
            span.set_attribute("error.type", _type_name(error))
        span.end()

    def resolved(receipt: Receipt) -> None:
        call_back(end, receipt)
        if on_confirm is not None:
            on_confirm(receipt)

    return resolved


def _fail(span: Span, error: BaseException) -> None:
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, _text(error)))
    span.set_attribute("error.type", _type_name(error))


def _text(error: BaseException) -> str:
    name = type(error).__name__
    try:
        return f"{name}: {error}" if str(error) else name
    # A user's `__str__` may raise anything.
    except Exception:  # noqa: BLE001
        return name


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _is_in_span() -> bool:
    return trace.get_current_span().get_span_context().is_valid


def _links(contexts: Sequence[Context | None]) -> list[Link]:
    spans = [trace.get_current_span(found) for found in contexts if found is not None]
    return [Link(span.get_span_context()) for span in spans]


# attributes


def operation(name: str, kind: str) -> Attributes:
    """Return the attributes of every span: the messaging system, and the operation's name and type."""
    return {"messaging.system": _SYSTEM, "messaging.operation.name": name, "messaging.operation.type": kind}


def _sending_to(message: Message) -> Attributes:
    """Return the attributes of a send span that are known before the message is sent."""
    key, exchange = message.routing_key, message.exchange
    attributes = operation("send", "send")
    if not exchange and key.startswith(f"{REPLY_TO}."):
        # Each requester has another key.
        attributes["messaging.destination.name"] = REPLY_TO
        attributes["messaging.destination.temporary"] = True
        return attributes | _message_attributes(message)
    attributes["messaging.destination.name"] = _joined(exchange, key)
    if key:
        attributes["messaging.rabbitmq.destination.routing_key"] = key
    return attributes | _message_attributes(message)


def _message_attributes(message: Message) -> Attributes:
    attributes: Attributes = {}
    if correlation_id := message.properties.get("correlation_id"):
        attributes["messaging.message.conversation_id"] = correlation_id
    if isinstance(message.body, bytes | str):
        size = len(message.body if isinstance(message.body, bytes) else message.body.encode())
        attributes["messaging.message.body.size"] = size
    return attributes


def _received_from(deliveries: Sequence[Delivery], *, batch: bool) -> Attributes:
    """Return the attributes of a span for deliveries of one consumer."""
    delivery = deliveries[0]
    attributes = _server(delivery.ledger.channel.session.endpoint)
    if delivery.source.group is not None:
        attributes["messaging.consumer.group.name"] = delivery.source.group
    if batch:
        attributes["messaging.destination.name"] = delivery.queue
        attributes["messaging.batch.message_count"] = len(deliveries)
        return attributes
    attributes["messaging.rabbitmq.message.delivery_tag"] = delivery.tag
    attributes["messaging.message.body.size"] = len(delivery.body)
    try:
        return attributes | _of_properties(delivery)
    except ClientError:
        # The properties can't be read.
        return attributes


def _of_properties(delivery: Delivery) -> Attributes:
    """Return the attributes for which the delivery's properties are read."""
    key = delivery.routing_key
    values = {
        "messaging.destination.name": _joined(
            delivery.exchange, key, *([delivery.queue] if delivery.queue != key else [])
        ),
        "messaging.rabbitmq.destination.routing_key": key,
        "messaging.message.id": delivery.message_id,
        "messaging.message.conversation_id": delivery.correlation_id,
        "messaging.destination.partition.id": delivery.partition,
        ATTEMPT: delivery.attempt,
    }
    return {name: value for name, value in values.items() if value}


def _message_id(delivery: Delivery) -> str | None:
    try:
        return delivery.message_id
    except ClientError:
        return None


def _joined(*names: str) -> str:
    """
    >>> _joined("shop", "order.new", "orders")
    'shop:order.new:orders'
    """
    return ":".join(name for name in names if name) or _DEFAULT_EXCHANGE


def _server(endpoint: Endpoint | None) -> Attributes:
    return {} if endpoint is None else {"server.address": endpoint.host, "server.port": endpoint.port}
