"""What a group must be, as plainly as it can be said: a cell per message, and who holds which of them.

`GroupModel` is told what members and operators do and what was delivered, and says whether it should have
been. It knows no broker: nothing here is called by one, and nothing here calls one. What it leaves open is
left to the broker (who is served, in which order of partitions); what is promised is asserted: what is
settled never comes again, one holder at a time, span, credit, order, deadlines, levels, the last attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

Place = tuple[str, int]
"""A message: its partition, and the offset in it."""
LOST = "its member was lost"
ASKED_FOR_AGAIN = "asked for again by its member"
SENT_BACK = "sent back by its member"
REJECTED = "rejected by its member"


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings of a group, in milliseconds as they are given."""

    orderly: bool = False
    span: int = 2000
    timeout_ms: int = 900_000
    limit: int = 16
    delays_ms: tuple[int, ...] = (10_000,)
    paused: bool = False

    def delay_us(self, returns: int) -> int:
        return 1000 * self.delays_ms[min(returns, len(self.delays_ms) - 1)]


@dataclass(slots=True)
class Cell:
    """A message that is not settled; it is ready if nobody holds it and `due_us` has come."""

    due_us: int = 0
    returns: int = 0
    error: str = ""
    sent_back: bool = False
    """It was delayed once: it is out of span and of the progress that is reported."""


class Flight(NamedTuple):
    """A delivery that is not settled."""

    member: str
    tag: int
    since_us: int
    buffered: bool = False
    """Its settlement waits for a commit."""


class Letter(NamedTuple):
    place: Place
    attempts: int
    error: str


