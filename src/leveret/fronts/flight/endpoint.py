"""Starts, answers and stops the Flight process, in the broker's event loop.

The process is a child of the broker and ends with it. If it exits by itself, it is started again on the same
port, and clients retry meanwhile. `replace` starts another one with other settings or a changed certificate,
which gRPC can't read again: the old one stops to listen, and ends when its running calls have ended. The
rule: requests are answered within a turn, and an answer is sent when the changes that it reports are durable.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from leveret.broker.access.logins import Origin
from leveret.broker.broker import Broker
from leveret.broker.errors import BrokerError
from leveret.broker.queries import readable_offsets
from leveret.flight import actions, tickets
from leveret.fronts.flight import process_protocol
from leveret.fronts.flight.answers import Answers, readable, refused
from leveret.fronts.flight.connection_limits import Limits
from leveret.storage.errors import StorageError

log = logging.getLogger("leveret")

_START_S: Final = 30.0
_STOP_S: Final = 5.0
_RETRY_S: Final = 1.0
_PORT_FREE_S: Final = 3.0
"""Time in which the Flight process of a killed broker frees its port."""
_TURN_S: Final = 0.005
"""Time spent on answers before other clients have a turn."""
_RETIRED_S: Final = 600.0
"""Time in which running calls of a replaced process may end."""
READ_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class FlightSettings:
    directory: str
    """The broker's data directory, with its segments."""
    host: str = "127.0.0.1"
    port: int = 0
    tls_certificate: str | None = None
    """Path of a PEM file with the certificate chain. If set, the endpoint speaks TLS only."""
    tls_key: str | None = None
    tls_client_authority: str | None = None
    """Path of a PEM file with authorities. If set, every client must have a certificate of one of them."""
    cpus: tuple[int, ...] = ()
    """CPUs that the process may use; empty means all."""
    limits: Limits = field(default_factory=Limits)
    """Limits of connections; `unfinished_bytes_max` follows from the size of a message."""


class Turns(Protocol):
    """What the endpoint needs of `leveret.server.turns`."""

    watchers: list[Callable[[], None]]
    """Called after every turn."""

    def begin(self) -> None:
        """Begin a turn; must be called before the broker is used."""

    def when_caught_up(self, then: Callable[[], None]) -> None:
        """Call `then` as soon as publishers are not held back."""

    def round_trips_us(self) -> dict[str, int]:
        """Return the round-trip times of clients by connection name."""


