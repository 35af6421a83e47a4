"""`plan` is a pure function: segments, what is unsettled in them, a policy and a time in; a plan out.

Then what a store makes of it.
"""

import pytest

from leveret.storage.retention import REWRITE_BELOW, Plan, Retention, SegmentView, plan
from leveret.storage.segment import SegmentInfo
from tests.storage.builders import killed, make_store, messages, singles

NOW = 10_000


def segment(
    first: int, *, rows: int = 100, length_bytes: int = 1000, newest_us: int = 0, settled_us: int = 0
) -> SegmentInfo:
    return SegmentInfo(
        first,
        rows=rows,
        last=first + rows - 1,
        length_bytes=length_bytes,
        newest_us=newest_us,
        settled_us=settled_us,
    )


A, B, C = segment(0, newest_us=1000), segment(100, newest_us=5000), segment(200, newest_us=9000)


class TestQueue:
    def test_nothing_makes_an_empty_plan(self):
        assert plan([], Retention(), NOW) == Plan()

    def test_a_segment_with_unsettled_messages_stays(self):
        assert plan([SegmentView(A, unsettled=50)], Retention(), NOW) == Plan()

    def test_a_settled_segment_goes_wherever_it_is(self):
        views = [SegmentView(A, 50), SegmentView(B, 0), SegmentView(C, 0, sealed=False)]
        assert plan(views, Retention(), NOW) == Plan(delete=[B, C])

    def test_a_sealed_segment_of_which_little_is_left_is_rewritten(self):
        few = int(REWRITE_BELOW * A.rows) - 1
        assert plan([SegmentView(A, few)], Retention(), NOW) == Plan(rewrite=[A])
        assert plan([SegmentView(A, few + 1)], Retention(), NOW) == Plan()

    def test_the_segment_that_is_appended_to_is_not_rewritten(self):
        assert plan([SegmentView(A, 1, sealed=False)], Retention(), NOW) == Plan()

    def test_a_queue_does_not_look_at_age_and_size(self):
        policy = Retention(max_age_us=1, max_bytes=1)
        assert plan([SegmentView(A, 50)], policy, NOW) == Plan()


class TestAuditWindow:
    policy = Retention(audit_us=500)

    def test_the_window_begins_when_everything_is_settled(self):
        assert plan([SegmentView(A, 0)], self.policy, NOW) == Plan(settled=[A])

    def test_within_the_window_the_segment_stays(self):
        waiting = segment(0, settled_us=NOW - 499)
        assert plan([SegmentView(waiting, 0)], self.policy, NOW) == Plan()

    def test_after_the_window_it_goes(self):
        waiting = segment(0, settled_us=NOW - 500)
        assert plan([SegmentView(waiting, 0)], self.policy, NOW) == Plan(delete=[waiting])

    def test_nothing_is_rewritten_that_the_audit_still_reads(self):
        assert plan([SegmentView(A, 1)], self.policy, NOW) == Plan()


class TestStream:
    def test_without_limits_everything_stays(self):
        views = [SegmentView(A, 0), SegmentView(B, 5)]
        assert plan(views, Retention(keep_settled=True), NOW) == Plan()

    @pytest.mark.parametrize("unsettled", [0, 7])
    def test_what_is_too_old_goes_settled_or_not(self, unsettled):
        policy = Retention(keep_settled=True, max_age_us=5000)
        views = [SegmentView(A, unsettled), SegmentView(B, unsettled), SegmentView(C, unsettled)]
        assert plan(views, policy, NOW) == (Plan(expire=[A, B]) if unsettled else Plan(delete=[A, B]))

    def test_the_oldest_go_until_the_rest_is_small_enough(self):
        policy = Retention(keep_settled=True, max_bytes=2000)
        views = [SegmentView(each, 0) for each in (A, B, C)]
        assert plan(views, policy, NOW) == Plan(delete=[A])
        assert plan(views[1:], policy, NOW) == Plan()

    def test_a_limit_that_cuts_a_segment_lets_it_go_whole(self):
        policy = Retention(keep_settled=True, max_bytes=1999)
        assert plan([SegmentView(each, 0) for each in (A, B, C)], policy, NOW) == Plan(delete=[A, B])

    def test_a_segment_goes_when_nothing_in_it_is_unsettled(self):
        policy = Retention(keep_settled=True, max_age_us=5000)
        views = [SegmentView(A, 3), SegmentView(B, 0)]
        assert plan(views, policy, NOW) == Plan(delete=[B], expire=[A])

    def test_the_segment_that_is_appended_to_stays_until_all_of_it_is_too_old(self):
        views = [SegmentView(A, 5, sealed=False)]
        assert plan(views, Retention(keep_settled=True, max_bytes=1), NOW) == Plan()
        assert plan(views, Retention(keep_settled=True, max_age_us=NOW), NOW) == Plan()
        old = Retention(keep_settled=True, max_age_us=1)
        assert plan(views, old, NOW) == Plan(expire=[A])


