"""The Flight process: serves Arrow Flight to clients, asks the broker, and reads segments from the disk.

`leveret.server.flight_process` starts and ends the process. Its only state are the store snapshots that
audits read (`store_snapshots`). Every call asks the broker for the login, the permission, and where messages
are or what becomes of rows. A running read asks again when permissions have changed (`_while_allowed`). The
rules: no permission is cached, and only bytes are read that a view or a checkpoint of the broker names.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import pyarrow as pa
from pyarrow import flight

from leveret.flight import actions, bounds, schemas, tickets
from leveret.fronts.flight import process_limits, process_protocol, staged_rows
from leveret.fronts.flight.broker_channel import BrokerChannel
from leveret.fronts.flight.call_limits import Caller, Callers
from leveret.fronts.flight.connection_limits import ConnectionWatcher
from leveret.fronts.flight.store_snapshots import StoreSnapshots
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
"""Most characters of an error's text."""


class FlightProcess(flight.FlightServerBase):  # type: ignore[misc]
    def __init__(
        self, settings: process_protocol.ProcessSettings, broker: BrokerChannel, memory: process_limits.Memory
    ) -> None:
        scheme, certificates = "grpc+tcp", []
        if settings.tls_certificate is not None:
            scheme = "grpc+tls"
            paths = (settings.tls_certificate, settings.tls_key or "")
            certificates = [tuple(Path(path).read_bytes() for path in paths)]
        authority = settings.tls_client_authority
        self._directory = settings.directory
        self._message_max_bytes = settings.message_max_bytes
        self._broker = broker
        limits = replace(settings.limits, unfinished_bytes_max=2 * self._message_max_bytes)
        self._snapshots = StoreSnapshots(self._directory, limits=limits)
        self._snapshots.watch()
        self._connections = ConnectionWatcher(limits)
        self._callers = Callers(self._connections.calls_refused, limits)
        # Calls may begin during this call, so the attributes above must be set.
        super().__init__(
            f"{scheme}://{settings.host}:{settings.port}",
            tls_certificates=certificates,
            verify_client=authority is not None,
            root_certificates=None if authority is None else Path(authority).read_bytes(),
            middleware={_AUTH: self._callers},
        )
        process_limits.watch(self.port, self._connections, broker, memory)

    def retire(self) -> None:
        """Stop to listen, and return when the running calls have ended."""
        # The directory of snapshots now belongs to the process that takes the port.
        self._snapshots.retire()
        self.shutdown()

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        user = self._user(context)
        if action.type != actions.ACTION:
            name = _short(action.type)
            raise flight.FlightServerError(
                f"action '{name}' is unknown; the only action is '{actions.ACTION}'"
            )
        try:
            return [self._answer(user, action.body)]
        finally:
            self._connections.finished(context.peer(), action.body.size)

    def _answer(self, user: str, body: pa.Buffer) -> bytes:
        try:
            bounds.check_size("a request", body.size, bounds.REQUEST_BYTES_MAX)
            data = body.to_pybytes()
            request = _decoded(actions.decode_request, data)
            bounds.check(request)
        except bounds.OutOfBounds as error:
            return actions.encode(actions.Refused(406, str(error)))
        if isinstance(request, actions.TakePicture | actions.DropPicture):
            return actions.encode(self._take_or_drop(user, request))
        reply = self._broker.ask(process_protocol.Ask(user, data))
        assert isinstance(reply, process_protocol.Answered)
        return reply.answer

    def _take_or_drop(self, user: str, request: actions.TakePicture | actions.DropPicture) -> actions.Answer:
        if isinstance(request, actions.DropPicture):
            self._snapshots.drop(request.picture, user)
            return actions.Done()
        reply = self._broker.ask(process_protocol.Checkpoint(user))
        if not isinstance(reply, process_protocol.Checkpointed):
            return _refused(reply)
        try:
            kept = self._snapshots.take(request.name, user, reply.taken_us)
        except BadName as error:
            return actions.Refused(406, error.message, error.hint)
        except StorageError as error:
            return actions.Refused(541, f"the store snapshot failed: {error.message}", error.hint)
        except OSError as error:
            return actions.Refused(541, f"the store snapshot failed: {error}")
        damage = [(place.file, place.position, place.offset, place.what) for place in kept.damage]
        return actions.Taken(kept.snapshot.encode(), kept.taken_us, reply.round_trips_us, damage)

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        return [(actions.ACTION, "a request of leveret.flight.actions")]

    # reading

    def do_get(self, context: Any, ticket: Any) -> Any:
        user = self._user(context)
        with _errors_for_client():
            bounds.check_size("a ticket", len(ticket.ticket), bounds.TICKET_BYTES_MAX)
            wanted = _decoded(tickets.decode_ticket, ticket.ticket)
            bounds.check(wanted, ranges_max=bounds.TICKET_BYTES_MAX)
        self._connections.finished(context.peer(), len(ticket.ticket))
        version = self._broker.permissions_version
        if isinstance(wanted, tickets.PieceTicket):
            permission: process_protocol.Question = process_protocol.MayAudit(user)
            self._check(permission)
            schema, batches = message_events.SCHEMA, self._piece(user, wanted)
        else:
            permission = process_protocol.MayRead(user, wanted.vhost, wanted.queue)
            schema = schemas.read_schema(with_headers=wanted.with_headers)
            with _errors_for_client():
                ranges = tickets.ascending_ranges(wanted.ranges)
            batches = self._batches(user, wanted, ranges, schema)
        allowed_batches = self._while_allowed(batches, permission, version)
        return flight.GeneratorStream(schema, self._watched(context.peer(), allowed_batches))

    def _while_allowed(
        self, batches: Iterator[pa.RecordBatch], permission: process_protocol.Question, version: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches; after a change of permissions, check the permission before the next batch."""
        for batch in batches:
            if version != self._broker.permissions_version:
                version = self._broker.permissions_version
                self._check(permission)
            yield batch

    def _check(self, question: process_protocol.Question) -> None:
        """Ask the broker; raise if it refuses."""
        reply = self._broker.ask(question)
        assert isinstance(reply, process_protocol.Answered)
        if not isinstance(actions.decode_answer(reply.answer), actions.Done):
            raise _error(_refused(reply))

    def _watched(self, peer: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with self._connections.reading(peer) as sent:
            for batch in batches:
                yield batch
                sent(batch.nbytes)

    def _piece(self, user: str, wanted: tickets.PieceTicket) -> Iterator[pa.RecordBatch]:
        snapshot = self._snapshot_of(user, wanted)
        if wanted.log_id not in snapshot.logs:
            raise _error(actions.Refused(404, f"the store snapshot has no log {wanted.log_id}"))
        damage: list[Damage] = []
        yield from message_events.rows(
            snapshot, message_events.Piece(wanted.event, wanted.log_id, wanted.segment), damage.append
        )
        if damage:
            # Files that are missing because the snapshot was dropped are not damaged: raise.
            self._snapshot_of(user, wanted)
            yield message_events.damaged(damage)

    def _snapshot_of(self, user: str, wanted: tickets.PieceTicket) -> StoreSnapshot:
        snapshot = self._snapshots.find(wanted.picture, user)
        if snapshot is None:
            hint = "It was dropped, or the broker was started again: begin the audit anew."
            raise _error(actions.Refused(404, "the store snapshot does not exist any more", hint, "gone"))
        return snapshot

    def _batches(
        self, user: str, wanted: tickets.ReadTicket, ranges: list[tuple[int, int]], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """Yield messages in order; read a rewritten segment with a new view, and leave out a lost one."""
        expected = total(ranges)
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
        if expected != rows and wanted.exact:
            sentence = (
                f"{expected - rows} messages of queue '{wanted.queue}' in vhost '{wanted.vhost}' are gone"
            )
            hint = (
                "They were settled or damaged meanwhile, or their batch is not committed. "
                "failOnDataLoss=false reads what is there."
            )
            raise _error(actions.Refused(404, sentence, hint, "gone"))

    def _view(
        self, user: str, wanted: tickets.ReadTicket, ranges: list[tuple[int, int]]
    ) -> tuple[LogView, AckSet]:
        """Return where the messages are, and the set of offsets that must not be read."""
        start, stop = (ranges[0][0], ranges[-1][1]) if ranges else (0, 0)
        reply = self._broker.ask(
            process_protocol.View(user, wanted.vhost, wanted.queue, wanted.log_id, start, stop)
        )
        if isinstance(reply, process_protocol.Viewed):
            return reply.view, AckSet.decode(reply.withheld)
        raise _error(_refused(reply))

    # writing

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        user = self._user(context)
        command = descriptor.command or b""
        with _errors_for_client():
            bounds.check_size("a descriptor", len(command), bounds.REQUEST_BYTES_MAX)
            bounds.check(_decoded(tickets.decode_descriptor, command))
        if not reader.schema.equals(schemas.WRITE):
            received = _short(str(reader.schema))
            raise flight.FlightServerError(f"rows must have the schema {schemas.WRITE}, not {received}")
        before = 0
        for chunk in reader:
            # A chunk of metadata alone has no rows.
            if chunk.data is None:
                continue
            with _errors_for_client():
                staged_rows.check(chunk.data, self._message_max_bytes)
            for rows in staged_rows.slices(chunk.data):
                self._check(process_protocol.Stage(user, command, rows, before))
                before += len(rows)
            self._connections.finished(context.peer(), chunk.data.nbytes)
        self._check(process_protocol.Stage(user, command, [], before))

    # logins

    def _user(self, context: Any) -> str:
        caller: Caller = context.get_middleware(_AUTH)
        address = _address(context.peer())
        reply = self._broker.ask(
            process_protocol.Login(caller.user, caller.password, address, _is_loopback(address))
        )
        if not (isinstance(reply, process_protocol.LoggedIn) and reply.accepted):
            raise flight.FlightUnauthenticatedError(f"login of user '{_short(caller.user)}' was refused")
        self._connections.logged_in(context.peer())
        self._callers.login_accepted(caller)
        return caller.user


@contextmanager
def _errors_for_client() -> Iterator[None]:
    """Turn errors in tickets and rows into Flight errors that clients can decode."""
    try:
        yield
    except bounds.OutOfBounds as error:
        raise _error(actions.Refused(406, str(error))) from None
    except staged_rows.RowsRefused as error:
        raise _error(error.refused) from None


def _decoded(decode: Callable[[bytes], T], data: bytes) -> T:
    """Return the decoded bytes of a client; raise an error for the client if they are invalid."""
    try:
        return decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        sentence = _short(f"the request can't be decoded: {error}")
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
    """Return the text, cut if a client made it long: gRPC drops errors that do not fit into its headers."""
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}..."


def _address(peer: str) -> str:
    """Return the address of a gRPC peer; an empty string for a peer on a Unix socket.

    >>> [_address(peer) for peer in ("ipv4:127.0.0.1:4040", "ipv6:%5B::1%5D:4040", "unix:", "")]
    ['127.0.0.1', '::1', '', 'unknown']
    """
    kind, _, rest = peer.partition(":")
    if kind == "unix":
        return ""
    host = rest.rpartition(":")[0].replace("%5B", "").replace("%5D", "").strip("[]")
    return host.partition("%")[0] or "unknown"


def _is_loopback(address: str) -> bool:
    """Return whether the address is of this machine; an empty one is of a Unix socket.

    >>> [_is_loopback(address) for address in ("127.0.0.1", "::1", "", "9.9.9.9", "unknown")]
    [True, True, True, False, False]
    """
    try:
        return not address or ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
