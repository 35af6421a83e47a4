from leveret.broker.history import ALL_RINGS, History

S = 1_000_000


def counted(*values: int, step_s: int = 5) -> History:
    """A history of `n`, with a sample every few seconds."""
    history = History(("n",))
    for number, value in enumerate(values, 1):
        history.record(number * step_s * S, (value,))
    return history


def test_the_rate_is_that_of_the_last_interval():
    assert counted(0, 100, 110).rate("n") == 2.0


def test_numbers_that_stand_still_have_no_rate():
    assert counted(0, 100, 100).rate("n") == 0.0


def test_after_a_pause_the_rate_is_that_of_the_last_interval():
    assert counted(0, 100, 100, 100, 100, 150).rate("n") == 10.0


def test_one_sample_has_no_rate():
    assert counted(7).rate("n") == 0.0
    assert History(("n",)).rate("n") == 0.0


def test_rates_of_several_numbers_are_added():
    history = History(("a", "b", "c"))
    history.record(5 * S, (0, 0, 0))
    history.record(10 * S, (5, 10, 100))
    assert history.rate("a", "b") == 3.0


def test_samples_are_at_multiples_of_the_increment_newest_first():
    history = counted(1, 2, 3, 4)
    found = history.samples(("n",), age_s=20, incr_s=10, now_us=23 * S)
    assert found == [(20 * S, 4), (10 * S, 2), (0, 1)]


def test_samples_of_numbers_that_stood_still_are_complete():
    history = counted(1, 2, 2, 2, 2, 3)
    found = history.samples(("n",), age_s=20, incr_s=5, now_us=30 * S)
    assert [value for _, value in found] == [3, 2, 2, 2, 2]


def test_a_history_without_samples_is_full_of_zeros():
    assert History(("n",)).samples(("n",), age_s=5, incr_s=5, now_us=10 * S) == [(10 * S, 0), (5 * S, 0)]


def test_older_samples_have_a_coarser_step():
    history = counted(*range(1, 601))
    found = history.samples(("n",), age_s=1800, incr_s=600, now_us=3000 * S)
    assert found == [(3000 * S, 600), (2400 * S, 480), (1800 * S, 360), (1200 * S, 240)]


def test_a_day_is_kept_where_all_rings_are_asked_for():
    history = History(("n",), ALL_RINGS)
    for hour in range(25):
        history.record(hour * 3600 * S, (hour,))
    found = history.samples(("n",), age_s=86_400, incr_s=43_200, now_us=24 * 3600 * S)
    assert [value for _, value in found] == [24, 12, 0]


def test_memory_is_bounded_by_the_rings():
    history = counted(*range(10_000))
    assert sum(len(ring.rows) for ring in history._rings) == 121 + 61


def test_fewer_samples_are_kept_on_request():
    history = History(("n",))
    for number in range(1000):
        history.record(number * 5 * S, (number,), most=10)
    assert [len(ring.rows) for ring in history._rings] == [10, 5]
    assert history.rate("n") == 0.2
