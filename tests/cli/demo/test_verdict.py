"""The verdict of `leveret demo`: it holds when everything agrees, and one thing that is wrong breaks it."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime

import msgspec
import pytest

from leveret.audit.findings import Findings, Hole, QueueAccount
from leveret.cli.demo import dead_letters, jobs, verdict
from leveret.cli.demo.orders import MALFORMED, NEGATIVE, UNROUTABLE
from leveret.cli.demo.publishers import Receipts
from leveret.cli.demo.topology import DEAD, GROUP, LAKE, PARTITIONS, REJECTS, WORK
from leveret.cli.demo.verdict import GroupResult, Observations, PipelineResult, QueueResult, Tally

ORDERS = 3_000
BAD = MALFORMED + NEGATIVE
ROUTABLE = ORDERS - UNROUTABLE
VALID = ROUTABLE - BAD


def account(
    queue: str, reader: str = "", *, confirmed: int = 0, ready: int = 0, **outcomes: int
) -> QueueAccount:
    counts = dict.fromkeys(
        ("published", "delivered", "deliveries", "returns", "late", "in_flight", "lost", "doubled", "gone"), 0
    )
    return QueueAccount(
        vhost="/",
        queue=queue,
        reader=reader,
        audited=True,
        confirmed=confirmed,
        ready=ready,
        outcomes={name.replace("_", " "): count for name, count in outcomes.items()},
        **counts,
    )


def held_by(member: str) -> str:
    """Return a consumer's name as the broker writes it."""
    return f"127.0.0.1:5000 -> 127.0.0.1:5672 {member} (consuming) (1) leveret.0f"


def hole(**changes: object) -> Hole:
    whole = Hole(
        vhost="/",
        queue=PARTITIONS[0],
        reader=GROUP,
        start=700,
        stop=701,
        state="in flight",
        held_by=held_by("member-2"),
        since=None,
        deliveries=1,
    )
    return msgspec.structs.replace(whole, **changes)


def findings(**changes: object) -> Findings:
    quarter = ROUTABLE // len(PARTITIONS)
    parts = [quarter, quarter, quarter, ROUTABLE - 3 * quarter]
    whole = Findings(
        source="",
        taken=datetime(2026, 11, 15, tzinfo=UTC),
        took_s=1.0,
        stretch_s=1,
        queues=[
            account(WORK, confirmed=ROUTABLE, acked=VALID, dead_lettered=BAD),
            account(DEAD, ready=BAD),
            account(LAKE, confirmed=ROUTABLE, acked=VALID, sent_to_rejects=BAD),
            account(REJECTS, ready=BAD),
            *(account(name, confirmed=part) for name, part in zip(PARTITIONS, parts, strict=True)),
            *(
                account(name, GROUP, acked=part - (name == PARTITIONS[0]))
                for name, part in zip(PARTITIONS, parts, strict=True)
            ),
        ],
        returned={"orders.unbound": UNROUTABLE},
        lost=[],
        doubled=[],
        loops=[],
        loops_count=0,
        holes=[hole()],
        holes_count=1,
        latencies=[],
        dead_letters=[],
        flows=[],
        advice=[],
        damage=[],
        table="",
    )
    if "holes" in changes:
        changes["holes_count"] = len(changes["holes"])
    return msgspec.structs.replace(whole, **changes)


def with_queue(queue: str, reader: str = "", **changes: object) -> Findings:
    """Return findings with other figures for one queue."""
    whole = findings()
    queues = [
        msgspec.structs.replace(each, **changes) if (each.queue, each.reader) == (queue, reader) else each
        for each in whole.queues
    ]
    return findings(queues=queues)


def one_dead_letter_among_the_rejects() -> Findings:
    ready = {DEAD: BAD - 1, REJECTS: BAD + 1}
    queues = findings().queues
    return findings(
        queues=[msgspec.structs.replace(each, ready=ready.get(each.queue, each.ready)) for each in queues]
    )


