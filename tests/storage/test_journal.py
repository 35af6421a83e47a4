import pytest

from leveret.storage.journal import Entry, Kind, Outcome
from leveret.storage.log import measure
from leveret.storage.records import PERSISTENT, Record

ENTRIES = [
    Entry(Kind.STARTED, [(0, 7)]),
    Entry(Kind.DELIVERED, [(3, 4), (9, 12)], who=b"consumer-1"),
    Entry(Kind.SETTLED, [(3, 4)], Outcome.DEAD_LETTERED, b"consumer-1"),
    Entry(Kind.RETURNED, [(5, 6)], 1, b"", not_before_us=1 << 60),
    Entry(Kind.MARKED, [(0, 1 << 62)]),
    Entry(Kind.SYNCED, []),
    Entry(Kind.REOPENED, [(0, 12)]),
    Entry(Kind.LEASED, [(3, 4), (9, 12)], who=b"query-1"),
    Entry(Kind.RELEASED, [(9, 12)], who=b"query-1"),
]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.kind.name)
def test_an_entry_is_a_message_and_comes_back(entry):
    record = Record(17, 1234, *entry.message())
    assert Entry.of(record) == entry._replace(time_us=1234)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.kind.name)
def test_every_entry_is_persistent_and_fits_the_format(entry):
    assert entry.message().flags & PERSISTENT
    assert measure([entry.message()])[1]


def test_every_kind_and_outcome_fits_its_field():
    assert all(kind << 1 < 0x80 for kind in Kind)
    assert all(0 < outcome < 256 for outcome in Outcome)
