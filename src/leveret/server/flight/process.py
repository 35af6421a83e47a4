"""The Flight process: Arrow Flight to clients, questions to the broker, segments from the disk.

    python -m leveret.server.flight.process '{"directory": ..., "host": ..., "port": ..., "fd": ...}'

Started by `endpoint`, ended by it or with it: when the broker's end of the socket closes, the process is
gone. It holds no state but the pictures that audits read (`pictures`). Who calls, what may be done, where
messages are, what becomes of rows: all of it is asked of the broker in every call, and what is being read is
asked for again when rights have changed (`_while_allowed`). The rules: no right is remembered; of a file it
reads no byte that a view or a checkpoint of the broker does not name.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import itertools
import json
import os
import pickle
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import flight

from leveret.flight import actions, schemas, tickets
from leveret.server.binding import bind
from leveret.server.flight import wire
from leveret.server.flight.pictures import Pictures
from leveret.storage import events
from leveret.storage.arrow import LogReader
from leveret.storage.errors import Damage, OffsetOutOfRange, StorageError
from leveret.storage.files import OsFiles
from leveret.storage.picture import Picture
from leveret.storage.view import LogView, SegmentGone

T = TypeVar("T")

_STAGE_ROWS: Final = 2000
"""Rows that the broker takes at once: some milliseconds of its time."""
_STAGE_BYTES: Final = 4 << 20
_TIMEOUT_S: Final = 120.0
_SIZES_MAX: Final = (255, 255, 16 << 20)
"""Of an exchange, a routing key, and a content header: the broker knows what fits into its frames."""
_REQUEST_BYTES_MAX: Final = 64 << 20
_AUTH: Final = "auth"
_NICER: Final = 5
"""So far behind the broker in the line for a processor, and behind all who did not ask for another place."""


class BrokerLine:
    """Questions to the broker, from any thread: `line.ask(wire.Login(...))`.

    The broker wants to hear how the start went before anything else; clients may be there sooner.
    """

    def __init__(self, line: socket.socket) -> None:
        self._socket = line
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[wire.Reply]] = {}
        self._lock = threading.Lock()
        self._told = threading.Event()
        self.rights_version = 0
        """Changes when the broker says that users or rights have changed."""

    def tell(self, message: wire.Ready | wire.Failed) -> None:
        """How the start went; what was asked before follows."""
        self._send(0, message)
        self._told.set()

    def ask(self, question: wire.Question) -> wire.Reply:
        self._told.wait()
        number = next(self._numbers)
        future: Future[wire.Reply] = Future()
        self._waiting[number] = future
        self._send(number, question)
        try:
            return future.result(_TIMEOUT_S)
        except TimeoutError:
            raise flight.FlightTimedOutError("the broker does not answer") from None
        finally:
            self._waiting.pop(number, None)

    def _send(self, number: int, question: wire.Question) -> None:
        try:
            with self._lock:
                self._socket.sendall(wire.frame(number, question))
        except OSError:
            raise flight.FlightUnavailableError("the broker is gone") from None

    def listen(self) -> None:
        """Until the broker is gone."""
        with self._socket.makefile("rb") as stream:
            while len(head := stream.read(wire.LENGTH.size)) == wire.LENGTH.size:
                body = stream.read(wire.LENGTH.unpack(head)[0])
                if len(body) < wire.LENGTH.unpack(head)[0]:
                    return
                number, reply = wire.read_reply(body)
                if isinstance(reply, wire.RightsChanged):
                    self.rights_version = reply.version
                    continue
                future = self._waiting.get(number)
                if future is not None:
                    future.set_result(reply)


class _Caller(flight.ServerMiddleware):  # type: ignore[misc]
    """The name and the password that came with a call."""

    def __init__(self, user: str, password: bytes) -> None:
        self.user = user
        self.password = password


class _Callers(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    def start_call(self, info: Any, headers: dict[str, list[str]]) -> _Caller:
        for name, values in headers.items():
            if name.lower() == "authorization" and values[0].startswith("Basic "):
                try:
                    user, _, password = base64.b64decode(values[0][6:]).partition(b":")
                except binascii.Error:
                    break
                return _Caller(user.decode("utf-8", "replace"), password)
        raise flight.FlightUnauthenticatedError("a name and a password are needed: authorization: Basic ...")


class FlightProcess(flight.FlightServerBase):  # type: ignore[misc]
    """Serves until it is shut down."""

    def __init__(self, settings: dict[str, Any], line: BrokerLine) -> None:
        scheme, certificates = "grpc+tcp", []
        if settings["tls_certificate"] is not None:
            scheme = "grpc+tls"
            paths = (settings["tls_certificate"], settings["tls_key"])
            certificates = [tuple(Path(path).read_bytes() for path in paths)]
        self._directory = settings["directory"]
        self._message_max_bytes: int = settings["message_max_bytes"]
        self._line = line
        self._pictures = Pictures(self._directory)
        self._pictures.watch()
        super().__init__(  # last: it serves from here on
            f"{scheme}://{settings['host']}:{settings['port']}",
            tls_certificates=certificates,
            middleware={_AUTH: _Callers()},
        )

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        user = self._user(context)
        if action.type != actions.ACTION:
            raise flight.FlightServerError(f"there is no action '{action.type}', only '{actions.ACTION}'")
        if action.body.size > _REQUEST_BYTES_MAX:
            raise flight.FlightServerError(f"a request has at most {_REQUEST_BYTES_MAX} bytes")
        request = action.body.to_pybytes()
        asked = _read(actions.decode_request, request)
        if isinstance(asked, actions.TakePicture | actions.DropPicture):
            return [actions.encode(self._picture(user, asked))]
        reply = self._line.ask(wire.Ask(user, request))
        assert isinstance(reply, wire.Answered)
        return [reply.answer]

    def _picture(self, user: str, asked: actions.TakePicture | actions.DropPicture) -> actions.Answer:
        if isinstance(asked, actions.DropPicture):
            self._pictures.drop(asked.picture, user)
            return actions.Done()
        reply = self._line.ask(wire.Checkpoint(user))
        if not isinstance(reply, wire.Checkpointed):
            return _refused(reply)
        try:
            kept = self._pictures.take(asked.name, user, reply.taken_us)
        except StorageError as error:
            return actions.Refused(541, f"no picture of the store can be taken: {error.message}", error.hint)
        except OSError as error:
            return actions.Refused(541, f"no picture of the store can be taken: {error}")
        damage = [(each.file, each.position, each.offset, each.what) for each in kept.damage]
        return actions.Taken(kept.picture.encode(), kept.taken_us, reply.round_trips_us, damage)

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        return [(actions.ACTION, "a request of leveret.flight.actions")]

    # reading

    def do_get(self, context: Any, ticket: Any) -> Any:
        user = self._user(context)
        wanted = _read(tickets.decode_ticket, ticket.ticket)
        version = self._line.rights_version
        if isinstance(wanted, tickets.PieceTicket):
            allowed: wire.Question = wire.MayAudit(user)
            self._check(allowed)
            schema, batches = events.SCHEMA, self._piece(user, wanted)
        else:
            allowed = wire.MayRead(user, wanted.vhost, wanted.queue)
            schema = schemas.read_schema(with_headers=wanted.with_headers)
            batches = self._batches(user, wanted, self._view(user, wanted), schema)
        return flight.GeneratorStream(schema, self._while_allowed(batches, allowed, version))

    def _while_allowed(
        self, batches: Iterator[pa.RecordBatch], allowed: wire.Question, version: int
    ) -> Iterator[pa.RecordBatch]:
        """Ask for the right again, before the next batch, when rights have changed since the last one."""
        for batch in batches:
            if version != self._line.rights_version:
                version = self._line.rights_version
                self._check(allowed)
            yield batch

    def _check(self, question: wire.Question) -> None:
        """Raise if the broker refuses this."""
        reply = self._line.ask(question)
        assert isinstance(reply, wire.Answered)
        if not isinstance(actions.decode_answer(reply.answer), actions.Done):
            raise _error(_refused(reply))

    def _piece(self, user: str, wanted: tickets.PieceTicket) -> Iterator[pa.RecordBatch]:
        picture = self._picture_of(user, wanted)
        found: list[Damage] = []
        yield from events.rows(
            picture, events.Piece(wanted.event, wanted.log_id, wanted.segment), found.append
        )
        if found:
            self._picture_of(user, wanted)  # what went with a picture that was dropped is not damaged
            yield events.damaged(found)

    def _picture_of(self, user: str, wanted: tickets.PieceTicket) -> Picture:
        picture = self._pictures.named(wanted.picture, user)
        if picture is None:
            hint = "It was dropped, or the broker was started again: begin the audit anew."
            raise _error(actions.Refused(404, "the picture is not there any more", hint, "gone"))
        return picture

    def _batches(
        self, user: str, wanted: tickets.ReadTicket, view: LogView, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """In order. A segment that was rewritten meanwhile is found again with a new view, one that is lost
        is not."""
        ranges = tickets.unpack_ranges(wanted.ranges)
        rows, gone = 0, set[str]()
        while ranges:
            try:
                with LogReader(OsFiles(self._directory, read_only=True), view) as reader:
                    for batch in reader.read(ranges, columns=schema.names):
                        rows += batch.num_rows
                        yield batch
                        ranges = _behind(ranges, batch.column("offset")[-1].as_py())
                break
            except SegmentGone as error:
                gone.add(error.path)
                view = self._view(user, wanted).without(gone)
            except OffsetOutOfRange as error:
                raise _error(actions.Refused(404, str(error), error.hint, "gone")) from None
        missing = sum(stop - start for start, stop in tickets.unpack_ranges(wanted.ranges)) - rows
        if missing and wanted.exact:
            sentence = f"{missing} messages of queue '{wanted.queue}' in vhost '{wanted.vhost}' are gone"
            hint = "They were settled or damaged meanwhile. failOnDataLoss=false reads what is there."
            raise _error(actions.Refused(404, sentence, hint, "gone"))

    def _view(self, user: str, wanted: tickets.ReadTicket) -> LogView:
        reply = self._line.ask(wire.View(user, wanted.vhost, wanted.queue, wanted.log_id))
        if isinstance(reply, wire.Viewed):
            view: LogView = pickle.loads(reply.view)
            return view
        raise _error(_refused(reply))

    # writing

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        user = self._user(context)
        _read(tickets.decode_descriptor, descriptor.command)
        if not reader.schema.equals(schemas.WRITE):
            raise flight.FlightServerError(f"rows must be like {schemas.WRITE}, not like {reader.schema}")
        before = 0
        for chunk in reader:
            if any(column.null_count for column in chunk.data.columns):
                raise flight.FlightServerError("rows must be without nulls: an empty name is b''")
            check_sizes(chunk.data, self._message_max_bytes)
            rows = list(zip(*(column.to_pylist() for column in chunk.data.columns), strict=True))
            for some in _slices(rows):
                self._check(wire.Stage(user, descriptor.command, some, before))
                before += len(some)
        self._check(wire.Stage(user, descriptor.command, [], before))

    # who it is

    def _user(self, context: Any) -> str:
        caller: _Caller = context.get_middleware(_AUTH)
        address = _address(context.peer())
        reply = self._line.ask(wire.Login(caller.user, caller.password, address, _is_loopback(address)))
        if not (isinstance(reply, wire.LoggedIn) and reply.welcome):
            raise flight.FlightUnauthenticatedError(f"login of user '{caller.user}' was refused")
        return caller.user


def _read(decode: Callable[[bytes], T], data: bytes) -> T:
    """What a client said; an error of its own if that makes no sense."""
    try:
        return decode(data)
    except msgspec.MsgspecError as error:
        raise flight.FlightServerError(f"a request that can't be read: {error}") from None


def _behind(ranges: list[tuple[int, int]], last: int) -> list[tuple[int, int]]:
    """What is left to read when this offset has been."""
    return [(max(start, last + 1), stop) for start, stop in ranges if stop > last + 1]


def check_sizes(rows: pa.RecordBatch, message_max_bytes: int) -> None:
    """What no message could be is not sent to the broker, which has others to serve."""
    longest = [pc.max(pc.binary_length(column)).as_py() or 0 for column in rows.columns]
    for name, size, limit in zip(schemas.WRITE.names, longest, _SIZES_MAX, strict=False):
        if size > limit:
            raise _error(actions.Refused(406, f"a row's {name} has {size} bytes, more than {limit}"))
    if longest[-1] > message_max_bytes:
        sentence = f"message size {longest[-1]} is larger than configured max size {message_max_bytes}"
        raise _error(actions.Refused(406, sentence))


def _slices(rows: list[Any]) -> Iterator[list[Any]]:
    some: list[Any] = []
    size = 0
    for row in rows:
        some.append(row)
        size += sum(map(len, row))
        if len(some) >= _STAGE_ROWS or size >= _STAGE_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


def _refused(reply: wire.Reply) -> actions.Refused:
    assert isinstance(reply, wire.Answered)
    answer = actions.decode_answer(reply.answer)
    assert isinstance(answer, actions.Refused)
    return answer


def _error(refused: actions.Refused) -> flight.FlightServerError:
    return flight.FlightServerError(refused.text, actions.encode(refused))


def _address(peer: str) -> str:
    """Return the address of a gRPC peer; nothing for one on a Unix socket.

    >>> [_address(each) for each in ("ipv4:127.0.0.1:4040", "ipv6:%5B::1%5D:4040", "unix:", "")]
    ['127.0.0.1', '::1', '', 'unknown']
    """
    kind, _, rest = peer.partition(":")
    if kind == "unix":
        return ""
    host = rest.rpartition(":")[0].replace("%5B", "").replace("%5D", "").strip("[]")
    return host.partition("%")[0] or "unknown"


def _is_loopback(address: str) -> bool:
    """
    >>> [_is_loopback(each) for each in ("127.0.0.1", "::1", "", "9.9.9.9", "unknown")]
    [True, True, True, False, False]
    """
    try:
        return not address or ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _stand_back() -> None:
    """Behind the broker in the line for a processor, wherever that stands.

    Linux may count niceness within a session only (`autogroup`), so this process stays in the broker's.
    """
    if sys.platform == "linux" and os.sched_getscheduler(0) in (os.SCHED_RR, os.SCHED_FIFO):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.setpriority(os.PRIO_PROCESS, 0, max(0, os.getpriority(os.PRIO_PROCESS, 0)) + _NICER)


def main() -> None:
    settings = json.loads(sys.argv[1])
    line = socket.socket(fileno=settings["fd"])
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # it may write to a terminal that is the broker's
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as for the broker: it kills neither
    _stand_back()
    if settings["cpus"]:
        os.sched_setaffinity(0, settings["cpus"])
    broker = BrokerLine(line)
    with suppress(OSError, flight.FlightUnavailableError):  # the broker may be killed at any time
        try:
            for bound in bind(settings["host"], settings["port"]):  # gRPC says why not in lines of its own
                bound.close()
            server = FlightProcess(settings, broker)
        except (OSError, pa.ArrowException) as error:
            broker.tell(wire.Failed(str(error)))
            return
        broker.tell(wire.Ready(server.port))
        broker.listen()
    os._exit(0)  # at once: calls under way wait for a broker that is gone, and the port must be free


if __name__ == "__main__":
    main()
