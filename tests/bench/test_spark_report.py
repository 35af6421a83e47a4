"""What the report of the Spark benchmark makes of raw runs. Nothing here measures anything."""

import pytest

from bench.spark_report import BARS, failed, report, summarize


def run(rate, cpu_us=3.0):
    return {
        "rate": rate,
        "cpu_us": cpu_us,
        "spark_cpu_us": cpu_us - 1,
        "broker_cpu_us": 1.0,
        "others_cpu_share": 0.0,
    }


def block(*took_ms):
    return {
        "triggers": [
            {
                "phases_ms": {"triggerExecution": each, "addBatch": each // 2},
                "cpu": {"spark_s": 0.1, "broker_s": 0.0},
            }
            for each in took_ms
        ]
    }


def confirms(p99_us, came_p99_us=80.0):
    waits = {"confirm": p99_us, "arrival": came_p99_us}
    return {
        f"{name}_{mark}_us": us
        for name, p99_us in waits.items()
        for mark, us in {"p50": 50.0, "p99": p99_us, "max": 2 * p99_us}.items()
    }


def test_a_ratio_is_the_median_of_the_ratios_within_rounds():
    runs = {"leveret": [run(100), run(40), run(90)], "memory": [run(200), run(20), run(100)]}
    assert summarize("noop", runs)["ratios"] == {"leveret / memory, rate": 0.9}


def test_small_batches_of_all_blocks_are_one_sample():
    runs = {"leveret": [block(*[10] * 10), block(*[20] * 9, 60)], "memory": [block(*[20] * 20)]}
    found = summarize("micro", runs)
    assert found["medians"]["leveret"]["trigger_p95_ms"] == 60
    assert found["medians"]["leveret"]["triggers"] == 20
    assert found["ratios"] == {"leveret / memory, trigger_p95_ms": 3.0}


@pytest.mark.parametrize(("p99_us", "verdict"), [(150.0, "≤ 2x: met"), (250.0, "≤ 2x: NOT met")])
def test_a_latency_may_be_so_much_above_the_idle_one_at_most(p99_us, verdict):
    runs = {"idle": [confirms(100.0)], "Spark reads": [confirms(p99_us)]}
    text = report({"latency-apart": summarize("latency-apart", runs)})
    assert verdict in text


@pytest.mark.parametrize(("came_p99_us", "verdict"), [(150.0, "≤ 2x: met"), (250.0, "≤ 2x: NOT met")])
def test_beside_a_broker_in_real_time_the_clients_own_wait_does_not_count(came_p99_us, verdict):
    runs = {"idle": [confirms(100.0, 100.0)], "Spark reads": [confirms(9_000.0, came_p99_us)]}
    text = report({"latency-realtime": summarize("latency-realtime", runs)})
    assert verdict in text
    assert "90.00" in text


def test_the_report_says_which_bars_are_met_and_which_were_not_measured():
    text = report({"noop": summarize("noop", {"leveret": [run(30)], "memory": [run(100)]})})
    assert "≥ 0.5x: NOT met" in text
    assert "≥ 20x: not measured" in text


def test_a_run_that_failed_is_named_and_does_not_count():
    runs = {"leveret": [{"error": "3 messages are left"}, run(80)], "memory": [run(40), run(100)]}
    results = {"parquet": summarize("parquet", runs)}
    assert failed(results) == ["FAILED parquet, leveret: 3 messages are left"]
    assert results["parquet"]["ratios"]["leveret / memory, rate"] == 0.8
    assert failed(results)[0] in report(results)


def test_every_bar_has_a_place_in_the_report():
    parts = {bar.part: {"runs": {}, "medians": {}, "ratios": {}} for bar in BARS}
    assert report(parts).count("not measured") == len(BARS)