RECEIPTS = Receipts(confirmed=ROUTABLE, returned=UNROUTABLE, republished=7)
WORKED = QueueResult(
    done=Tally(VALID, VALID, 0, 0, 12), dead={dead_letters.REJECTED: Tally(BAD, BAD, 0, 0, 0)}, left=0
)
GROUPED = GroupResult(
    done=Tally(ROUTABLE - 1, ROUTABLE - 1, 0, 0, 3),
    hangs=("member-2",),
    stored=ROUTABLE,
    lag=1,
    holders=(held_by("member-2"),),
)
PIPED = PipelineResult(
    table=Tally(VALID, VALID, 0, 0, 0),
    rejected={
        jobs.NOT_JSON: Tally(MALFORMED, MALFORMED, 0, 0, 0),
        jobs.BELOW_ZERO: Tally(NEGATIVE, NEGATIVE, 0, 0, 0),
    },
)
SEEN = Observations(
    orders=ORDERS,
    receipts=RECEIPTS,
    work=WORKED,
    group=GROUPED,
    waiting=0,
    pipeline=PIPED,
    findings=findings(),
)
SEEN_WITHOUT_SPARK = replace(SEEN, waiting=ROUTABLE, pipeline=None, findings=None)


def broken(seen: Observations) -> list[str]:
    return [check.name for check in verdict.checks(seen) if not check.holds]


def test_the_verdict_holds_when_everything_agrees():
    assert broken(SEEN) == []
    assert "every message is accounted for" in verdict.sentence(verdict.checks(SEEN), with_spark=True)


def test_without_spark_the_verdict_is_made_of_what_is_left():
    checks = verdict.checks(SEEN_WITHOUT_SPARK)
    assert [check.name for check in checks] == ["published", "work", "kept", "group"]
    assert broken(SEEN_WITHOUT_SPARK) == []
    assert "without Spark" in verdict.sentence(checks, with_spark=False)


@pytest.mark.parametrize(
    ("seen", "name"),
    [
        (replace(SEEN, work=replace(WORKED, left=1)), "work"),
        (replace(SEEN, work=replace(WORKED, done=Tally(VALID, VALID - 1, 1, 0, 0))), "work"),
        (replace(SEEN, work=replace(WORKED, done=Tally(VALID, VALID, 1, 1, 0))), "work"),
        (
            replace(SEEN, work=replace(WORKED, dead={dead_letters.REJECTED: Tally(BAD, BAD, 0, 0, 1)})),
            "work",
        ),
        (replace(SEEN, work=replace(WORKED, dead=WORKED.dead | {"expired": Tally(0, 1, 0, 1, 0)})), "work"),
        (replace(SEEN, pipeline=replace(PIPED, table=Tally(VALID, VALID - 1, 1, 0, 0))), "table"),
        (replace(SEEN, pipeline=replace(PIPED, table=Tally(VALID, VALID, 0, 0, 1))), "table"),
        (replace(SEEN, pipeline=replace(PIPED, table=Tally(VALID, VALID - 1, 1, 0, 1))), "table"),
        (
            replace(
                SEEN,
                pipeline=replace(PIPED, rejected={jobs.NOT_JSON: Tally(MALFORMED, MALFORMED + 1, 0, 1, 0)}),
            ),
            "rejects",
        ),
        (replace(SEEN, findings=with_queue(WORK, confirmed=ROUTABLE - 1)), "audit"),
        (replace(SEEN, findings=with_queue(LAKE, confirmed=ROUTABLE + 1)), "audit"),
        (replace(SEEN, findings=with_queue(PARTITIONS[1], confirmed=0)), "audit"),
        (replace(SEEN, findings=findings(returned={"orders.unbound": UNROUTABLE + 1})), "audit"),
        (replace(SEEN, findings=with_queue(WORK, outcomes={"acked": ROUTABLE})), "settled"),
        (replace(SEEN, findings=with_queue(LAKE, outcomes={"acked": VALID})), "settled"),
        (replace(SEEN, findings=with_queue(PARTITIONS[2], GROUP, outcomes={})), "settled"),
        (replace(SEEN, findings=with_queue(REJECTS, ready=BAD - 1)), "settled"),
        (replace(SEEN, findings=one_dead_letter_among_the_rejects()), "settled"),
        (replace(SEEN, findings=with_queue(WORK, lost=1)), "none lost"),
        (replace(SEEN, findings=findings(damage=["a segment can't be read"])), "none lost"),
        (replace(SEEN, findings=with_queue(LAKE, doubled=1)), "none twice"),
        (replace(SEEN, findings=findings(holes=[])), "one hole"),
        (replace(SEEN, findings=findings(holes=[hole(), hole(start=900, stop=901)])), "one hole"),
        (replace(SEEN, findings=findings(holes=[hole(stop=702)])), "one hole"),
        (replace(SEEN, findings=findings(holes=[hole(reader="")])), "one hole"),
        (replace(SEEN, findings=findings(holes=[hole(held_by="")])), "one hole"),
        (replace(SEEN, findings=findings(holes=[hole(held_by=held_by("member-22"))])), "one hole"),
        (replace(SEEN, group=replace(GROUPED, done=Tally(9, 9, 1, 1, 0))), "group"),
        (replace(SEEN, group=replace(GROUPED, lag=2)), "group"),
        (replace(SEEN_WITHOUT_SPARK, waiting=ROUTABLE - 1), "kept"),
        (replace(SEEN_WITHOUT_SPARK, group=replace(GROUPED, stored=ROUTABLE + 1)), "kept"),
        (replace(SEEN_WITHOUT_SPARK, group=replace(GROUPED, lag=2)), "group"),
        (replace(SEEN_WITHOUT_SPARK, group=replace(GROUPED, holders=())), "group"),
        (replace(SEEN_WITHOUT_SPARK, group=replace(GROUPED, done=Tally(9, 8, 1, 0, 0))), "group"),
    ],
)
def test_one_thing_that_is_wrong_is_named_alone(seen, name):
    assert broken(seen) == [name]
    assert verdict.sentence(verdict.checks(seen), with_spark=True).endswith(f"checks failed: {name}.")


