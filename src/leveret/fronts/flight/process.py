"""The Flight process: Arrow Flight to clients, questions to the broker, segments from the disk.

`leveret.server.flight_process` starts and ends the process. Its only state are the store snapshots that
audits read (`store_snapshots`). Every call asks the broker who the caller is, what it may do, where messages
are and what happens to rows. A running read asks again when rights have changed (`_while_allowed`). The
rules: no right is remembered, and no byte of a file is read that a view or a checkpoint of the broker does
not name.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import pyarrow as pa
from pyarrow import flight

from leveret.flight import actions, bounds, schemas, tickets
from leveret.fronts.flight import process_limits, process_protocol, staged_rows
from leveret.fronts.flight.broker_channel import BrokerLine
from leveret.fronts.flight.call_limits import Caller, Callers
from leveret.fronts.flight.connection_limits import ConnectionWatcher, Limits
from leveret.fronts.flight.store_snapshots import Pictures
from leveret.storage import message_events
from leveret.storage.ack_set import AckSet
from leveret.storage.arrow import LogReader
from leveret.storage.errors import BadName, Damage, OffsetOutOfRange, StorageError
from leveret.storage.files import OsFiles
from leveret.storage.log_view import LogView, SegmentGone
from leveret.storage.offset_ranges import above, total
from leveret.storage.store_snapshot import StoreSnapshot

T = TypeVar("T")

_AUTH: Final = "auth"
_TEXT_MAX: Final = 500
"""Characters of an error's text."""


