"""The form of numbers, times and names; doctests in the modules have most of the examples."""

import doctest
from datetime import UTC, datetime, timedelta

import pytest

from leveret.audit import damaged_files, plots, report, wording
from tests.audit import examples


@pytest.mark.parametrize(
    "module", [wording, report, plots, damaged_files], ids=lambda module: module.__name__
)
def test_the_examples_of_a_module_hold(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize(
    ("time_ms", "written"),
    [
        (0, "0 ms"),
        (0.004, "< 0.01 ms"),
        (999.4, "999 ms"),
        (999.6, "1.0 s"),
        (59_960, "1 min"),
        (3_599_700, "1 h"),
        (-5, "0 ms"),
    ],
)
def test_a_duration_keeps_its_unit_when_it_is_rounded(time_ms, written):
    assert wording.duration(time_ms) == written


def test_an_age_ends_at_the_audit_and_a_time_without_a_zone_is_utc():
    taken = datetime(2026, 9, 15, 12, tzinfo=UTC)
    assert wording.age(taken - timedelta(minutes=5), taken) == "5 min"
    assert wording.age(datetime(2026, 9, 15, 11, 55), taken) == "5 min"
    assert wording.age(None, taken) == "–"


def test_names_of_any_bytes_can_be_shown_and_written():
    for name in examples.NASTY:
        assert wording.plain(name).isprintable()
        wording.plain(name).encode("utf-8")


def test_only_known_outcomes_are_good_or_a_loss():
    tones = {
        wording.tone(outcome)
        for outcome in ("purged", "skipped", "retention", "restart", "before the window", "?")
    }
    assert tones == {"neutral"}
    assert (wording.tone("acked"), wording.tone("expired"), wording.tone("damaged")) == (
        "well",
        "attention",
        "lost",
    )
