"""Answers the requests of bulk readers that read streams and topics by offset.

`leveret.broker.queries.stream_queries` owns the queries and their epochs; the Flight process reads the rows.
"""

from __future__ import annotations

from typing import Final

from leveret.broker.access.accounts import User
from leveret.broker.errors import PreconditionFailed
from leveret.broker.queries import stream_queries
from leveret.broker.queries.readable_offsets import Extent
from leveret.broker.queries.stream_queries import Limits, RunName, StreamQueries, Subject
from leveret.broker.streams.positions import Position
from leveret.broker.vhosts.vhost import VirtualHost
from leveret.flight import actions
from leveret.flight.tickets import pack_ranges, unpack_ranges
from leveret.storage.offset_ranges import total

_REASON_BYTES_MAX: Final = 255


class StreamRequests:
    """Example: `StreamRequests().answer(user, vhost, actions.Locate(...))`."""

    def __init__(self) -> None:
        self._queries = StreamQueries()

    def answer(self, user: User, vhost: VirtualHost, request: actions.OffsetRequest) -> actions.Answer:
        subject = stream_queries.subject_of(user, vhost, request.subject, is_topic=request.is_topic)
        match request:
            case actions.Locate():
                at = request.at
                places = stream_queries.offsets_at(subject, Position(at.kind, at.value), at.offsets)
                return actions.Located([_place(*place) for place in places])
            case actions.Follow():
                return self._follow(subject, request)
            case actions.Advance():
                return self._advance(subject, request)
            case actions.Cover():
                run = RunName(request.query, request.epoch)
                parts = stream_queries.cover(subject, run, request.spans)
                return actions.Covered([_part(part) for part in parts])
            case actions.RejectRead():
                rejected = {name: ranges_of(data) for name, data in request.ranges.items()}
                stream_queries.reject(subject, request.query, rejected, why=reason(request.why))
                return actions.Done()

    def _follow(self, subject: Subject, request: actions.Follow) -> actions.Followed:
        epoch, places = self._queries.follow(
            subject,
            request.query,
            start=Position(request.at.kind, request.at.value),
            offsets=request.at.offsets,
            exact=request.exact,
            run=request.run,
        )
        return actions.Followed(epoch, [_place(*place) for place in places])

    def _advance(self, subject: Subject, request: actions.Advance) -> actions.Advanced:
        stretches, ready = self._queries.advance(
            subject,
            RunName(request.query, request.epoch),
            request.offsets,
            limits=Limits(request.stops, request.max_messages, request.max_bytes),
            settle_only=request.settle_only,
        )
        return actions.Advanced([_stretch(stretch) for stretch in stretches], ready)


def reason(text: str) -> bytes:
    """Return a reason as bytes, cut to what a journal takes."""
    return text.encode()[:_REASON_BYTES_MAX]


def ranges_of(data: bytes) -> list[tuple[int, int]]:
    """Return the ranges of offsets in a request; raise if they can't be decoded."""
    try:
        return unpack_ranges(data)
    except ValueError:
        raise PreconditionFailed("the ranges of offsets can't be decoded") from None


def _place(extent: Extent, offset: int) -> actions.Place:
    return actions.Place(extent.stream, extent.log_id, offset, extent.decided, extent.gone_below)


def _stretch(stretch: stream_queries.Stretch) -> actions.Stretch:
    extent = stretch.extent
    return actions.Stretch(
        extent.stream, extent.log_id, stretch.start, stretch.stop, extent.decided, extent.gone_below
    )


def _part(part: stream_queries.Part) -> actions.Part:
    extent, ranges = part.extent, part.ranges
    return actions.Part(
        extent.stream, part.number, extent.log_id, pack_ranges(ranges), total(ranges), extent.gone_below
    )
