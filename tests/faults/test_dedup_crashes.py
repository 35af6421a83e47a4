"""Power cuts and full disks at any operation while a publisher repeats itself. See `dedup_history.py`."""

from __future__ import annotations

from random import Random

import pytest

from leveret.broker.queues import deduplication
from tests.faults.broker_life import live
from tests.faults.dedup_history import TRANSIENT, DedupHistory, Name

LIVES = 4


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record with everything every few turns."""
    monkeypatch.setattr(deduplication, "WHOLE_AFTER_BYTES", 300)


def batch(random: Random) -> list[Name]:
    producer = random.choice(["a", "b", "b", TRANSIENT])
    first = random.randrange(40)
    numbers = list(range(first, first + random.randrange(1, 20)))
    if random.random() < 0.5:
        numbers += random.choices(numbers, k=5)
        random.shuffle(numbers)
    return [(producer, number) for number in numbers]


def step(history: DedupHistory, random: Random) -> None:
    match random.choices(range(8), [30, 8, 4, 20, 3, 5, 2, 3])[0]:
        case 0:
            history.publish(batch(random))
        case 1:
            history.commit(batch(random))
        case 2:
            history.turn()
        case 3:
            history.sync()
        case 4:
            history.checkpoint()
        case 5:
            history.consume(random.randrange(1, 30))
        case 6:
            history.fail(random.randrange(1, 4), torn=random.random() < 0.5)
        case 7:
            history.heal()


def run(seed: int) -> None:
    random = Random(seed)
    history = DedupHistory(seed, limit=random.choice([None, None, 12]))
    for _ in range(LIVES):
        live(history, random, step)
        history.crash(power_loss=random.random() < 0.8)
        history.check()
        history.publish(batch(random))
        history.sync()
        history.check()


@pytest.mark.histories(sample=20, full=180)
def test_after_any_crash_a_sequence_is_known_if_and_only_if_it_is_stored(seed: int) -> None:
    run(seed)
