"""Hooks for tracing, metrics and other observers: subclass `Hooks` and override what you need.

    class Observer(Hooks):
        def publishing(self, headers):
            headers["sent-by"] = "shop-7"

    Connection(url, hooks=Observer())

Hooks are called on the event loop, so they must be quick and must not raise. Notices are also logged, with
their fields in `extra`, so that structured logs need no hook.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from leveret.amqp.tables import Value
from leveret.client.callbacks import call_back

if TYPE_CHECKING:
    from leveret.client.delivery import Delivery
    from leveret.client.endpoint import Endpoint
    from leveret.client.errors import ClientError
    from leveret.client.message import Message
    from leveret.client.receipt import Receipt

log = logging.getLogger("leveret.client")
_A = TypeVar("_A")
_R = TypeVar("_R")


class Accepting(Protocol):
    """The publisher that takes a message, as hooks see it."""

    @property
    def endpoint(self) -> Endpoint | None:
        """The broker that is connected, or None."""


class Hooks:
    """Empty methods to override, one for each event."""

    def connected(self, address: str) -> None:
        """A session is open."""

    def disconnected(self, error: ClientError) -> None:
        """A session has ended. The connection tries to open the next one."""

    def blocked(self, reason: str | None) -> None:
        """The broker takes no messages for this reason; None: it takes them again."""

    def accepting(self, message: Message, publisher: Accepting) -> AbstractContextManager[Message]:
        """Entered while a publisher takes a message; yields the message to send, which may differ."""
        return nullcontext(message)

    def publishing(self, headers: dict[str, Value]) -> None:
        """A message is about to be sent; headers may be added."""

    def receipt(self, receipt: Receipt) -> None:
        """A receipt was resolved."""

    def received(self, delivery: Delivery) -> None:
        """A delivery was taken from a `Consumer`, or a reply reached its `Requester`."""

    def processing(
        self, deliveries: Sequence[Delivery], *, batch: bool = False
    ) -> AbstractContextManager[object]:
        """Entered around each attempt: the call of the handler, and what is decided after the call.

        `batch` is whether the handler takes lists of messages, also if there is one only.
        """
        return nullcontext()

    def handling(self, delivery: Delivery) -> AbstractContextManager[object]:
        """Entered around each call of a handler."""
        return nullcontext()

    def settled(self, delivery: Delivery, outcome: str, error: BaseException | None) -> None:
        """A delivery was acked, rejected, requeued or retried because of this error."""

    def noticed(self, event: str, fields: dict[str, object]) -> None:
        """Something happened that an operator should know, such as a redelivery loop or a stale ack."""


def overrides(hooks: Hooks | None, name: str) -> bool:
    """Return whether these hooks have a method of this name that does something."""
    return hooks is not None and getattr(type(hooks), name) is not getattr(Hooks, name)


class Around(Generic[_A, _R]):
    """A hook that returns a context manager, around a call: `with Around(hooks.handling, delivery):`.

    An exception that the hook raises is logged. The value is None if the hook failed.
    """

    def __init__(self, hook: Callable[[_A], AbstractContextManager[_R]], argument: _A) -> None:
        self._hook = hook
        self._argument = argument
        self._inner: AbstractContextManager[_R] | None = None
        self._value: _R | None = None

    def __enter__(self) -> _R | None:
        call_back(self._enter, self._argument)
        return self._value

    def _enter(self, argument: _A) -> None:
        inner = self._hook(argument)
        self._value = inner.__enter__()
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
