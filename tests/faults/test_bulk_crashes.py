"""Power cuts, kills and full disks at any operation under a query and a writer. See `bulk_history.py`."""

from __future__ import annotations

from random import Random

import pytest

from leveret.amqp.properties import encode
from leveret.broker.queries import staged_batches
from leveret.broker.record_flags import EXPIRES
from leveret.flight import actions
from leveret.flight.tickets import StageDescriptor
from leveret.storage.journal import Outcome
from leveret.storage.records import PERSISTENT, Message
from tests.faults.broker_life import live
from tests.faults.bulk_history import QUERY, QUEUES, WRITER, BulkHistory

LIVES = 4


def step(history: BulkHistory, random: Random) -> None:  # noqa: C901  # one case for each kind of step
    match random.choices(range(12), [20, 30, 12, 6, 4, 5, 2, 3, 2, 6, 3, 1])[0]:
        case 0:
            history.publish(random.randrange(1, 12))
        case 1:
            history.trigger()
        case 2:
            history.stage()
        case 3:
            history.consume(random.randrange(1, 6))
        case 4:
            history.sync()
        case 5:
            history.checkpoint()
        case 6:
            history.fail(random.randrange(1, 4))
        case 7:
            history.heal()
        case 8:
            history.take_over()
        case 9:
            history.commit()
        case 10:
            history.lapse()
        case 11:
            history.end()


def run(seed: int) -> None:
    random = Random(seed)
    history = BulkHistory(seed, priorities=random.random() < 0.3)
    for _ in range(LIVES):
        live(history, random, step)
        history.crash(power_loss=random.random() < 0.8)
        history.check()
    history.restart()
    history.check()
    finish(history)


def finish(history: BulkHistory) -> None:
    """Everything is done again until it is done: then the queue is empty and the table has each once."""
    history.take_over()
    for _ in range(1000):
        before = history.committed
        history.trigger()
        history.check()
        queue = history.queue("q")
        if history.committed == before and not queue.cursor.progress.in_flight and not queue.ready:
            break
    assert not history.queue("q").ready
    assert history.confirmed <= history.table.keys() | history.consumed


@pytest.mark.histories(sample=12, full=240)
def test_after_any_crash_leases_are_exact_and_batches_are_whole(seed: int, small_steps: None) -> None:
    run(seed)


def test_what_a_note_names_is_held_again_where_the_journal_has_forgotten_it() -> None:
    """As after a byte flipped in the journal: a lease keeps its messages, a stage its secret."""
    history = BulkHistory(1)
    history.publish(5)
    assert isinstance(history.ask(actions.Lease("/", "q", QUERY, history.epoch, 0, 3)), actions.Leased)
    history.rows[0] = [b"row"]
    history.write("task", history.rows[0])
    for name in QUEUES:
        queue = history.queue(name)
        queue.cursor.release(list(queue.cursor.progress.leased.ranges()))
    history.restart()
    assert [history.queue(name).ready for name in QUEUES] == [2, 0]
    assert history.plan(1) == [b"m0", b"m1", b"m2"]
    history.check()


def test_what_was_transient_is_in_no_lease_after_a_restart() -> None:
    history = BulkHistory(1)
    queue = history.queue("q")
    queue.append([Message(b"", b"q", b"", body) for body in (b"t1", b"t2")])
    history.publish(1)
    for end, messages in ((1, 1), (2, 2)):  # the first is all transient, the second half
        leased = history.ask(actions.Lease("/", "q", QUERY, history.epoch, 0, messages))
        assert isinstance(leased, actions.Leased)
        query = queue.queries().queries[QUERY]
        assert queue.queries().next(query, end - 1, max_messages=messages) == end
    history.restart()
    assert history.plan(2) == [b"m0"]
    history.ask(actions.Lease("/", "q", QUERY, history.epoch, 2))
    assert not history.queue("q").cursor.progress.in_flight


def test_transient_rows_of_a_stage_end_with_the_process_and_count_nowhere() -> None:
    history = BulkHistory(1)
    descriptor = StageDescriptor("/", "w", 0, "task", 3600.0)
    rows = [(b"", b"q", encode({"delivery_mode": mode}, 1), b"x") for mode in (1, 1, 2)]
    history.answers.stage("guest", descriptor, rows)
    assert (history.queue("q").hidden, history.queue("q").unacked) == (3, 0)
    history.restart()
    assert (history.queue("q").hidden, history.queue("q").unacked) == (1, 0)
    history.ask(actions.Commit("/", "w", 0, ["task"]))
    assert (history.queue("q").ready, history.queue("q").hidden) == (1, 0)


def test_what_is_leased_and_in_no_note_goes_back() -> None:
    history = BulkHistory(1)
    history.publish(5)
    history.queue("q").cursor.lease(5)
    history.restart()
    assert history.queue("q").ready == 5


