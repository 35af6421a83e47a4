"""The one way in for tracing, metrics and whatever else wants to watch: subclass `Hooks`, override what you
need.

    class Tracing(Hooks):
        def publishing(self, headers):
            headers["traceparent"] = current_span().traceparent

    Connection(url, hooks=Tracing())

Hooks are called on the event loop, in the middle of the work: they must be quick and must not raise.
Notices are also logged, with the same fields in `extra`, so that structured logs need no hook.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING

from leveret.amqp.tables import Value
from leveret.client.callbacks import call_back

if TYPE_CHECKING:
    from leveret.client.delivery import Delivery
    from leveret.client.errors import ClientError
    from leveret.client.receipt import Receipt

log = logging.getLogger("leveret.client")


class Hooks:
    """Does nothing, for each thing that happens."""

    def connected(self, address: str) -> None:
        """A connection is open."""

    def disconnected(self, error: ClientError) -> None:
        """It has ended; the next one is on its way."""

    def blocked(self, reason: str | None) -> None:
        """The broker takes no more messages; None: it does again."""

    def publishing(self, headers: dict[str, Value]) -> None:
        """A message is about to be sent; headers may be added."""

    def receipt(self, receipt: Receipt) -> None:
        """It is known what became of a message."""

    def handling(self, delivery: Delivery) -> AbstractContextManager[object]:
        """Entered around each call of a handler."""
        return nullcontext()

    def settled(self, delivery: Delivery, outcome: str, error: BaseException | None) -> None:
        """A delivery was acked, rejected, requeued or retried, and why."""

    def noticed(self, event: str, fields: dict[str, object]) -> None:
        """Something that a person should know: a redelivery loop, a stale ack, a forgotten one ..."""


class Around:
    """`hooks.handling` around a call: what it raises, on entering or leaving, is logged."""

    def __init__(self, hooks: Hooks, delivery: Delivery) -> None:
        self._hooks = hooks
        self._delivery = delivery
        self._inner: AbstractContextManager[object] | None = None

    def __enter__(self) -> None:
        call_back(self._enter, self._delivery)

    def _enter(self, delivery: Delivery) -> None:
        inner = self._hooks.handling(delivery)
        inner.__enter__()
        self._inner = inner

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if (inner := self._inner) is not None:

            def leave(told: BaseException | None) -> None:
                inner.__exit__(kind, told, trace)

            call_back(leave, error)


def notice(hooks: Hooks | None, event: str, sentence: str, **fields: object) -> None:
    """Says something to the log and to the hooks; `fields` are for programs."""
    log.warning(sentence, extra={"event": event, **fields})
    if hooks is not None:
        call_back(lambda told: hooks.noticed(event, told), fields)
