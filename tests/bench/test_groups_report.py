"""What the report of the group benchmark makes of raw runs. Nothing here measures anything."""

import pytest

from bench.groups import parts
from bench.groups_report import BARS, TITLES, failed, report, summarize


def run(**figures):
    return {"others_cpu_share": 0.0, **figures}


def moved(flow_ms, *, in_flight=0, duplicates=0):
    return {"flow_ms": flow_ms, "in_flight": in_flight, "duplicates": duplicates}


def bar_of(part, title, runs):
    (row,) = [bar.row(runs) for bar in BARS if (bar.part, bar.title) == (part, title)]
    return row[1:]


def test_a_ratio_is_the_median_of_the_ratios_within_rounds():
    runs = {
        "group": [run(rate=70), run(rate=20), run(rate=90)],
        "queue": [run(rate=r) for r in (100, 10, 100)],
    }
    assert bar_of("rate", "group / queue", runs) == ["0.90", "≥ 0.70 x: met"]


@pytest.mark.parametrize(("four", "verdict"), [(3.2, "≤ 1.10 x: met"), (3.4, "≤ 1.10 x: NOT met")])
@pytest.mark.parametrize("way", ["with publishing", "reading"])
def test_four_groups_may_cost_a_tenth_more_for_each_delivery(way, four, verdict):
    runs = {f"one {way}": [run(broker_cpu_us=3.0)], f"four {way}": [run(broker_cpu_us=four)]}
    assert bar_of("groups", f"four / one, {way}", runs)[1] == verdict


def test_of_all_events_of_a_mode_the_slowest_counts_and_what_is_no_event_does_not():
    runs = {
        "orderly, nothing": [moved(900)],
        "orderly, join": [moved(20), moved(30)],
        "orderly, die": [moved(210), moved(40)],
        "concurrent, leave": [moved(500)],
    }
    assert bar_of("movement", "orderly, the slowest", runs) == ["210", "≤ 200 ms: NOT met"]


def test_a_duplicate_is_allowed_for_each_delivery_in_flight_and_no_more():
    title = "duplicates beyond what was in flight"
    fine = {"orderly, die": [moved(10, in_flight=16, duplicates=16)]}
    assert bar_of("movement", title, fine)[0] == "0"
    runs = {**fine, "orderly, join": [moved(10, duplicates=1)]}
    assert bar_of("movement", title, runs)[0] == "1"
    assert "NOT met" in bar_of("movement", title, runs)[1]


def test_what_was_not_measured_is_not_met_either():
    assert bar_of("lateness", "p99", {"paced": []}) == ["-", "≤ 100 ms: not measured"]


def test_a_run_that_failed_is_named_and_does_not_count():
    runs = {"group": [{"error": "5 of 10"}, run(rate=80)], "queue": [run(rate=10), run(rate=100)]}
    assert failed({"rate": runs}) == ["FAILED rate, group: 5 of 10"]
    assert summarize("rate", runs)["bars"] == {"group / queue": 0.8}
    assert failed({"rate": runs})[0] in report({"rate": runs})


def test_every_part_that_can_be_measured_has_a_title_and_bars():
    assert list(parts(quick=True, rounds=1)) == list(TITLES)
    assert {bar.part for bar in BARS} == set(TITLES)
