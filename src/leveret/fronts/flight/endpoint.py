"""The Flight process, as the broker sees it: started, answered, ended.

It is a child of the broker and ends with it. If it ends by itself it is started again, on the same port;
clients try again meanwhile. Requests are answered in the broker's loop, in a turn, and an answer leaves when
what it says is durable.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol

import msgspec

from leveret.broker.access.logins import Origin
from leveret.broker.broker import Broker
from leveret.broker.errors import BrokerError
from leveret.broker.queries import readable_offsets
from leveret.flight import actions, tickets
from leveret.fronts.flight import process_protocol
from leveret.fronts.flight.answers import Answers, readable, refused
from leveret.storage.errors import StorageError

log = logging.getLogger("leveret")

_START_S: Final = 30.0
_GOODBYE_S: Final = 5.0
_AGAIN_S: Final = 1.0
_AFTER_A_KILL_S: Final = 3.0
_TURN_S: Final = 0.005
"""Questions are answered for so long before everybody else has a turn."""
READ_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class FlightSettings:
    directory: str
    """The broker's data: segments are read from there."""
    host: str = "127.0.0.1"
    port: int = 0
    tls_certificate: str | None = None
    """Path of a PEM file with the chain; with it the endpoint speaks TLS only."""
    tls_key: str | None = None
    cpus: tuple[int, ...] = ()
    """The processors that the process runs on; none stands for all."""


class Turns(Protocol):
    """What the endpoint needs of the loop that the broker runs in: `leveret.server.turns`."""

    watchers: list[Callable[[], None]]
    """Called after every turn."""

    def begin(self) -> None:
        """Something is about to be asked of the broker: a turn follows."""

    def when_caught_up(self, then: Callable[[], None]) -> None:
        """Call it when publishers are not held back."""

    def round_trips_us(self) -> dict[str, int]:
        """How far away clients are, by the names of their connections."""