@dataclass
class GroupModel:
    """`delivered`, `settled`, `sent_back` … as they happen; `cells` is what is left to do."""

    rules: Rules = field(default_factory=Rules)
    cells: dict[Place, Cell] = field(default_factory=dict)
    flights: dict[Place, Flight] = field(default_factory=dict)
    letters: list[Letter] = field(default_factory=list)
    ends: dict[str, int] = field(default_factory=dict)
    """Where the log of each partition ends."""
    gaps: dict[str, list[range]] = field(default_factory=dict)
    """Offsets that nothing was published under: a crash has left them out. They ascend."""
    marks: dict[str, int] = field(default_factory=dict)
    """The progress that was reported last."""
    lapsed: dict[str, set[int]] = field(default_factory=dict)
    """Tags that were taken back from a member, which does not know."""
    stale: int = 0
    """Settlements that came too late."""

    # what there is

    def of(self, partition: str) -> Iterator[tuple[int, Cell]]:
        """What is unsettled in a partition, in order."""
        for (name, offset), cell in sorted(self.cells.items()):
            if name == partition:
                yield offset, cell

    def watermark(self, partition: str) -> int:
        """The lowest offset that is unsettled, and was not sent back unless order matters."""
        waited_for = (
            offset for offset, cell in self.of(partition) if self.rules.orderly or not cell.sent_back
        )
        return next(waited_for, self.ends[partition])

    def limit(self, partition: str) -> int:
        """The first offset that is too far ahead: as many messages as the span lie before it."""
        limit = self.watermark(partition) + self.rules.span
        for gap in self.gaps.get(partition, ()):
            if gap.start < limit:
                limit += len(range(max(gap.start, self.watermark(partition)), gap.stop))
        return limit

    def is_ready(self, place: Place, now_us: int) -> bool:
        return place not in self.flights and self.cells[place].due_us <= now_us

    def is_worn_out(self, place: Place) -> bool:
        """It has come back more often than it may by now: it is buried, not delivered, when it is taken."""
        return 0 <= self.rules.limit < self.cells[place].returns

    def deliverable(self, partition: str, now_us: int) -> list[int]:
        """What should be with somebody, if somebody has credit."""
        if self.rules.paused:
            return []
        if self.rules.orderly:
            head = next(self.of(partition), None)
            waits = any(name == partition for name, _ in self.flights)
            waits |= any(cell.due_us > now_us for _, cell in self.of(partition))
            return [] if head is None or waits else [head[0]]
        limit = self.limit(partition)
        return [
            offset
            for offset, _ in self.of(partition)
            if offset < limit and self.is_ready((partition, offset), now_us)
        ]

    # what happens

    def appended(self, partition: str, offsets: Iterable[int], end: int) -> None:
        self.ends[partition] = end
        for offset in offsets:
            self.cells[partition, offset] = Cell()

    def delivered(self, place: Place, flight: Flight, *, returns: int) -> None:
        partition, offset = place
        cell = self.cells.get(place)
        assert cell is not None, f"{place} is settled, and is delivered again"
        assert place not in self.flights, f"{place} is with {self.flights[place]}, and goes to {flight}"
        assert cell.due_us <= flight.since_us, (
            f"{place} is delivered {cell.due_us - flight.since_us} us early"
        )
        assert cell.returns == returns, f"{place} came back {cell.returns} times, not {returns}"
        assert not self.rules.paused, f"{place} is delivered, and the group is paused"
        if self.rules.orderly:
            assert offset == next(self.of(partition))[0], f"{place} is out of order"
            assert not any(name == partition for name, _ in self.flights), (
                f"{place} is the second of its partition"
            )
        else:
            limit = self.limit(partition)
            assert cell.sent_back or offset < limit, f"{place} is beyond the span that ends at {limit}"
        self.flights[place] = flight

    def buffered(self, place: Place, member: str, tag: int, *, on: bool) -> bool:
        """A settlement waits for a commit, or no longer; False when the delivery is nobody's by now."""
        if not self._holds(place, member, tag):
            return False
        self.flights[place] = self.flights[place]._replace(buffered=on)
        return True

    def forgiven(self, member: str, start: int, stop: int) -> None:
        """It has settled these tags; those of them that were taken back are counted, once."""
        late = {tag for tag in self.lapsed.get(member, ()) if start <= tag < stop}
        self.stale += len(late)
        if late:
            self.lapsed[member] -= late

    def acked(self, place: Place, member: str, tag: int) -> None:
        if self._holds(place, member, tag):
            del self.flights[place], self.cells[place]

    def rejected(self, place: Place, member: str, tag: int) -> None:
        if self._holds(place, member, tag):
            self._bury(place, self.cells[place].error or REJECTED)

    def sent_back(self, place: Place, member: str, tag: int, now_us: int) -> None:
        """By the table."""
        if self._holds(place, member, tag):
            self._return(place, SENT_BACK, now_us=now_us, by_table=True)

    def postponed(
        self, place: Place, member: str, tag: int, due_us: int, *, counted: bool, error: str
    ) -> None:
        """With a delay of the member's choice; 0 for none."""
        if self._holds(place, member, tag):
            self._return(place, error or SENT_BACK, now_us=0, due_us=due_us, counted=counted)

    def lost(self, member: str) -> None:
        """Everything that it held is there again, now."""
        for place in [place for place, flight in self.flights.items() if flight.member == member]:
            self._return(place, LOST, now_us=0)
        self.lapsed.pop(member, None)

    def recovered(self, member: str) -> None:
        """The same at its own wish, but for what it is about to settle."""
        held = [
            place for place, flight in self.flights.items() if flight.member == member and not flight.buffered
        ]
        for place in held:
            self._return(place, ASKED_FOR_AGAIN, now_us=0)

    def tick(self, now_us: int) -> None:
        """Deadlines that have come."""
        timeout_us = 1000 * self.rules.timeout_ms
        if self.rules.orderly or not timeout_us:
            return
        error = f"no answer within {self.rules.timeout_ms} ms"
        for place in [
            each for each, flight in self.flights.items() if flight.since_us + timeout_us <= now_us
        ]:
            self._take_back(place)
            self._return(place, error, now_us=now_us, by_table=True)

    def buried(self, place: Place) -> None:
        """The broker found it worn out when it was about to deliver it."""
        assert self.is_worn_out(place), f"{place} is gone, and nobody settled it"
        assert place not in self.flights
        cell = self.cells.pop(place)
        self.letters.append(Letter(place, cell.returns, cell.error))

    def expired(self, place: Place) -> None:
        """Retention has taken it: it was neither in flight nor sent back."""
        assert place not in self.flights, f"{place} is in flight, and retention took it"
        assert not self.cells.pop(place).sent_back, f"{place} was sent back, and retention took it"

    def skipped(self, place: Place) -> None:
        self._void(place)
        del self.cells[place]

    def sought(self, partition: str, visible: Iterable[int]) -> None:
        """All is forgotten but that these are to be delivered."""
        for place in [place for place in self.cells if place[0] == partition]:
            self._void(place)
            del self.cells[place]
        for offset in visible:
            self.cells[partition, offset] = Cell()
        self.marks.pop(partition, None)

    def recalled(self, place: Place) -> None:
        self.cells[place] = Cell(sent_back=True)
        if self.rules.orderly:
            self.marks.pop(place[0], None)

    def crashed(self) -> None:
        """What was in flight is there again, and that counts; nobody looks at limits."""
        for place in self.flights:
            self.cells[place].returns += 1
        self.flights.clear()
        self.lapsed.clear()

    # inside

    def _take_back(self, place: Place) -> None:
        """Its holder may not settle it any more; a settlement that waits for a commit is too late already."""
        flight = self.flights[place]
        self.lapsed.setdefault(flight.member, set()).add(flight.tag)
        self.stale += flight.buffered

    def _void(self, place: Place) -> None:
        """Whoever has it, has it no more."""
        if place in self.flights:
            self._take_back(place)
            del self.flights[place]

    def _holds(self, place: Place, member: str, tag: int) -> bool:
        """Whether that delivery is still its own; else a settlement has no effect."""
        flight = self.flights.get(place)
        return flight is not None and (flight.member, flight.tag) == (member, tag)

    def _return(
        self,
        place: Place,
        error: str,
        *,
        now_us: int,
        due_us: int = 0,
        counted: bool = True,
        by_table: bool = False,
    ) -> None:
        cell = self.cells[place]
        if counted and 0 <= self.rules.limit <= cell.returns:
            self._bury(place, error)
            return
        del self.flights[place]
        if by_table:
            due_us = now_us + self.rules.delay_us(cell.returns)
        cell.due_us = due_us
        cell.sent_back |= bool(due_us)
        cell.returns += counted
        cell.error = error

    def _bury(self, place: Place, error: str) -> None:
        del self.flights[place]
        self.letters.append(Letter(place, self.cells.pop(place).returns + 1, error))
