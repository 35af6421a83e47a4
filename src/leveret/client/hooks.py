"""Hooks for tracing, metrics and other observers: subclass `Hooks` and override what you need.

    class Tracing(Hooks):
        def publishing(self, headers):
            headers["traceparent"] = current_span().traceparent

    Connection(url, hooks=Tracing())

Hooks are called on the event loop, so they must be quick and must not raise. Notices are also logged, with
their fields in `extra`, so that structured logs need no hook.
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
    """Empty methods to override, one for each event."""

    def connected(self, address: str) -> None:
        """A session is open."""

    def disconnected(self, error: ClientError) -> None:
        """A session has ended. The connection tries to open the next one."""

    def blocked(self, reason: str | None) -> None:
        """The broker takes no messages for this reason; None: it takes them again."""

    def publishing(self, headers: dict[str, Value]) -> None:
        """A message is about to be sent; headers may be added."""

    def receipt(self, receipt: Receipt) -> None:
        """A receipt was resolved."""

    def handling(self, delivery: Delivery) -> AbstractContextManager[object]:
        """Entered around each call of a handler."""
        return nullcontext()

    def settled(self, delivery: Delivery, outcome: str, error: BaseException | None) -> None:
        """A delivery was acked, rejected, requeued or retried because of this error."""

    def noticed(self, event: str, fields: dict[str, object]) -> None:
        """Something happened that an operator should know, such as a redelivery loop or a stale ack."""


class Around:
    """`hooks.handling` around a call. An exception that it raises is logged."""

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

            def leave(error: BaseException | None) -> None:
                inner.__exit__(kind, error, trace)

            call_back(leave, error)


def notice(hooks: Hooks | None, event: str, sentence: str, **fields: object) -> None:
    """Log a warning and call `hooks.noticed`. `fields` are for programs."""
    log.warning(sentence, extra={"event": event, **fields})
    if hooks is not None:
        call_back(lambda fields: hooks.noticed(event, fields), fields)