class FlightProcess(flight.FlightServerBase):  # type: ignore[misc]
    """Serves until it is shut down."""

    def __init__(
        self, settings: process_protocol.ProcessSettings, line: BrokerLine, memory: process_limits.Memory
    ) -> None:
        scheme, certificates = "grpc+tcp", []
        if settings.tls_certificate is not None:
            scheme = "grpc+tls"
            paths = (settings.tls_certificate, settings.tls_key or "")
            certificates = [tuple(Path(path).read_bytes() for path in paths)]
        self._directory = settings.directory
        self._message_max_bytes = settings.message_max_bytes
        self._line = line
        self._pictures = Pictures(self._directory)
        self._pictures.watch()
        unfinished_bytes_max = 2 * self._message_max_bytes
        self._connections = ConnectionWatcher(Limits(unfinished_bytes_max=unfinished_bytes_max))
        self._callers = Callers(self._connections.crowded)
        super().__init__(  # last but one: it serves from here on
            f"{scheme}://{settings.host}:{settings.port}",
            tls_certificates=certificates,
            middleware={_AUTH: self._callers},
        )
        process_limits.watch(self.port, self._connections, line, memory)

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        user = self._user(context)
        if action.type != actions.ACTION:
            named = _short(action.type)
            raise flight.FlightServerError(f"there is no action '{named}', only '{actions.ACTION}'")
        try:
            return [self._answer(user, action.body)]
        finally:
            self._connections.finished(context.peer(), action.body.size)

    def _answer(self, user: str, body: pa.Buffer) -> bytes:
        try:
            bounds.check_size("a request", body.size, bounds.REQUEST_BYTES_MAX)
            request = body.to_pybytes()
            asked = _read(actions.decode_request, request)
            bounds.check(asked)
        except bounds.OutOfBounds as error:
            return actions.encode(actions.Refused(406, str(error)))
        if isinstance(asked, actions.TakePicture | actions.DropPicture):
            return actions.encode(self._picture(user, asked))
        reply = self._line.ask(process_protocol.Ask(user, request))
        assert isinstance(reply, process_protocol.Answered)
        return reply.answer

    def _picture(self, user: str, asked: actions.TakePicture | actions.DropPicture) -> actions.Answer:
        if isinstance(asked, actions.DropPicture):
            self._pictures.drop(asked.picture, user)
            return actions.Done()
        reply = self._line.ask(process_protocol.Checkpoint(user))
        if not isinstance(reply, process_protocol.Checkpointed):
            return _refused(reply)
        try:
            kept = self._pictures.take(asked.name, user, reply.taken_us)
        except BadName as error:
            return actions.Refused(406, error.message, error.hint)
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
        with _sentences():
            bounds.check_size("a ticket", len(ticket.ticket), bounds.TICKET_BYTES_MAX)
            wanted = _read(tickets.decode_ticket, ticket.ticket)
            bounds.check(wanted, ranges_max=bounds.TICKET_BYTES_MAX)
        self._connections.finished(context.peer(), len(ticket.ticket))
        version = self._line.rights_version
        if isinstance(wanted, tickets.PieceTicket):
            allowed: process_protocol.Question = process_protocol.MayAudit(user)
            self._check(allowed)
            schema, batches = message_events.SCHEMA, self._piece(user, wanted)
        else:
            allowed = process_protocol.MayRead(user, wanted.vhost, wanted.queue)
            schema = schemas.read_schema(with_headers=wanted.with_headers)
            with _sentences():
                ranges = tickets.ascending_ranges(wanted.ranges)
            batches = self._batches(user, wanted, ranges, schema)
        allowed_batches = self._while_allowed(batches, allowed, version)
        return flight.GeneratorStream(schema, self._watched(context.peer(), allowed_batches))

    def _while_allowed(
        self, batches: Iterator[pa.RecordBatch], allowed: process_protocol.Question, version: int
    ) -> Iterator[pa.RecordBatch]:
        """Ask for the right again, before the next batch, when rights have changed since the last one."""
        for batch in batches:
            if version != self._line.rights_version:
                version = self._line.rights_version
                self._check(allowed)
            yield batch

    def _check(self, question: process_protocol.Question) -> None:
        """Raise if the broker refuses this."""
        reply = self._line.ask(question)
        assert isinstance(reply, process_protocol.Answered)
        if not isinstance(actions.decode_answer(reply.answer), actions.Done):
            raise _error(_refused(reply))

    def _watched(self, peer: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with self._connections.reading(peer) as sent:
            for batch in batches:
                yield batch
                sent(batch.nbytes)

    def _piece(self, user: str, wanted: tickets.PieceTicket) -> Iterator[pa.RecordBatch]:
        picture = self._picture_of(user, wanted)
        if wanted.log_id not in picture.logs:
            raise _error(actions.Refused(404, f"the picture has no log {wanted.log_id}"))
        found: list[Damage] = []
        yield from message_events.rows(
            picture, message_events.Piece(wanted.event, wanted.log_id, wanted.segment), found.append
        )
        if found:
            self._picture_of(user, wanted)  # what went with a picture that was dropped is not damaged
            yield message_events.damaged(found)

    def _picture_of(self, user: str, wanted: tickets.PieceTicket) -> StoreSnapshot:
        picture = self._pictures.named(wanted.picture, user)
        if picture is None:
            hint = "It was dropped, or the broker was started again: begin the audit anew."
            raise _error(actions.Refused(404, "the picture is not there any more", hint, "gone"))
        return picture

    def _batches(
        self, user: str, wanted: tickets.ReadTicket, ranges: list[tuple[int, int]], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """In order. A segment that was rewritten meanwhile is found again with a new view, one that is lost
        is not."""
        asked = total(ranges)
        rows, gone = 0, set[str]()
        view, withheld = self._view(user, wanted, ranges)
        while ranges:
            try:
                with LogReader(OsFiles(self._directory, read_only=True), view) as reader:
                    for batch in reader.read(ranges, columns=schema.names, settled=withheld):
                        rows += batch.num_rows
                        yield batch
                        ranges = above(ranges, batch.column("offset")[-1].as_py())
                break
            except SegmentGone as error:
                gone.add(error.path)
                view, withheld = self._view(user, wanted, ranges)
                view = view.without(gone)
            except OffsetOutOfRange as error:
                raise _error(actions.Refused(404, str(error), error.hint, "gone")) from None
        if asked != rows and wanted.exact:
            sentence = f"{asked - rows} messages of queue '{wanted.queue}' in vhost '{wanted.vhost}' are gone"
            hint = (
                "They were settled or damaged meanwhile, or their batch is not committed. "
                "failOnDataLoss=false reads what is there."
            )
            raise _error(actions.Refused(404, sentence, hint, "gone"))

    def _view(
        self, user: str, wanted: tickets.ReadTicket, ranges: list[tuple[int, int]]
    ) -> tuple[LogView, AckSet]:
        """Where the messages are, and which of them are not to be read."""
        start, stop = (ranges[0][0], ranges[-1][1]) if ranges else (0, 0)
        reply = self._line.ask(
            process_protocol.View(user, wanted.vhost, wanted.queue, wanted.log_id, start, stop)
        )
        if isinstance(reply, process_protocol.Viewed):
            return reply.view, AckSet.decode(reply.withheld)
        raise _error(_refused(reply))

    # writing

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        user = self._user(context)
        command = descriptor.command or b""
        with _sentences():
            bounds.check_size("a descriptor", len(command), bounds.REQUEST_BYTES_MAX)
            bounds.check(_read(tickets.decode_descriptor, command))
        if not reader.schema.equals(schemas.WRITE):
            like = _short(str(reader.schema))
            raise flight.FlightServerError(f"rows must be like {schemas.WRITE}, not like {like}")
        before = 0
        for chunk in reader:
            if chunk.data is None:  # metadata, which nobody asked for
                continue
            with _sentences():
                staged_rows.check(chunk.data, self._message_max_bytes)
            for some in staged_rows.slices(chunk.data):
                self._check(process_protocol.Stage(user, command, some, before))
                before += len(some)
            self._connections.finished(context.peer(), chunk.data.nbytes)
        self._check(process_protocol.Stage(user, command, [], before))

    # who it is

    def _user(self, context: Any) -> str:
        caller: Caller = context.get_middleware(_AUTH)
        address = _address(context.peer())
        reply = self._line.ask(
            process_protocol.Login(caller.user, caller.password, address, _is_loopback(address))
        )
        if not (isinstance(reply, process_protocol.LoggedIn) and reply.welcome):
            raise flight.FlightUnauthenticatedError(f"login of user '{_short(caller.user)}' was refused")
        self._logged_in(context.peer(), caller)
        return caller.user

    def _logged_in(self, peer: str, caller: Caller) -> None:
        self._connections.logged_in(peer)
        self._callers.welcome(caller)


@contextmanager
def _sentences() -> Iterator[None]:
    """What is wrong with a ticket or with rows, as an error that a client can read."""
    try:
        yield
    except bounds.OutOfBounds as error:
        raise _error(actions.Refused(406, str(error))) from None
    except staged_rows.RowsRefused as error:
        raise _error(error.refused) from None


def _read(decode: Callable[[bytes], T], data: bytes) -> T:
    """What a client said; an error of its own if that makes no sense."""
    try:
        return decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        sentence = _short(f"a request that can't be read: {error}")
        raise flight.FlightServerError(sentence) from None


def _refused(reply: process_protocol.Reply) -> actions.Refused:
    assert isinstance(reply, process_protocol.Answered)
    answer = actions.decode_answer(reply.answer)
    assert isinstance(answer, actions.Refused)
    return answer


def _error(refused: actions.Refused) -> flight.FlightServerError:
    refused = msgspec.structs.replace(refused, text=_short(refused.text))
    return flight.FlightServerError(refused.text, actions.encode(refused))


def _short(text: str) -> str:
    """What a client said may be in it, and gRPC gives no error whose text does not fit into its headers."""
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}..."


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