@pytest.mark.parametrize("hangs", [(), ("member-1",)])
def test_members_that_say_otherwise_are_seen_beside_the_broker_and_beside_the_audit(hangs):
    assert broken(replace(SEEN, group=replace(GROUPED, hangs=hangs))) == ["group", "one hole"]


def test_a_member_that_hung_before_the_broker_was_killed_may_hang_too():
    assert broken(replace(SEEN, group=replace(GROUPED, hangs=("member-1", "member-2")))) == []


@pytest.mark.parametrize("changes", [{"confirmed": ROUTABLE - 1}, {"returned": UNROUTABLE - 1}])
def test_receipts_that_differ_are_seen_by_the_publishers_and_by_the_audit(changes):
    assert broken(replace(SEEN, receipts=replace(RECEIPTS, **changes))) == ["published", "audit"]


@pytest.mark.parametrize("changes", [{"nacked": 1}, {"lost": 1}])
def test_a_message_that_was_refused_or_of_which_nobody_knows_breaks_the_verdict(changes):
    assert broken(replace(SEEN, receipts=replace(RECEIPTS, **changes))) == ["published"]


def test_a_tally_counts_what_is_missing_unexpected_and_there_again():
    assert Tally.of({1, 2, 3}, Counter([2, 3, 3, 3, 4])) == Tally(3, 3, 1, 1, 2)
    assert Tally.of({1, 2}, Counter([1, 2])).exact
    assert not Tally.of({1, 2}, Counter([1, 2, 2])).exact
    assert Tally.of({1, 2}, Counter([1, 2, 2])).complete
    assert str(Tally(3, 3, 1, 1, 2)) == "3 of 3, 1 missing, 1 unexpected, 2 again"


def test_two_orders_that_are_there_for_each_other_s_reason_are_both_wrong():
    tallies = verdict.by_reason(
        {"torn": {1, 2}, "unpaid": {3, 4}}, {"torn": Counter([1, 3]), "unpaid": Counter([2, 4])}
    )
    assert tallies == {"torn": Tally(2, 2, 1, 1, 0), "unpaid": Tally(2, 2, 1, 1, 0)}


def test_a_reason_that_nobody_expects_and_one_that_nobody_has_are_wrong():
    tallies = verdict.by_reason({"torn": {1}}, {"expired": Counter([1])})
    assert tallies == {"expired": Tally(0, 1, 0, 1, 0), "torn": Tally(1, 0, 1, 0, 0)}


def test_a_letter_without_a_reason_is_one_that_nobody_expects():
    assert dead_letters.dead_letter_reason({}) == dead_letters.reject_reason({}) == "no reason given"
