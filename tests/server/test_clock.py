"""The broker's clock, over clocks that the test moves; and what is logged when the system's clock is set."""

from __future__ import annotations

import asyncio
import logging

import pytest

from leveret.server.clock import SteadyClock, StepWatch


class Machine:
    def __init__(self) -> None:
        self.of_day_s, self.passed_s = 1_700_000_000, 500

    def clock(self) -> SteadyClock:
        return SteadyClock(
            time_of_day_ns=lambda: self.of_day_s * 10**9, time_passed_ns=lambda: self.passed_s * 10**9
        )


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_it_begins_with_the_time_of_day_and_goes_on_with_the_time_that_passes(machine):
    clock = machine.clock()
    assert clock() == 1_700_000_000_000_000
    machine.of_day_s += 7200
    machine.passed_s += 3
    assert clock() == 1_700_000_003_000_000
    assert clock.behind_us == 7197_000_000


def test_another_one_begins_with_the_time_of_day_again(machine):
    machine.clock()
    machine.of_day_s -= 7200
    assert machine.clock()() == 1_699_992_800_000_000


def test_without_a_machine_of_the_test_it_is_the_time(monkeypatch):
    assert abs(SteadyClock().behind_us) < 10**9


@pytest.fixture
def watch(machine):
    loop = asyncio.new_event_loop()
    yield StepWatch(machine.clock(), loop)
    loop.close()


def test_a_step_is_logged_once_and_so_is_the_way_back(machine, watch, caplog):
    caplog.set_level(logging.WARNING)
    watch.check()
    assert caplog.messages == []
    machine.of_day_s += 7200
    machine.passed_s += 1
    watch.check()
    watch.check()
    (line,) = caplog.messages
    assert line.startswith("The system's clock was set: it is +7199 s from the broker's clock")
    machine.of_day_s -= 7199
    watch.check()
    assert len(caplog.messages) == 2