class _Child(NamedTuple):
    """The Flight process, and the pipe between the process and the broker."""

    process: asyncio.subprocess.Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class FlightEndpoint:
    """Example: `endpoint = FlightEndpoint(broker, turns, settings, ...); await endpoint.start()`."""

    def __init__(
        self, broker: Broker, turns: Turns, settings: FlightSettings, *, module: str, memory_max_bytes: int
    ) -> None:
        """`module` is the main module of the process, which exits above `memory_max_bytes`."""
        self._broker = broker
        self._turns = turns
        self.settings = settings
        self._module = module
        self._memory_max_bytes = memory_max_bytes
        self._answers = Answers(broker)
        self._port = settings.port
        self._child: _Child | None = None
        self._retired: list[_Child] = []
        """Replaced processes that still have calls."""
        self._replacements = 0
        self._serving: set[asyncio.Task[None]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sent_version = broker.accounts.version

    @property
    def port(self) -> int:
        """The listening port; the port that was chosen if settings have 0."""
        return self._port

    @property
    def url(self) -> str:
        scheme = "grpc" if self.settings.tls_certificate is None else "grpc+tls"
        return f"{scheme}://{self.settings.host}:{self._port}"

    @property
    def pid(self) -> int:
        """The id of the process that listens."""
        assert self._child is not None
        return self._child.process.pid

    @property
    def pids(self) -> list[int]:
        """The ids of all processes."""
        return [child.process.pid for child in self._children()]

    def _children(self) -> list[_Child]:
        return self._retired + ([] if self._child is None else [self._child])

    async def start(self) -> None:
        """Return when the process listens; raise `OSError` if it can't, after retries with a port in use."""
        deadline_s = time.monotonic() + _PORT_FREE_S
        while True:
            try:
                self._child = await self._launch()
                break
            except _NotListening:
                if time.monotonic() >= deadline_s:
                    raise
                await asyncio.sleep(_RETRY_S)
        self._begin_serving(self._child)
        self._turns.watchers.append(self._send_permissions_version)
        self._broker.advertised.update(
            flight_port=self._port, flight_tls=self.settings.tls_certificate is not None
        )

    async def stop(self) -> None:
        """Stop the process. Running calls fail; clients may retry them."""
        self._broker.advertised.pop("flight_port", None)
        if self._serving:
            self._turns.watchers.remove(self._send_permissions_version)
            serving = list(self._serving)
            for task in serving:
                task.cancel()
            await asyncio.wait(serving)
        for task in list(self._tasks):
            task.cancel()
        for child in self._children():
            await _end(child.process)

    def replace(self, settings: FlightSettings, memory_max_bytes: int) -> None:
        """Start a process with these settings on the same port. Running calls end in the old process."""
        self.settings, self._memory_max_bytes = settings, memory_max_bytes
        self._replacements += 1
        # Without a process, `_launch_again` is starting one.
        if (old := self._child) is not None:
            self._child = None
            self._retired.append(old)
            old.writer.write(_frame(0, process_protocol.Retire()))
            asyncio.get_running_loop().call_later(_RETIRED_S, _terminate, old.process)
            self._begin_serving(None)

    def _begin_serving(self, child: _Child | None) -> None:
        task = asyncio.create_task(self._serve(child))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _launch(self) -> _Child:
        ours, theirs = socket.socketpair()
        settings = process_protocol.ProcessSettings(
            **asdict(self.settings) | {"port": self._port, "limits": self.settings.limits},
            fd=theirs.fileno(),
            message_max_bytes=self._broker.limits.message_max_bytes,
            memory_max_bytes=self._memory_max_bytes,
        )
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                self._module,
                # Not msgspec's own JSON, because paths may not be UTF-8.
                json.dumps(msgspec.to_builtins(settings)),
                pass_fds=[theirs.fileno()],
                # A Ctrl-C in the terminal must reach the broker alone, which then stops the process.
                process_group=0,
            )
        reader, writer = await asyncio.open_connection(sock=ours, limit=READ_BYTES)
        try:
            async with asyncio.timeout(_START_S):
                _, first = await self._read_question(reader)
        except (TimeoutError, asyncio.IncompleteReadError, process_protocol.WireError) as error:
            writer.close()
            await _end(process)
            raise OSError("the Flight endpoint could not be started") from error
        except asyncio.CancelledError:
            writer.close()
            await _end(process)
            raise
        if isinstance(first, process_protocol.Failed):
            writer.close()
            await _end(process)
            raise _NotListening(f"the Flight endpoint can't listen: {first.text}")
        assert isinstance(first, process_protocol.Ready)
        self._port = first.port
        return _Child(process, reader, writer)

    async def _serve(self, child: _Child | None) -> None:
        """Answer a process until it is replaced; start one if there is none, or if it has exited."""
        while True:
            if child is None:
                child = self._child = await self._launch_again()
            try:
                await self._answer_all(child.reader, child.writer)
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            except process_protocol.WireError as error:
                # Stop the process, so that no call waits for an answer that never comes.
                log.error("the Flight process sent an invalid message: %s", error)
            child.writer.close()
            await _end(child.process)
            if child in self._retired:
                self._retired.remove(child)
                return
            log.error("the Flight process has exited; it is started again")
            child = self._child = None
            await asyncio.sleep(_RETRY_S)

    async def _launch_again(self) -> _Child:
        """Start a process, and try until it listens: the old one may hold the port a little longer."""
        while True:
            replacements = self._replacements
            try:
                child = await self._launch()
                if replacements == self._replacements:
                    return child
                # The settings have changed meanwhile.
                child.writer.close()
                await _end(child.process)
            except OSError as error:
                log.error("%s; trying again", error)
                await asyncio.sleep(_RETRY_S)

    async def _read_question(self, reader: asyncio.StreamReader) -> tuple[int, process_protocol.Question]:
        """Return the number of the next question, and the question; raise `WireError` if it is invalid."""
        head = await reader.readexactly(process_protocol.LENGTH.size)
        most_bytes = process_protocol.question_bytes_max(self._broker.limits.message_max_bytes)
        return process_protocol.read_question(
            await reader.readexactly(process_protocol.body_bytes(head, most_bytes=most_bytes))
        )

    # answers

    async def _answer_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer questions; after `_TURN_S`, let other tasks of the event loop run."""
        began_s = time.monotonic()
        while True:
            number, question = await self._read_question(reader)
            try:
                self._answer(number, question, writer)
            except Exception:  # noqa: BLE001  # an error in one request must not stop the others
                writer.write(_frame(number, _failed()))
            if time.monotonic() - began_s > _TURN_S:
                await asyncio.sleep(0)
                began_s = time.monotonic()

    def _answer(self, number: int, question: process_protocol.Question, writer: asyncio.StreamWriter) -> None:
        match question:
            case process_protocol.Login():
                self._turns.begin()
                self._broker.logins.begin(
                    question.user,
                    question.password,
                    origin=Origin(question.address, question.loopback, "Flight"),
                    done=lambda user: writer.write(
                        _frame(number, process_protocol.LoggedIn(user is not None))
                    ),
                )
            case process_protocol.Ask():
                self._turns.begin()
                answer = self._answers.to(question.user, actions.decode_request(question.request))
                self._reply(number, answer, writer)
            case process_protocol.Stage():
                self._turns.begin()
                descriptor = tickets.decode_descriptor(question.descriptor)
                stage = self._answers.stage
                answer = stage(question.user, descriptor, question.rows, before=question.before)
                # Answers are held back with publishers: without one, the client sends no more rows.
                if question.rows:
                    reply = _frame(number, _answered(answer))
                    self._turns.when_caught_up(lambda: writer.write(reply))
                else:
                    self._reply(number, answer, writer)
            case process_protocol.MayRead():
                check = partial(self._answers.check_reader, question.user, question.vhost, question.queue)
                self._allow(number, check, writer)
            case process_protocol.MayAudit():
                self._allow(number, partial(self._answers.check_auditor, question.user), writer)
            case process_protocol.View():
                self._answer_later(number, self._view(question), writer)
            case process_protocol.Noted():
                log.warning("the Flight process: %s", question.text)
            case process_protocol.Checkpoint():
                self._answer_later(number, self._checkpoint(question), writer)

    def _send_permissions_version(self) -> None:
        """Send the version of users and permissions if it changed: running reads check them again."""
        version = self._broker.accounts.version
        if version != self._sent_version:
            self._sent_version = version
            for child in self._children():
                child.writer.write(_frame(0, process_protocol.PermissionsChanged(version)))

    def _allow(self, number: int, check: Callable[[], None], writer: asyncio.StreamWriter) -> None:
        """Answer with `Done`, or with the refusal that the check raises."""
        answer: actions.Answer = actions.Done()
        try:
            check()
        except BrokerError as error:
            answer = refused(error)
        writer.write(_frame(number, _answered(answer)))

    def _reply(self, number: int, answer: actions.Answer, writer: asyncio.StreamWriter) -> None:
        """Send an answer when its changes are durable; send a refusal at once."""
        reply = _frame(number, _answered(answer))
        if isinstance(answer, actions.Refused):
            writer.write(reply)
        else:
            self._broker.ledger.when_durable(lambda: writer.write(reply))

    def _answer_later(
        self, number: int, work: Coroutine[Any, Any, process_protocol.Reply], writer: asyncio.StreamWriter
    ) -> None:
        """Run a coroutine as a task, and send its reply, or the refusal that it raises."""

        async def answer() -> None:
            try:
                reply = await work
            except (BrokerError, StorageError) as error:
                reply = _answered(refused(error))
            except Exception:  # noqa: BLE001  # the caller must not wait for an answer that never comes
                reply = _failed()
            writer.write(_frame(number, reply))

        task = asyncio.create_task(answer())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _view(self, question: process_protocol.View) -> process_protocol.Reply:
        """Return a view, after messages in memory are written to files for the process."""
        queue = self._answers.queue_of(question.user, question.vhost, question.queue, question.log_id)
        await asyncio.get_running_loop().run_in_executor(None, readable_offsets.write_out, queue)
        view, withheld = readable_offsets.view(queue, question.start, question.stop)
        return process_protocol.Viewed(view, withheld.encode())

    async def _checkpoint(self, question: process_protocol.Checkpoint) -> process_protocol.Reply:
        self._answers.check_auditor(question.user)
        self._broker.flush()
        taken_us = self._broker.now_us()
        await asyncio.get_running_loop().run_in_executor(None, self._broker.store.checkpoint)
        # The checkpoint has synced the store for everybody who waits for a sync.
        self._turns.begin()
        self._broker.synced()
        round_trips_us = self._turns.round_trips_us()
        return process_protocol.Checkpointed(
            taken_us, {readable(name): time_us for name, time_us in round_trips_us.items()}
        )


class _NotListening(OSError):
    pass


async def _end(process: asyncio.subprocess.Process) -> None:
    _terminate(process)
    try:
        async with asyncio.timeout(_STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _terminate(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()


def _failed() -> process_protocol.Answered:
    """Log the current exception, and return an answer for an internal error."""
    log.exception("an internal error in a request of the Flight process")
    return _answered(actions.Refused(541, "an internal error; see the broker's log"))


def _answered(answer: actions.Answer) -> process_protocol.Answered:
    return process_protocol.Answered(actions.encode(answer))


def _frame(number: int, reply: process_protocol.Reply) -> bytes:
    """Return the reply as a frame; if it is too large, a refusal."""
    try:
        return process_protocol.frame(number, reply)
    except process_protocol.WireError as error:
        return process_protocol.frame(
            number, _answered(actions.Refused(541, f"the broker's answer is {error}"))
        )
