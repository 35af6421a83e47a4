"""Pages of long lists: sorted and counted, and only what is shown is described."""

from typing import NamedTuple

import pytest

from leveret.broker.counters import Counters
from leveret.broker.errors import PreconditionFailed
from leveret.broker.views.selection import Listing, Selection, sorted_page, unsorted_page


class Thing(NamedTuple):
    name: str
    counters: Counters


THINGS = [Thing(f"Q{number:05}", Counters(acked=number % 7)) for number in reversed(range(10_000))]
KEYS = {"name": lambda thing: thing.name}


class Describing:
    """Counts how often a thing is described."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, thing: Thing) -> str:
        self.count += 1
        return thing.name


def page(selection: Selection, **options: object) -> Listing[str]:
    return sorted_page(THINGS, selection, keys=KEYS, describe=lambda thing: thing.name)


def test_a_page_of_ten_thousand_things_describes_a_hundred():
    describe = Describing()
    found = sorted_page(THINGS, Selection(page=3), keys=KEYS, describe=describe)
    assert found.items == [f"Q{number:05}" for number in range(200, 300)]
    assert (found.filtered, found.total, describe.count) == (10_000, 10_000, 100)


def test_a_list_that_is_in_order_is_cut_without_describing_the_rest():
    describe = Describing()
    found = unsorted_page(THINGS, Selection(page=2, size=3), describe=describe)
    assert found == Listing(["Q09996", "Q09995", "Q09994"], 10_000, 10_000)
    assert describe.count == 3


def test_a_name_is_found_by_a_part_of_it_in_capitals_or_not():
    found = page(Selection(name="q0123", size=4))
    assert found == Listing(["Q01230", "Q01231", "Q01232", "Q01233"], 10, 10_000)


def test_the_last_page_may_be_short_and_those_behind_it_are_empty():
    assert page(Selection(page=34, size=300)).items == [f"Q{number:05}" for number in range(9900, 10_000)]
    assert page(Selection(page=35, size=300)) == Listing([], 10_000, 10_000)


def test_a_list_can_be_sorted_by_any_figure_that_is_counted():
    found = sorted_page(
        THINGS, Selection(sort="acked", descending=True, size=2), keys=KEYS, describe=lambda thing: thing
    )
    assert [thing.counters.acked for thing in found.items] == [6, 6]
    assert page(Selection(descending=True, size=2)).items == ["Q09999", "Q09998"]


def test_what_can_not_be_sorted_by_is_told_with_what_can():
    with pytest.raises(PreconditionFailed, match=r"sorted by 'colour'; this one can be by acked, .*name"):
        page(Selection(sort="colour"))


@pytest.mark.parametrize("wrong", [{"page": 0}, {"size": 0}, {"size": 501}])
def test_a_page_has_a_number_and_a_bounded_size(wrong):
    with pytest.raises(PreconditionFailed):
        Selection(**wrong)