@pytest.mark.parametrize(
    ("policy", "keeps_dead", "is_timed"),
    [
        (Retention(), False, False),
        (Retention(audit_us=1), True, True),
        (Retention(keep_settled=True), True, False),
        (Retention(keep_settled=True, max_age_us=1), True, True),
        (Retention(keep_settled=True, max_bytes=1), True, False),
    ],
)
def test_a_policy_says_what_must_be_written_and_when_to_look(policy, keeps_dead, is_timed):
    assert (policy.keeps_dead, policy.is_timed) == (keeps_dead, is_timed)


class TestThroughAStore:
    @pytest.mark.parametrize(
        "policy", [Retention(keep_settled=True, max_age_us=1000), Retention(keep_settled=True, max_bytes=10)]
    )
    def test_what_a_cursor_of_a_stream_has_settled_stays_settled(self, store, clock, disk, policy):
        log = store.create_log(retention=policy)
        cursor = store.create_cursor(log, "reader")
        store.append(log, messages(10))
        store.sync()
        cursor.settle(cursor.take(5))
        store.checkpoint()
        clock.now_us += 5000
        store.append(log, messages(1))
        cursor.take(1)
        store.retire(log)
        store.checkpoint()
        store.checkpoint()
        store.close()
        reopened = make_store(disk, clock).cursors(log.id)["reader"]
        assert reopened.progress.low == 5

    def test_a_stream_lets_go_what_is_too_old_and_settles_it(self, store, clock):
        log = store.create_log(retention=Retention(keep_settled=True, max_age_us=1000))
        cursor = store.create_cursor(log, "reader")
        for first in range(0, 30, 10):
            store.append(log, messages(10, first=first, size=500))
            store.checkpoint()
        assert len(log.segments) == 3
        clock.now_us += 2000
        store.append(log, messages(1))
        assert not store.checkpoint_due
        store.retire(log)
        assert store.checkpoint_due
        store.checkpoint()
        assert not store.checkpoint_due
        store.checkpoint()
        assert log.first == 30
        assert cursor.progress.retired_below == 30
        assert cursor.progress.low == 30

    def test_what_expires_for_one_cursor_may_be_settled_by_another(self, store, clock):
        log = store.create_log(retention=Retention(keep_settled=True, max_age_us=1000))
        done, late = (store.create_cursor(log, name) for name in ("done", "late"))
        store.append(log, messages(10, size=500))
        store.checkpoint()
        done.settle(done.take(10))
        before = done.journal.next
        clock.now_us += 2000
        store.retire(log)
        store.checkpoint()
        assert (log.first, late.progress.low, done.progress.low) == (10, 10, 10)
        assert done.journal.next == before

    def test_what_is_in_flight_keeps_its_segment(self, store, clock):
        log = store.create_log(retention=Retention(keep_settled=True, max_age_us=1000))
        cursor = store.create_cursor(log, "reader")
        store.append(log, messages(10, size=500))
        store.checkpoint()
        cursor.take(3)
        clock.now_us += 2000
        store.retire(log)
        store.checkpoint()
        assert (log.first, len(log.read([(0, 3)]))) == (0, 3)
        assert cursor.progress.ready == 0
        cursor.settle([(0, 3)])
        store.checkpoint()
        assert log.first == 10

    def test_an_audited_queue_keeps_what_is_settled_for_its_window(self, store, clock, disk):
        log = store.create_log(retention=Retention(audit_us=1000))
        cursor = store.create_cursor(log, "reader")
        store.append(log, messages(3))
        store.sync()
        cursor.settle(cursor.take(3))
        store.checkpoint()
        clock.now_us += 10
        store.checkpoint()
        clock.now_us += 999
        store.checkpoint()
        assert len(log.read([(0, 3)])) == 3
        clock.now_us += 1
        store.checkpoint()
        assert log.read([(0, 3)]) == []

    def test_a_segment_of_which_little_is_left_is_rewritten_with_its_offsets(self, store, log, cursor, disk):
        other = store.create_cursor(log, "other")
        store.append(log, messages(200, size=50))
        store.checkpoint()
        for each, left in ((cursor, {7}), (other, {7, 99})):
            taken = [o for start, stop in each.take(200) for o in range(start, stop)]
            each.settle(singles(o for o in taken if o not in left))
            each.give_back(singles(sorted(left)))
        store.checkpoint()
        assert log.segments[0].info.edition == 1
        assert [r.offset for r in log.read([(0, 200)])] == [7, 99]
        assert log.read_one(99).body == messages(1, first=99, size=50)[0].body
        store.checkpoint()
        assert not disk.exists("logs/0000000000000001/msgs.00000000000000000000")
        assert [r.offset for r in killed(disk).log(1).read([(0, 200)])] == [7, 99]

    def test_a_log_that_nobody_reads_keeps_everything(self, store, log, disk):
        store.append(log, messages(300, size=50))
        store.checkpoint()
        store.checkpoint()
        assert len(killed(disk).log(1).read([(0, 300)])) == 300