class FlightEndpoint:
    """`endpoint = FlightEndpoint(broker, turns, settings, ...); await endpoint.start()`."""

    def __init__(
        self, broker: Broker, turns: Turns, settings: FlightSettings, *, module: str, memory_max_bytes: int
    ) -> None:
        """`module` is what the process runs; with more memory than `memory_max_bytes` it ends."""
        self._broker = broker
        self._turns = turns
        self._settings = settings
        self._module = module
        self._memory_max_bytes = memory_max_bytes
        self._answers = Answers(broker)
        self._port = settings.port
        self._process: asyncio.subprocess.Process | None = None
        self._serving: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._writer: asyncio.StreamWriter | None = None
        self._told_version = broker.accounts.version

    @property
    def port(self) -> int:
        """Where it listens; the one that was free if 0 was asked for."""
        return self._port

    @property
    def url(self) -> str:
        scheme = "grpc" if self._settings.tls_certificate is None else "grpc+tls"
        return f"{scheme}://{self._settings.host}:{self._port}"

    @property
    def pid(self) -> int:
        """Of the process that serves."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Returns when it listens; raises `OSError` if it can't. The process of a broker that was killed just
        now may still have the port."""
        deadline_s = time.monotonic() + _AFTER_A_KILL_S
        while True:
            try:
                reader, writer = await self._launch()
                break
            except _NotListening:
                if time.monotonic() >= deadline_s:
                    raise
                await asyncio.sleep(_AGAIN_S)
        self._serving = asyncio.create_task(self._serve(reader, writer))
        self._turns.watchers.append(self._tell_rights)
        self._broker.advertised.update(
            flight_port=self._port, flight_tls=self._settings.tls_certificate is not None
        )

    async def stop(self) -> None:
        """Ends the process; calls under way fail and may be tried again elsewhere."""
        self._stopping = True
        self._broker.advertised.pop("flight_port", None)
        if self._serving is not None:
            self._turns.watchers.remove(self._tell_rights)
            self._serving.cancel()
            await asyncio.wait([self._serving])
        for task in list(self._tasks):
            task.cancel()
        await self._end_process()

    async def _launch(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        ours, theirs = socket.socketpair()
        settings = process_protocol.ProcessSettings(
            **asdict(self._settings) | {"port": self._port},
            fd=theirs.fileno(),
            message_max_bytes=self._broker.limits.message_max_bytes,
            memory_max_bytes=self._memory_max_bytes,
        )
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                self._module,
                json.dumps(msgspec.to_builtins(settings)),  # paths may be no UTF-8
                pass_fds=[theirs.fileno()],
                process_group=0,  # a Ctrl-C in the terminal is for the broker, which then ends it
            )
        reader, writer = await asyncio.open_connection(sock=ours, limit=READ_BYTES)
        try:
            async with asyncio.timeout(_START_S):
                _, first = await self._hear(reader)
        except (TimeoutError, asyncio.IncompleteReadError, process_protocol.WireError) as error:
            writer.close()
            await self._end_process()
            raise OSError("the Flight endpoint could not be started") from error
        if isinstance(first, process_protocol.Failed):
            writer.close()
            await self._end_process()
            raise _NotListening(f"the Flight endpoint can't listen: {first.text}")
        assert isinstance(first, process_protocol.Ready)
        self._port = first.port
        self._writer = writer
        return reader, writer

    async def _end_process(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(_GOODBYE_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                await self._answer_all(reader, writer)
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            except process_protocol.WireError as error:  # nobody waits for an answer that never comes
                log.error("the Flight endpoint said something that can't be read: %s", error)
            writer.close()
            await self._end_process()
            log.error("the Flight endpoint has ended; it is started again")
            while True:
                await asyncio.sleep(_AGAIN_S)
                try:
                    reader, writer = await self._launch()
                    break
                except OSError as error:
                    log.error("%s; it is tried again", error)

    async def _hear(self, reader: asyncio.StreamReader) -> tuple[int, process_protocol.Question]:
        """Return the next question and its number; `WireError` if it is none."""
        head = await reader.readexactly(process_protocol.LENGTH.size)
        most_bytes = process_protocol.question_bytes_max(self._broker.limits.message_max_bytes)
        return process_protocol.read_question(
            await reader.readexactly(process_protocol.body_bytes(head, most_bytes=most_bytes))
        )

    # answering

    async def _answer_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Others have their turn in between, however many questions have come."""
        began_s = time.monotonic()
        while True:
            number, question = await self._hear(reader)
            try:
                self._answer(number, question, writer)
            except Exception:  # noqa: BLE001  # one request must not cost the others their answers
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
                    origin=Origin(question.address, question.loopback),
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
                if question.rows:  # who gets no answer sends no more
                    reply = _frame(number, process_protocol.Answered(actions.encode(answer)))
                    self._turns.when_caught_up(lambda: writer.write(reply))
                else:
                    self._reply(number, answer, writer)
            case process_protocol.MayRead():
                self._allow(
                    number,
                    lambda: self._answers.check_reader(question.user, question.vhost, question.queue),
                    writer,
                )
            case process_protocol.MayAudit():
                self._allow(number, lambda: self._answers.check_auditor(question.user), writer)
            case process_protocol.View():
                self._begin(self._view(number, question, writer))
            case process_protocol.Noted():
                log.warning("the Flight endpoint: %s", question.text)
            case process_protocol.Checkpoint():
                self._begin(self._checkpoint(number, question, writer))

    def _tell_rights(self) -> None:
        """After a turn: what is being read is checked again when users or rights have changed."""
        version = self._broker.accounts.version
        if version != self._told_version and self._writer is not None:
            self._told_version = version
            self._writer.write(_frame(0, process_protocol.RightsChanged(version)))

    def _allow(self, number: int, check: Callable[[], None], writer: asyncio.StreamWriter) -> None:
        """Answer with `Done`, or with the refusal that the check raises."""
        answer: actions.Answer = actions.Done()
        try:
            check()
        except BrokerError as error:
            answer = refused(error)
        writer.write(_frame(number, process_protocol.Answered(actions.encode(answer))))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _reply(self, number: int, answer: actions.Answer, writer: asyncio.StreamWriter) -> None:
        """When what it says is durable; a refusal says nothing of the kind."""
        reply = _frame(number, process_protocol.Answered(actions.encode(answer)))
        if isinstance(answer, actions.Refused):
            writer.write(reply)
        else:
            self._broker.ledger.when_durable(lambda: writer.write(reply))

    async def _view(self, number: int, question: process_protocol.View, writer: asyncio.StreamWriter) -> None:
        """What is in memory is written first, because the process reads files."""
        try:
            queue = self._answers.queue_of(question.user, question.vhost, question.queue, question.log_id)
            await asyncio.get_running_loop().run_in_executor(None, readable_offsets.write_out, queue)
            view, withheld = readable_offsets.view(queue, question.start, question.stop)
            reply: process_protocol.Reply = process_protocol.Viewed(view, withheld.encode())
        except (BrokerError, StorageError) as error:
            reply = process_protocol.Answered(actions.encode(refused(error)))
        except Exception:  # noqa: BLE001  # the caller must not wait for an answer that never comes
            reply = _failed()
        writer.write(_frame(number, reply))

    async def _checkpoint(
        self, number: int, question: process_protocol.Checkpoint, writer: asyncio.StreamWriter
    ) -> None:
        try:
            self._answers.check_auditor(question.user)
            self._broker.flush()
            taken_us = self._broker.now_us()
            await asyncio.get_running_loop().run_in_executor(None, self._broker.store.checkpoint)
            self._turns.begin()  # whoever waits for a sync has had one
            self._broker.synced()
            round_trips_us = self._turns.round_trips_us()
            reply: process_protocol.Reply = process_protocol.Checkpointed(
                taken_us, {readable(name): each_us for name, each_us in round_trips_us.items()}
            )
        except (BrokerError, StorageError) as error:
            reply = process_protocol.Answered(actions.encode(refused(error)))
        except Exception:  # noqa: BLE001  # the caller must not wait for an answer that never comes
            reply = _failed()
        writer.write(_frame(number, reply))


class _NotListening(OSError):
    """The Flight process could not listen on its port. The error has the reason."""


def _failed() -> process_protocol.Answered:
    """In place of an answer, where an exception is under way that should not be."""
    log.exception("the Flight endpoint: an internal error")
    return process_protocol.Answered(
        actions.encode(actions.Refused(541, "an internal error of the broker; its log tells more"))
    )


def _frame(number: int, reply: process_protocol.Reply) -> bytes:
    """Return the reply as it is sent; in place of one that is too large, a refusal."""
    try:
        return process_protocol.frame(number, reply)
    except process_protocol.WireError as error:
        refused = actions.Refused(541, f"the broker's answer is {error}")
        return process_protocol.frame(number, process_protocol.Answered(actions.encode(refused)))
