"""Which part of a long list is wanted, in which order, and how it is found without describing all of it.

Things are compared as they are in the broker, by one key each; only the page that is wanted is described.
Ordering 10,000 queues takes 2 to 8 ms, describing them 50.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import nlargest, nsmallest
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

from leveret.broker.counters import FIGURES
from leveret.broker.errors import PreconditionFailed

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.vhosts.vhost import VirtualHost


class Named(Protocol):
    @property
    def name(self) -> str: ...


Item = TypeVar("Item", bound=Named)
View = TypeVar("View")

SIZE_MAX: Final = 500
"""As in RabbitMQ."""


@dataclass(frozen=True, slots=True)
class Selection:
    """`Selection(vhosts=["/"], name="orders", sort="ready", descending=True)`."""

    vhosts: Collection[str] | None = None
    """Names; None for all."""
    name: str = ""
    """A part of the name, in capitals or not."""
    sort: str = "name"
    descending: bool = False
    page: int = 1
    size: int = 100

    def __post_init__(self) -> None:
        if self.page < 1:
            raise PreconditionFailed(f"page is {self.page}; it must be a whole number of at least 1")
        if not 1 <= self.size <= SIZE_MAX:
            raise PreconditionFailed(f"page_size is {self.size}; it must be a number from 1 to {SIZE_MAX}")

    @property
    def start(self) -> int:
        """How many things come before the page."""
        return (self.page - 1) * self.size

    def vhosts_of(self, broker: Broker) -> Iterator[VirtualHost]:
        """The virtual hosts that are wanted and there, by name."""
        names = broker.vhosts if self.vhosts is None else broker.vhosts.keys() & set(self.vhosts)
        return (broker.vhosts[name] for name in sorted(names))


class Listing(NamedTuple, Generic[View]):
    """One page of a list."""

    items: list[View]
    filtered: int
    """How many things there are on all pages."""
    total: int
    """How many there are in all, whatever their names."""


EVERYTHING: Final = Selection()


def sorted_page(
    found: Iterable[Item],
    selection: Selection,
    *,
    keys: Mapping[str, Callable[[Item], Any]],
    describe: Callable[[Item], View],
) -> Listing[View]:
    """The page of these things that is wanted; they have a `name`, and counters if they are sorted by them.

    `keys` says by what they can be sorted, beside the figures of `Counters`; `name` must be among it.
    """
    key = keys.get(selection.sort) or _figure(selection.sort, keys)
    first = nlargest if selection.descending else nsmallest
    matching = _Matching(found, selection)
    page = first(selection.start + selection.size, matching, key=key)[selection.start :]
    return Listing([describe(each) for each in page], matching.filtered, matching.total)


def unsorted_page(
    found: Iterable[Item], selection: Selection, *, describe: Callable[[Item], View]
) -> Listing[View]:
    """The same of things that come in a useful order already."""
    matching = _Matching(found, selection)
    items = iter(matching)
    page = list(islice(items, selection.start, selection.start + selection.size))
    for _ in items:
        pass  # they are only counted
    return Listing([describe(each) for each in page], matching.filtered, matching.total)


class _Matching(Generic[Item]):
    """Things with the name that is wanted, counted on the way."""

    def __init__(self, found: Iterable[Item], selection: Selection) -> None:
        self._found = found
        self._selection = selection
        self.filtered = 0
        self.total = 0

    def __iter__(self) -> Iterator[Item]:
        wanted = self._selection.name.casefold()
        for each in self._found:
            self.total += 1
            if not wanted or wanted in each.name.casefold():
                self.filtered += 1
                yield each


def _figure(sort: str, keys: Mapping[str, object]) -> Callable[[Any], Any]:
    if sort not in FIGURES:
        known = ", ".join(sorted({*keys, *FIGURES}))
        raise PreconditionFailed(f"a list can't be sorted by '{sort}'; this one can be by {known}")
    return lambda item: getattr(item.counters, sort)
