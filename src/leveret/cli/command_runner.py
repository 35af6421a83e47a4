"""Running a command: signals, errors and exit codes for all commands that talk to a broker.

    0     the command did what was asked
    1     something failed: a message was not confirmed or not moved, the broker is away
    2     the command line is invalid
    130   stopped by Ctrl-C before the end (143: by SIGTERM)

An error of the toolkit or of a file is one line on stderr, `leveret: what happened (what to do)`. The first
signal asks a command to finish in order, the second one to stop without waiting.
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
    """Ctrl-C and SIGTERM while a command runs. A signal before `finish_in_order` cancels the command."""

    def __init__(self) -> None:
        self.stop_requested = asyncio.Event()
        """Set by the first signal."""
        self.abort_requested = asyncio.Event()
        """Set by the second signal: do not wait for anything any more."""
        self.exit_code = 0
        self._cancel: Callable[[], object] | None = _current_task().cancel
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(signal_number, self._on_signal, signal_number)

    def finish_in_order(self) -> None:
        """From now on a signal does not cancel the command, which checks `stop_requested` itself."""
        self._cancel = None

    def _on_signal(self, signal_number: signal.Signals) -> None:
        if self.stop_requested.is_set():
            self.abort_requested.set()
        self.exit_code = 128 + signal_number
        self.stop_requested.set()
        if self._cancel is not None:
            self._cancel()


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


async def result_unless(event: asyncio.Event, work: Awaitable[_T]) -> _T | None:
    """Return the result of the work, or cancel the work and return None if the event is set first."""
    work_task = asyncio.ensure_future(work)
    event_task = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((work_task, event_task), return_when=asyncio.FIRST_COMPLETED)
        return work_task.result() if work_task.done() else None
    finally:
        work_task.cancel()
        event_task.cancel()


def run(screen: Screen, work: Callable[[Interruption], Coroutine[Any, Any, int]]) -> None:
    """Run the work of a command, which returns the exit code; end with `typer.Exit`."""

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
    """Open a connection, or raise an error if that takes longer than `timeout_s`; close it at the end."""
    connection = Connection(*(urls or ()), topology=topology, name=name)
    try:
        await connection.open(timeout_s)
        yield connection
    finally:
        await connection.close()


async def queue_depth(connection: Connection, queue: str, *, hint: str = "") -> int:
    """Return the number of ready messages in the queue; raise `ClientError` if the queue does not exist."""
    _check_name(queue, "a queue")
    missing = ClientError(f"there is no queue '{queue}'", hint=hint)
    return await _ask_broker(connection, lambda channel: depth(channel, queue), missing=missing)


async def require_exchange(connection: Connection, exchange: str) -> None:
    """Raise `ClientError` if the exchange does not exist."""
    _check_name(exchange, "an exchange")
    missing = ClientError(f"there is no exchange '{exchange}'")
    question = is_there_an_exchange(exchange)
    await _ask_broker(connection, lambda channel: channel.call(question), missing=missing)


def _check_name(name: str, owner: str) -> None:
    """Raise `ClientError` if the name is too long for a frame of AMQP."""
    size_bytes = len(name.encode("utf-8", "surrogateescape"))
    if size_bytes > SHORT_STRING_BYTES_MAX:
        raise ClientError(f"{owner}'s name has at most {SHORT_STRING_BYTES_MAX} bytes, not {size_bytes}")


async def _ask_broker(
    connection: Connection, question: Callable[[Channel], Awaitable[_T]], *, missing: ClientError
) -> _T:
    """Ask on a channel of its own, because the broker closes the channel if the answer is no."""
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
