"""Running a command: signals, errors, exit codes; the same for all commands that talk to a broker.

    0     everything is as it was asked for
    1     something is not: a message that was not confirmed or not moved, a broker that is away
    2     the command line makes no sense
    130   stopped by Ctrl-C before the end (143: by SIGTERM)

An error of the toolkit or of a file is one line on stderr, `leveret: what happened (what to do)`. The first
signal asks a command to come to an end in order, the second one not to wait for anything any more.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import typer

from leveret.amqp.errors import SHORT_STRING_BYTES_MAX
from leveret.cli.screen import Screen
from leveret.client import ChannelClosed, ClientError, Connection, Topology
from leveret.client.channel import Channel
from leveret.client.passive_checks import depth, is_there_an_exchange

_T = TypeVar("_T")
_NOT_FOUND = 404
_CHECK_S = 10.0
FAILED = 1


class Interruption:
    """Ctrl-C and SIGTERM, for the time that a command runs. Before `handle`, a signal ends it at once."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        """To stop."""
        self.insisted = asyncio.Event()
        """Not to wait for what is under way."""
        self.exit_code = 0
        self._cancel: Callable[[], object] | None = _current_task().cancel
        for each in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(each, self._told, each)

    def handle(self) -> None:
        """From now on there is something to bring to an end: the command looks at `asked` itself."""
        self._cancel = None

    def _told(self, by: signal.Signals) -> None:
        if self.asked.is_set():
            self.insisted.set()
        self.exit_code = 128 + by
        self.asked.set()
        if self._cancel is not None:
            self._cancel()


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


async def unless(event: asyncio.Event, work: Awaitable[_T]) -> _T | None:
    """What the work gives; None if the event comes first: then the work is cancelled."""
    task = asyncio.ensure_future(work)
    signal_ = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((task, signal_), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        signal_.cancel()


def run(screen: Screen, work: Callable[[Interruption], Coroutine[Any, Any, int]]) -> None:
    """Runs a command, whose work gives the exit code; ends with `typer.Exit`."""

    async def main() -> int:
        interruption = Interruption()
        try:
            return await work(interruption)
        except asyncio.CancelledError:
            return interruption.exit_code

    try:
        code = asyncio.run(main())
    except (ClientError, OSError) as error:
        screen.say(str(error))
        code = FAILED
    raise typer.Exit(code)


@asynccontextmanager
async def connected(
    urls: list[str] | None, *, timeout_s: float, name: str, topology: Topology | None = None
) -> AsyncIterator[Connection]:
    """A connection that is open; an error if that takes longer than `timeout_s`."""
    connection = Connection(*(urls or ()), topology=topology, name=name)
    try:
        await connection.open(timeout_s)
        yield connection
    finally:
        await connection.close()


async def queue_depth(connection: Connection, queue: str, *, hint: str = "") -> int:
    """How many messages are ready in the queue; an error if there is no such queue."""
    _check_name(queue, "a queue")
    missing = ClientError(f"there is no queue '{queue}'", hint=hint)
    return await _asked(connection, lambda channel: depth(channel, queue), missing=missing)


async def require_exchange(connection: Connection, exchange: str) -> None:
    """An error if there is no such exchange."""
    _check_name(exchange, "an exchange")
    missing = ClientError(f"there is no exchange '{exchange}'")
    question = is_there_an_exchange(exchange)
    await _asked(connection, lambda channel: channel.call(question), missing=missing)


def _check_name(name: str, whose: str) -> None:
    """An error if no frame can carry it."""
    size_bytes = len(name.encode("utf-8", "surrogateescape"))
    if size_bytes > SHORT_STRING_BYTES_MAX:
        raise ClientError(f"{whose}'s name has at most {SHORT_STRING_BYTES_MAX} bytes, not {size_bytes}")


async def _asked(
    connection: Connection, question: Callable[[Channel], Awaitable[_T]], *, missing: ClientError
) -> _T:
    """On a channel of its own, because a broker that says no closes it."""
    session = await connection.connected(_CHECK_S)
    channel = await session.open_channel()
    try:
        async with asyncio.timeout(_CHECK_S):
            return await question(channel)
    except ChannelClosed as error:
        raise missing if error.code == _NOT_FOUND else error from error
    except TimeoutError as error:
        raise ClientError(f"the broker did not answer in {_CHECK_S:g} s") from error
    finally:
        await channel.close()
