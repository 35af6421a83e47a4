"""Timers: one time per key, nothing late, nothing twice; against a model that is a dict."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leveret.broker.histograms import Histogram
from leveret.broker.timers import Timers


def test_what_is_due_happens_in_the_order_of_its_times() -> None:
    timers, done = Timers(), []
    for key, due in (("c", 30), ("a", 10), ("b", 20)):
        timers.set(key, due, lambda key=key: done.append(key))
    assert timers.next_due_us == 10
    timers.run(25)
    assert done == ["a", "b"]
    assert timers.next_due_us == 30
    timers.run(30)
    assert done == ["a", "b", "c"]
    assert timers.next_due_us is None


def test_how_late_an_action_runs_is_observed() -> None:
    lateness_us = Histogram([0, 10])
    timers = Timers(lateness_us)
    for key, due in (("a", 10), ("b", 25), ("moved", 1), ("cancelled", 2)):
        timers.set(("queue", key), due, lambda: None)
    timers.set("a sweep", 3, lambda: None)
    timers.set(("queue", "moved"), 50, lambda: None)
    timers.cancel(("queue", "cancelled"))
    timers.run(25)
    assert lateness_us.view() == ((0, 10), (1, 0, 1), 15)


def test_setting_again_moves_a_time_both_ways() -> None:
    timers, done = Timers(), []
    timers.set("a", 10, lambda: done.append("early"))
    timers.set("a", 50, lambda: done.append("late"))
    timers.set("b", 50, lambda: done.append("late"))
    timers.set("b", 10, lambda: done.append("early"))
    timers.run(20)
    assert done == ["early"]
    timers.run(60)
    assert done == ["early", "late"]


def test_a_cancelled_time_does_not_happen() -> None:
    timers = Timers()
    timers.set("a", 10, lambda: None)
    timers.cancel("a")
    timers.cancel("never set")
    assert (len(timers), timers.next_due_us) == (0, None)
    timers.run(100)


def test_what_an_action_sets_for_a_time_past_comes_next_time() -> None:
    timers, done = Timers(), []

    def again() -> None:
        done.append(len(done))
        timers.set("a", 5, again)

    timers.set("a", 10, again)
    timers.run(10)
    assert done == [0]
    timers.run(10)
    assert done == [0, 1]


def test_an_action_may_cancel_what_is_due_later() -> None:
    timers, done = Timers(), []
    timers.set("a", 10, lambda: timers.cancel("b"))
    timers.set("b", 20, lambda: done.append("b"))
    timers.run(10)
    timers.run(20)
    assert done == []


def test_moving_a_time_very_often_does_not_pile_up() -> None:
    timers = Timers()
    for due in range(100_000):
        timers.set("a", due, lambda: None)
    assert len(timers) == 1
    assert len(timers._heap) < 5000


steps = st.one_of(
    st.tuples(st.just("set"), st.integers(0, 5), st.integers(0, 100)),
    st.tuples(st.just("cancel"), st.integers(0, 5)),
    st.tuples(st.just("run"), st.integers(0, 30)),
)


@given(st.lists(steps, max_size=60))
def test_against_a_dict(script: list[tuple[object, ...]]) -> None:
    timers, done, now = Timers(), [], 0
    model: dict[int, int] = {}
    for name, *arguments in script:
        if name == "set":
            key, due = arguments
            timers.set(key, due, lambda key=key: done.append(key))
            model[key] = due
        elif name == "cancel":
            timers.cancel(arguments[0])
            model.pop(arguments[0], None)
        else:
            now += arguments[0]
            done.clear()
            timers.run(now)
            due_now = [key for key, due in model.items() if due <= now]
            assert sorted(done) == sorted(due_now)
            assert [model[key] for key in done] == sorted(model[key] for key in due_now)
            for key in due_now:
                del model[key]
        assert len(timers) == len(model)
        assert timers.next_due_us == min(model.values(), default=None)
