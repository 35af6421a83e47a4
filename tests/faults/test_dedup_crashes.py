"""Power cuts and full disks at any operation while a publisher repeats itself. See `dedup_history.py`."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import lru_cache
from random import Random

import pytest

from leveret.broker import accounts, dedup
from leveret.storage.errors import WriteFailed
from leveret.testing.disk import CutAt, PowerCut
from tests.faults.dedup_history import TRANSIENT, DedupHistory, Name

FIRST = int(os.environ.get("LEVERET_SEED", "0"))
HISTORIES = int(os.environ.get("LEVERET_HISTORIES", "180"))
GROUPS = 6
LIVES = 4


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logins that cost nothing, and a record with everything every few turns."""
    monkeypatch.setattr(accounts, "is_password", lru_cache(accounts.is_password))
    monkeypatch.setattr(dedup, "WHOLE_AFTER_BYTES", 300)


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


def live(history: DedupHistory, random: Random) -> None:
    """Until the power goes, or the process is killed."""
    with suppress(PowerCut, WriteFailed):
        if random.random() < 0.7:
            history.disk.before = CutAt(random.randrange(1, random.choice([20, 80, 200])))
        for _ in range(random.randrange(60)):
            step(history, random)
            history.check()


def run(seed: int) -> None:
    random = Random(seed)
    history = DedupHistory(seed, limit=random.choice([None, None, 12]))
    for _ in range(LIVES):
        live(history, random)
        history.crash(power_loss=random.random() < 0.8)
        history.check()
        history.publish(batch(random))
        history.sync()
        history.check()


@pytest.mark.parametrize("group", range(GROUPS))
def test_after_any_crash_a_sequence_is_known_if_and_only_if_it_is_stored(group: int) -> None:
    """Replay one with LEVERET_SEED=n LEVERET_HISTORIES=1; look for more with other numbers."""
    for seed in range(FIRST + group, FIRST + HISTORIES, GROUPS):
        try:
            run(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}: LEVERET_SEED={seed} LEVERET_HISTORIES=1 replays it")
            raise