@pytest.mark.parametrize("at_first", ["leased", "released"])
def test_what_waits_is_weighed_when_notes_and_journal_differ(at_first) -> None:
    """As after a crash between the two, or a byte flipped in one of them."""
    history = BulkHistory(1, limits={"x-max-length-bytes": 1 << 20})
    history.publish(5)
    queue = history.queue("q")
    if at_first == "leased":
        queue.cursor.lease(5)
    else:
        assert isinstance(history.ask(actions.Lease("/", "q", QUERY, history.epoch, 0, 3)), actions.Leased)
        queue.cursor.release(list(queue.cursor.progress.leased.ranges()))
    history.restart()
    queue = history.queue("q")
    limit = queue.rules.limit
    assert limit.waiting_bytes == limit.count_waiting_bytes() == 2 * queue.ready > 0


def test_messages_that_were_all_in_a_lease_at_a_restart_can_still_expire() -> None:
    history = BulkHistory(1)
    header = encode({"delivery_mode": 2, "expiration": "7200000"}, 1)
    history.queue("q").append([Message(b"", b"q", header, b"x", PERSISTENT | EXPIRES)] * 3)
    history.ask(actions.Lease("/", "q", QUERY, history.epoch, 0))
    history.restart()
    history.lapse()
    assert history.queue("q").ready == 3
    history.lapse()
    history.lapse()
    assert history.queue("q").ready == 0


def test_a_lease_of_many_priorities_names_neighbours_together() -> None:
    history = BulkHistory(1, priorities=True)
    history.publish(200)
    history.ask(actions.Lease("/", "q", QUERY, history.epoch, 0))
    assert history.queue("q").queries().queries[QUERY].leases[1].ranges == [(0, 200)]


def committed(history: BulkHistory) -> None:
    """A batch of two rows is staged, and its commit is asked for; nothing of it is on the disk yet."""
    history.rows[0] = [b"a", b"b"]
    history.write("task", history.rows[0])
    assert history.sync()
    answer = history.answers.to("guest", actions.Commit("/", WRITER, 0, ["task"]))
    assert answer == actions.Committed(4, False)
    history.broker.end_turn()


def shown(history: BulkHistory) -> list[tuple[int, int]]:
    return [(history.queue(name).ready, history.queue(name).hidden) for name in QUEUES]


def test_nobody_gets_a_row_before_its_commit_is_on_the_disk() -> None:
    history = BulkHistory(1)
    committed(history)
    assert shown(history) == [(0, 2), (0, 2)]
    assert not history.queue("q").cursor.take(2)
    history.disk = history.disk.crash(history.random)
    history.open()
    assert shown(history) == [(0, 2), (0, 2)], "the commit was lost with the power"
    committed_again = history.ask(actions.Commit("/", WRITER, 0, ["task"]))
    assert committed_again == actions.Committed(4, False)
    assert shown(history) == [(2, 0), (2, 0)]


def test_a_crash_behind_a_commit_shows_its_rows() -> None:
    history = BulkHistory(1)
    committed(history)
    history.broker.store.sync()  # and before the broker hears of it
    history.crash(power_loss=True)
    assert shown(history) == [(2, 0), (2, 0)]
    assert history.ask(actions.Commit("/", WRITER, 0, [])) == actions.Committed(0, True)
    assert history.queue("q").cursor.returns.count(0) == 0
    history.check()


def test_of_too_many_queries_the_oldest_of_a_single_batch_is_forgotten(monkeypatch) -> None:
    monkeypatch.setattr(staged_batches, "QUERIES_MAX", 2)
    history = BulkHistory(1)
    for query, batch in (("stream", 7), ("once", 0), ("twice", 0)):
        history.ask(actions.Commit("/", query, batch, []))
    for query, batch, known in (("stream", 7, True), ("twice", 0, True), ("once", 0, False)):
        assert history.ask(actions.Commit("/", query, batch, [])) == actions.Committed(0, known)


def test_a_lease_whose_query_was_lost_is_in_the_way_of_no_other() -> None:
    """As after a byte flipped in the note of the query: its numbers come again."""
    history = BulkHistory(1)
    history.publish(4)
    for start in range(2):
        history.ask(actions.Lease("/", "q", QUERY, history.epoch, start, 2))
    history.lapse()
    notes = history.queue("q").queries()._notes
    at, _ = notes._kept["query", QUERY]
    notes.cursor.drop([(at, at + 1)], Outcome.DAMAGED)
    history.restart()
    history.take_over()
    for start, end in ((0, 1), (1, 2)):
        leased = history.ask(actions.Lease("/", "q", QUERY, history.epoch, start, 1))
        assert isinstance(leased, actions.Leased)
        assert leased.end == end
        history.restart()
        history.take_over()
