"""What every Flight action, get and put needs.

Before a call there are the queue `{queue}` with a message, the stream `plain-s`, the owner's query `{query}`
over the queue with one lease, the owner's query `{group}` over the stream, the owner's sink `{sink}` with
batch 0 committed, and the picture of an audit, which an administrator called root has taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from leveret.amqp.properties import encode
from leveret.flight import actions
from leveret.flight.tickets import PieceTicket, ReadTicket, StageDescriptor, pack_ranges
from tests.fronts.flight.flight_client import Bulk
from tests.rights.names import Names


@dataclass(frozen=True, slots=True)
class Given:
    """What an attempt finds at the broker."""

    names: Names
    log_id: int
    """Of the queue."""
    run: int
    """The epoch of `{query}`."""
    reading: int
    """The epoch of `{group}`."""


Call = Callable[[Bulk, Given], Any]


@dataclass(frozen=True, slots=True)
class Row:
    kind: type
    """The class of the request, ticket or descriptor."""
    needs: tuple[str, ...]
    call: Call
    case: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.kind.__name__, self.case)))


PICTURE: Final = "f" * 32
ENTER: Final = "enter vhost /"
_HOUR_S: Final = 3600.0
_READ: Final = (ENTER, "read queue {queue}")
_QUERY: Final = (*_READ, "operate query {query}")
_STREAM: Final = (ENTER, "read queue plain-s")
_FOLLOWED: Final = (*_STREAM, "operate group {group}")
_SINK: Final = (ENTER, "operate sink {sink}")
_S: Final = ("/", "plain-s", False)
_FIRST: Final = actions.At("first")
_HEADER: Final = encode({}, 1)


def asked(make: Callable[[Given], actions.Request]) -> Call:
    return lambda bulk, given: bulk.ask(make(given))


def of_query(kind: Any, *more: Any, with_run: bool) -> Call:
    def make(given: Given) -> actions.Request:
        run = [given.run] if with_run else []
        request: actions.Request = kind("/", given.names.queue, given.names.query, *run, *more)
        return request

    return asked(make)


def of_reading(kind: Any, **more: Any) -> Call:
    return asked(lambda given: kind(*_S, query=given.names.group, epoch=given.reading, **more))


def written(sink: Callable[[Names], str]) -> Call:
    def write(bulk: Bulk, given: Given) -> None:
        descriptor = StageDescriptor("/", sink(given.names), 1, "task", _HOUR_S)
        bulk.write(descriptor, [(b"", given.names.queue.encode(), _HEADER, b"x")])

    return write


ROWS: Final = (
    # queues
    Row(actions.Look, _READ, asked(lambda g: actions.Look("/", g.names.queue))),
    Row(actions.Snapshot, _READ, asked(lambda g: actions.Snapshot("/", g.names.queue))),
    Row(
        actions.Open,
        _READ,
        asked(lambda g: actions.Open("/", g.names.queue, g.names.new, _HOUR_S)),
        "a new query",
    ),
    Row(actions.Open, _QUERY, of_query(actions.Open, _HOUR_S, with_run=False)),
    Row(actions.Lease, _QUERY, of_query(actions.Lease, 0, with_run=True)),
    Row(actions.Plan, _QUERY, of_query(actions.Plan, 0, 1, with_run=True)),
    Row(actions.Reject, _QUERY, of_query(actions.Reject, pack_ranges([(0, 1)]), with_run=False)),
    Row(actions.Release, _QUERY, of_query(actions.Release, with_run=False)),
    # streams
    Row(actions.Locate, _STREAM, asked(lambda g: actions.Locate(*_S, at=_FIRST))),
    Row(
        actions.Follow,
        _STREAM,
        asked(lambda g: actions.Follow(*_S, query=g.names.new, at=_FIRST)),
        "a new query",
    ),
    Row(actions.Follow, _FOLLOWED, asked(lambda g: actions.Follow(*_S, query=g.names.group, at=_FIRST))),
    Row(actions.Advance, _FOLLOWED, of_reading(actions.Advance, offsets={})),
    Row(
        actions.Advance,
        _STREAM,
        asked(lambda g: actions.Advance(*_S, query="", epoch=0, offsets={})),
        "without a query",
    ),
    Row(actions.Cover, _FOLLOWED, of_reading(actions.Cover, spans={"plain-s": (0, 1)})),
    Row(
        actions.RejectRead,
        _FOLLOWED,
        asked(
            lambda g: actions.RejectRead(*_S, query=g.names.group, ranges={"plain-s": pack_ranges([(0, 1)])})
        ),
    ),
    # sinks
    Row(
        actions.Commit,
        (ENTER, "make sink {new}"),
        asked(lambda g: actions.Commit("/", g.names.new, 0, [])),
        "with a new name",
    ),
    Row(actions.Commit, _SINK, asked(lambda g: actions.Commit("/", g.names.sink, 1, []))),
    Row(actions.Abort, _SINK, asked(lambda g: actions.Abort("/", g.names.sink, 1, []))),
    Row(
        actions.Address,
        (ENTER, "write exchange plain-x"),
        asked(lambda g: actions.Address("/", ["plain-x"])),
    ),
    Row(StageDescriptor, (ENTER, "write exchange "), written(lambda n: n.new), "with a new name"),
    Row(StageDescriptor, (*_SINK, "write exchange "), written(lambda n: n.sink)),
    # gets
    Row(
        ReadTicket,
        _READ,
        lambda bulk, g: bulk.read(ReadTicket("/", g.names.queue, g.log_id, pack_ranges([(0, 1)]))),
    ),
    # audits
    Row(
        actions.TakePicture,
        ("be tag administrator",),
        asked(lambda g: actions.TakePicture(f"{g.names.number:032x}")),
    ),
    Row(actions.DropPicture, (), asked(lambda _: actions.DropPicture(PICTURE)), "of another user"),
    Row(
        PieceTicket,
        ("be tag administrator", "take picture {new}"),
        lambda bulk, g: bulk.read(PieceTicket(PICTURE, "published", g.log_id, 0)),
        "of another user",
    ),
)
