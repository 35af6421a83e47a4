"""What the report of the client benchmark makes of raw runs. Nothing here measures anything."""

from bench.client_report import failed, of_libraries, of_memory, of_ways, summarize


def run(rate, client_cpu_us=10.0, way="its way"):
    return {
        "way": way,
        "rate": rate,
        "client_cpu_us": client_cpu_us,
        "broker_cpu_us": 3.0,
        "others_cpu_share": 0.0,
    }


def contest(task, runs):
    return {"task": task, "broker": "leveret", **summarize(runs)}


def test_a_ratio_is_the_median_of_the_ratios_within_rounds():
    found = summarize({"leveret": [run(100), run(40), run(90)], "aio_pika": [run(10), run(2), run(15)]})
    assert found["leveret_against"]["aio_pika"]["rate"] == 10
    assert found["medians"]["leveret"]["rate"] == 90
    assert found["rate_spread"]["leveret"] == [40, 100]


def test_a_library_that_needs_more_processor_time_has_a_ratio_above_one():
    found = summarize({"leveret": [run(100, client_cpu_us=5.0)], "pika": [run(10, client_cpu_us=50.0)]})
    assert found["leveret_against"]["pika"]["client_cpu_us"] == 10


def test_the_report_says_which_bars_are_met():
    runs = {
        "leveret": [run(90, client_cpu_us=5.0)],
        "aio_pika": [run(10, client_cpu_us=30.0)],
        "pika": [run(9, client_cpu_us=100.0)],
        "raw": [run(1000)],
    }
    text = of_libraries({"publish on leveret": contest("publish", runs)})
    assert "8x: rate met, CPU NOT met" in text
    assert "20x: rate NOT met, CPU met" in text


def test_a_rate_that_no_client_gets_of_the_broker_is_no_failure_of_the_toolkit():
    runs = {
        "leveret": [run(30, client_cpu_us=5.0)],
        "aio_pika": [run(10, client_cpu_us=50.0)],
        "raw": [run(40)],
    }
    text = of_libraries({"publish on rabbitmq": contest("publish", runs)})
    assert "8x: rate beyond the broker, CPU met" in text


def test_a_run_that_failed_is_named_and_does_not_count():
    runs = {"leveret": [{"error": "5 of 10 messages"}, run(80)], "aio_pika": [run(40), run(10)]}
    results = {"publish on leveret": contest("publish", runs)}
    assert failed(results) == ["FAILED publish on leveret, leveret: 5 of 10 messages"]
    assert results["publish on leveret"]["leveret_against"]["aio_pika"]["rate"] == 8
    assert failed(results)[0] in of_libraries(results)


def test_the_fastest_way_of_a_library_comes_first():
    runs = {"slow": [run(10)], "fast": [run(20)]}
    text = of_ways({"pika, publish on leveret": contest("publish", runs)})
    assert text.index("fast") < text.index("slow")


def test_memory_is_compared_with_what_it_was_after_the_first_messages():
    samples = [10 << 20, 30 << 20, 31 << 20, 32 << 20]
    found = {"messages": 400, "rate": 1.0, "client_cpu_us": 1.0, "resident_bytes": samples}
    assert "grown by 2.0 MiB since message 200" in of_memory({"leveret": found})
