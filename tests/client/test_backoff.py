import random

import pytest

from leveret.client.backoff import Backoff


def test_delays_grow_up_to_a_limit() -> None:
    backoff = Backoff(initial_s=1, multiplier=3, max_s=20, jitter=0)
    assert [backoff.delay_s(attempt) for attempt in range(1, 6)] == [1, 3, 9, 20, 20]


def test_without_chance_there_is_no_jitter() -> None:
    assert Backoff(initial_s=4, jitter=1).delay_s(1) == 4


def test_jitter_makes_a_delay_shorter_and_never_longer() -> None:
    chance = random.Random(1)
    delays = [Backoff(initial_s=1, jitter=0.2).delay_s(1, chance) for _ in range(200)]
    assert min(delays) >= 0.8
    assert max(delays) <= 1
    assert 5 < len(set(delays)) <= 17


def test_the_same_chance_gives_the_same_delays() -> None:
    first, second = random.Random(7), random.Random(7)
    backoff = Backoff()
    assert [backoff.delay_s(n, first) for n in range(9)] == [backoff.delay_s(n, second) for n in range(9)]


@pytest.mark.parametrize("attempt", [1_000, 10_000, 10**9])
def test_however_many_attempts_there_were_the_limit_holds(attempt: int) -> None:
    assert Backoff(max_s=15).delay_s(attempt) == 15


def test_a_delay_of_nothing_stays_nothing() -> None:
    assert Backoff(initial_s=0).delay_s(50, random.Random(1)) == 0


@pytest.mark.parametrize(
    "wrong", [{"initial_s": -1}, {"multiplier": 0.5}, {"max_s": -1}, {"jitter": -0.1}, {"jitter": 1.1}]
)
def test_a_backoff_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="delays must be at least 0"):
        Backoff(**wrong)
