"""Exchanges, queues and bindings, declared together at each connect.

This module owns the collection of parts, their order, and the differences to what exists. Single parts are
left to `declarations`. `Connection` applies the topology. Applying is idempotent and deletes nothing. The
rule: each refusal names its part, and nothing is bound while something differs, unless differences are to be
ignored.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from leveret.amqp import methods
from leveret.client.declarations import Binding, Exchange, Part, Queue
from leveret.client.errors import (
    ChannelClosed,
    ConnectionLost,
    Difference,
    QueueLocked,
    TopologyMismatch,
)

if TYPE_CHECKING:
    from leveret.client.channel import Channel

__all__ = ["Binding", "Exchange", "Queue", "Topology", "dead_letter_pair"]

log = logging.getLogger("leveret.client")

OpenChannel: TypeAlias = "Callable[[], Awaitable[Channel]]"
OnMismatch: TypeAlias = Literal["error", "ignore"]

_RESOURCE_LOCKED: Final = 405
_PRECONDITION_FAILED: Final = 406
_COMMAND_INVALID: Final = 503
_INEQUIVALENT: Final = re.compile(r"inequivalent arg '([^']*)'")
_FOUND: Final = re.compile(r" but current is (?:(none)|the value '(.*)' of .*|'(.*)'|(.*))$", re.DOTALL)


def _belongs_to(part: Part, queues: set[str]) -> bool:
    if isinstance(part, Binding):
        return not part.to_exchange and part.destination in queues
    return isinstance(part, Queue) and part.name in queues


class Topology:
    """
    >>> topology = Topology(
    ...     Exchange("shop", "topic"),
    ...     dead_letter_pair(Queue("orders", max_length=10_000)),
    ...     Binding("shop", "orders", "order.#"),
    ... )
    >>> topology += Queue("audit")

    Give it to a `Connection`. With `on_mismatch="ignore"`, exchanges and queues that differ from their
    declaration are used as they are, and each difference is logged once.
    """

    def __init__(self, *parts: Part | Topology, on_mismatch: OnMismatch = "error") -> None:
        if on_mismatch not in ("error", "ignore"):
            raise ValueError(f"on_mismatch is 'error' or 'ignore', not {on_mismatch!r}")
        self.on_mismatch: OnMismatch = on_mismatch
        self.parts = _without_repetition(parts)
        """Exchanges, then queues, then bindings; each kind in the order in which it was given."""
        self._logged: set[Difference] = set()

    def __add__(self, other: Part | Topology) -> Topology:
        """Join two topologies. Differences are ignored only if both ignore them."""
        lenient = self.on_mismatch == "ignore" and getattr(other, "on_mismatch", "ignore") == "ignore"
        return Topology(self, other, on_mismatch="ignore" if lenient else "error")

    def __repr__(self) -> str:
        return f"Topology({', '.join(map(repr, self.parts))}, on_mismatch={self.on_mismatch!r})"

    def exclusive(self) -> set[str]:
        """Return the names of exclusive queues."""
        return {part.name for part in self.parts if isinstance(part, Queue) and part.exclusive}

    def single_active(self) -> set[str]:
        """Return the names of queues with a single active consumer."""
        return {
            part.name
            for part in self.parts
            if isinstance(part, Queue) and part.table.get("x-single-active-consumer")
        }

    def shared(self) -> Topology:
        """Return the parts that several connections may declare: not exclusive queues and their bindings."""
        exclusive = self.exclusive()
        parts = [part for part in self.parts if not _belongs_to(part, exclusive)]
        return Topology(*parts, on_mismatch=self.on_mismatch)

    async def apply(self, open_channel: OpenChannel) -> tuple[Difference, ...]:
        """Declare all parts, one after the other, and return the differences that were ignored.

        Raises `TopologyMismatch` with all differences, `QueueLocked`, `ChannelClosed` for any other refusal
        (403, 404, 406), and `ConnectionLost`.
        """
        declaring = _Declaring(open_channel)
        try:
            differences = await self._declare(declaring)
        # A cancelled call must not wait for the answer to a close, so this is not `finally`.
        except Exception:
            await declaring.close()
            raise
        await declaring.close()
        return differences

    async def _declare(self, declaring: _Declaring) -> tuple[Difference, ...]:
        results = [await declaring.declare(part) for part in self.parts if not isinstance(part, Binding)]
        differences = tuple(difference for difference in results if difference is not None)
        if differences and self.on_mismatch == "error":
            raise _mismatch(differences)
        for difference in differences:
            self._log(difference)
        for part in self.parts:
            if isinstance(part, Binding):
                await declaring.bind(part)
        return differences

    def _log(self, difference: Difference) -> None:
        if difference not in self._logged:
            self._logged.add(difference)
            log.warning("used as it is: %s", difference, extra={"event": "topology_mismatch"})


def dead_letter_pair(
    queue: Queue | str,
    *,
    exchange: str | None = None,
    dead: Queue | str | None = None,
    key: str | None = None,
) -> Topology:
    """Declare a queue, the exchange for its dead letters, the queue that keeps them, and the binding.

    `dead_letter_pair("orders")` makes `orders`, `orders.dlx` (direct), and `orders.dead`, bound with the key
    `orders`.
    """
    given = Queue(queue) if isinstance(queue, str) else queue
    exchange = _chosen(exchange, given.dead_letter_exchange, f"{given.name}.dlx")
    key = _chosen(key, given.dead_letter_key, given.name)
    if not isinstance(dead, Queue):
        dead = Queue(dead or f"{given.name}.dead", durable=given.durable, type=given.type)
    return Topology(
        replace(given, dead_letter_exchange=exchange, dead_letter_key=key),
        Exchange(exchange, durable=given.durable),
        dead,
        Binding(exchange, dead.name, key),
    )


def _chosen(given: str | None, of_queue: str | None, default: str) -> str:
    if given is not None and of_queue is not None and given != of_queue:
        raise ValueError(
            f"the queue sends its dead letters to '{of_queue}', not to '{given}': give one of them"
        )
    return next((name for name in (given, of_queue) if name is not None), default)


# --- the collection of parts -----------------------------------------------------------------------------


def _without_repetition(parts: tuple[Part | Topology, ...]) -> tuple[Part, ...]:
    """Return each part once, in order. `ValueError`: two parts declare one thing differently."""
    flat: list[Part] = []
    for part in parts:
        flat += part.parts if isinstance(part, Topology) else (part,)
    known: dict[object, Part] = {}
    for part in flat:
        if not isinstance(part, Exchange | Queue | Binding):
            raise TypeError(f"a topology is made of Exchange, Queue, Binding and Topology, not {part!r}")
        declared = methods.encode(part.method())
        first = known.setdefault(declared if isinstance(part, Binding) else str(part), part)
        if declared != methods.encode(first.method()):
            raise ValueError(f"{part} is declared in two ways: {_contradiction(first, part)}")
    return tuple(sorted(known.values(), key=lambda part: (Exchange, Queue, Binding).index(type(part))))


def _contradiction(first: Part, second: Part) -> str:
    """Describe how two parts differ. Values are compared as text: 1 equals True, but not to a broker."""
    pairs = (
        (field.name, repr(getattr(first, field.name)), repr(getattr(second, field.name)))
        for field in fields(first)
        if field.repr
    )
    return ", ".join(f"{name} is {one} and {other}" for name, one, other in pairs if one != other)


# --- applying a topology ---------------------------------------------------------------------------------


class _Declaring:
    """The channel on which parts are declared. After a refusal, which closes it, another one is opened."""

    def __init__(self, open_channel: OpenChannel) -> None:
        self._open_channel = open_channel
        self._channel: Channel | None = None

    async def declare(self, part: Exchange | Queue) -> Difference | None:
        """Declare a part. Return how the existing one differs, or None."""
        try:
            await self._call(part.method())
        except ChannelClosed as closed:
            if isinstance(part, Queue) and closed.code == _RESOURCE_LOCKED:
                return await self._accessible(part)
            if closed.code == _PRECONDITION_FAILED and (difference := _difference(part, closed.text)):
                return difference
            raise _refused(part, closed) from closed
        except ConnectionLost as lost:
            if isinstance(part, Exchange) and lost.code == _COMMAND_INVALID:
                difference = Difference(str(part), "type", part.type, "unknown to the broker")
                hint = "enable the plugin that has this type, or use another type"
                raise _mismatch((difference,), hint=hint) from lost
            raise
        return None

    async def bind(self, binding: Binding) -> None:
        try:
            await self._call(binding.method())
        except ChannelClosed as closed:
            raise _refused(binding, closed) from closed

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()

    async def _accessible(self, queue: Queue) -> Difference:
        """After a 405: raise if the queue is exclusive to another connection, else return the difference."""
        try:
            await self._call(queue.method(passive=True))
        except ChannelClosed as closed:
            raise QueueLocked(f"{queue} is exclusive to another connection: {closed.text}") from closed
        return Difference(str(queue), "exclusive", _shown(queue.exclusive), _shown(not queue.exclusive))

    async def _call(self, method: methods.Method) -> None:
        if self._channel is None:
            self._channel = await self._open_channel()
        try:
            await self._channel.call(method)
        except ChannelClosed:
            self._channel = None
            raise


def _mismatch(differences: tuple[Difference, ...], hint: str = "") -> TopologyMismatch:
    sentence = f"the broker's topology differs: {'; '.join(map(str, differences))}"
    return TopologyMismatch(sentence, differences=differences, hint=hint)


def _refused(part: Part, closed: ChannelClosed) -> ChannelClosed:
    return ChannelClosed(
        f"{part} was refused: {closed.code} {closed.text}", code=closed.code, text=closed.text
    )


def _difference(part: Exchange | Queue, text: str) -> Difference | None:
    """Read the difference from the text of a 406, if it has one. Texts are cut off at 255 bytes."""
    inequivalent = _INEQUIVALENT.search(text)
    if inequivalent is None:
        return None
    argument = inequivalent.group(1)
    property_ = None if argument in part.table else getattr(part, argument, None)
    declared = _shown(part.table.get(argument, property_))
    match = _FOUND.search(text)
    current = next(filter(None, match.groups()), "") if match else "something else"
    return Difference(str(part), argument, declared, current)


def _shown(value: object) -> str:
    """Return a value as brokers print it."""
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
