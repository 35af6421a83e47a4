"""Handlers: the user's functions, and the arguments they are called with.

A handler takes the body, the delivery, or both. A parameter annotated with `Delivery` gets the delivery. The
other one gets the body, converted to its annotation (`codecs`). A coroutine function runs on the event loop,
a plain function in one of the listener's threads, so that it may block. Exceptions are left to the listener.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Callable
from typing import Any, get_args, get_origin, get_type_hints

from leveret.amqp.errors import AmqpError
from leveret.amqp.properties import content_of
from leveret.client.codecs import Codecs, Converter
from leveret.client.delivery import Delivery
from leveret.client.errors import ConversionError
from leveret.client.threads import Threads


class Handler:
    """`handler.arguments(delivery)`, then `await handler.function(*arguments)` or `handler.in_a_thread`."""

    def __init__(self, function: Callable[..., Any], codecs: Codecs, *, batch: bool = False) -> None:
        self.function = function
        self.name = getattr(function, "__qualname__", repr(function))
        self.is_async = inspect.iscoroutinefunction(inspect.unwrap(function)) or inspect.iscoroutinefunction(
            # An object may have a coroutine function as its `__call__`.
            getattr(function, "__call__", None)  # noqa: B004
        )
        self._threads: Threads | None = None
        self._body_at: int | None = None
        self._convert: Converter | None = None
        self._arity = 0
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{self.name} is a generator, whose body would never run; a handler must return")
        self._read_signature(codecs, batch=batch)

    def _read_signature(self, codecs: Codecs, *, batch: bool) -> None:
        hints = _hints(self.function)
        parameters = [
            parameter
            for parameter in inspect.signature(self.function).parameters.values()
            if parameter.default is parameter.empty
            and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        for position, parameter in enumerate(parameters):
            annotation = hints.get(parameter.name, Any)
            if batch:
                annotation = _item(annotation, parameter.name)
            if annotation is Delivery:
                continue
            if self._body_at is not None:
                raise TypeError(
                    f"{self.name}: two parameters for the body; a handler takes the body, the delivery "
                    "(annotated with Delivery), or both"
                )
            self._body_at = position
            self._convert = codecs.converter(annotation)
        keywords = [p.name for p in inspect.signature(self.function).parameters.values() if _is_missing(p)]
        if keywords:
            raise TypeError(
                f"{self.name} has keyword-only parameters without a default: {', '.join(keywords)}; "
                "a handler is called with positional arguments only"
            )
        if not parameters:
            raise TypeError(f"{self.name} has no parameters; a handler takes the body, the delivery, or both")
        self._arity = len(parameters)

    def start(self, threads: int) -> None:
        if not self.is_async:
            self._threads = Threads(threads, f"leveret-{self.name}")

    def stop(self) -> None:
        if self._threads is not None:
            self._threads.stop()
            self._threads = None

    def arguments(self, delivery: Delivery) -> tuple[Any, ...]:
        """Return the arguments for this delivery. `ConversionError`: the body does not convert."""
        if self._convert is None:
            return (delivery,) * self._arity
        try:
            content_type, encoding = content_of(delivery.header)
        except AmqpError as error:
            raise ConversionError(f"the properties can't be read: {error}") from error
        value = self._convert(delivery.body, content_type, encoding)
        if self._arity == 1:
            return (value,)
        return tuple(value if index == self._body_at else delivery for index in range(self._arity))

    def in_a_thread(self, arguments: tuple[Any, ...]) -> asyncio.Future[Any]:
        """Start a plain function in a thread, with the caller's context variables."""
        assert self._threads is not None
        context = contextvars.copy_context()
        return self._threads.call(lambda: context.run(self._run, arguments))

    def _run(self, arguments: tuple[Any, ...]) -> Any:
        """Call the function in the thread. Wrap exceptions that end programs or that a future can't carry."""
        try:
            result = self.function(*arguments)
        except (StopIteration, BaseException) as error:
            if isinstance(error, Exception) and not isinstance(error, StopIteration):
                raise
            raise RuntimeError(f"{self.name} raised {error!r}") from error
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise TypeError(f"{self.name} returned an awaitable, which is not awaited; use async def")
        return result


def _is_missing(parameter: inspect.Parameter) -> bool:
    return parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    if isinstance(function, functools.partial):
        return _hints(function.func)
    called = function if inspect.isroutine(function) else type(function).__call__
    try:
        return get_type_hints(called)
    except NameError as error:
        name = getattr(function, "__qualname__", repr(function))
        raise TypeError(f"an annotation of {name} can't be resolved: {error}") from error


def _item(annotation: Any, name: str) -> Any:
    """Return the type of a list's items: a batch handler's parameter is annotated with a list."""
    if annotation in (Any, list):
        return Any
    if get_origin(annotation) is list:
        return get_args(annotation)[0]
    raise TypeError(f"a batch handler's parameter '{name}' must be a list, not {annotation}")
