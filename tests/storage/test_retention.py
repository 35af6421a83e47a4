"""`plan` is a pure function: segments, what is unsettled in them, a policy and a time in; a plan out."""

import pytest

from leveret.storage.retention import REWRITE_BELOW, Plan, Retention, SegmentView, plan
from leveret.storage.segment import SegmentInfo

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
        assert plan([SegmentView(A, few, pinned=True)], Retention(), NOW) == Plan(rewrite=[A])
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
        assert plan(views, policy, NOW) == Plan(delete=[A, B], expire=[A, B] if unsettled else [])

    def test_the_oldest_go_until_the_rest_is_small_enough(self):
        policy = Retention(keep_settled=True, max_bytes=2000)
        views = [SegmentView(each, 0) for each in (A, B, C)]
        assert plan(views, policy, NOW) == Plan(delete=[A])
        assert plan(views[1:], policy, NOW) == Plan()

    def test_a_limit_that_cuts_a_segment_lets_it_go_whole(self):
        policy = Retention(keep_settled=True, max_bytes=1999)
        assert plan([SegmentView(each, 0) for each in (A, B, C)], policy, NOW) == Plan(delete=[A, B])

    def test_what_is_in_flight_or_delayed_keeps_its_segment_and_the_rest_of_it_expires(self):
        policy = Retention(keep_settled=True, max_age_us=5000)
        views = [SegmentView(A, 3, pinned=True), SegmentView(B, 0)]
        assert plan(views, policy, NOW) == Plan(delete=[B], expire=[A])

    def test_the_segment_that_is_appended_to_stays(self):
        policy = Retention(keep_settled=True, max_age_us=1, max_bytes=1)
        assert plan([SegmentView(A, 5, sealed=False)], policy, NOW) == Plan()


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
