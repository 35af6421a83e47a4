"""`leveret demo`: the orders it is made of, its verdict, and the whole of it with few orders."""

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from leveret.audit.findings import Findings, Hole, QueueAccount
from leveret.cli.demo import jobs, verdict
from leveret.cli.demo.orders import FEWEST, PUBLISHERS, TORN, UNPAID, UNROUTABLE, Plan, number_of
from leveret.cli.demo.processes import Processes, SceneFailed
from leveret.cli.demo.publishers import Receipts
from leveret.cli.demo.records import Deed, Reading, Record
from leveret.cli.demo.topology import DEAD, GROUP, LAKE, PARTITIONS, REJECTS, WORK
from leveret.cli.demo.verdict import Grouped, Piped, Seen, Tally, Worked
from leveret.cli.demo.worker import OrderFailed, check
from tests.cli import command

ORDERS = 3_000
BAD = TORN + UNPAID
ROUTABLE = ORDERS - UNROUTABLE
VALID = ROUTABLE - BAD
NOBODY = "amqp://nobody.invalid"
DEMO_S = 240


# orders


def published(plan: Plan) -> dict[int, bytes]:
    return {order.number: order.body for part in range(PUBLISHERS) for order in plan.of(part)}


def test_the_orders_are_the_same_each_time():
    assert published(Plan(FEWEST)) == published(Plan(FEWEST))


@pytest.mark.parametrize("orders", [FEWEST, ORDERS, 20_000])
def test_an_order_is_valid_poisonous_or_unroutable_and_one_of_the_valid_ones_hangs(orders):
    plan = Plan(orders)
    assert len(plan.unroutable) == UNROUTABLE
    assert len(plan.torn) == TORN
    assert len(plan.unpaid) == UNPAID
    assert len(plan.valid) == orders - UNROUTABLE - BAD
    assert plan.hangs in plan.valid
    assert sorted(published(plan)) == list(range(orders))


def test_the_number_of_an_order_is_known_also_when_it_is_torn():
    assert all(number_of(body) == number for number, body in published(Plan(FEWEST)).items())


def test_a_worker_can_do_something_with_the_valid_orders_and_with_no_poisonous_one():
    plan = Plan(FEWEST)
    failed = set()
    for number, body in published(plan).items():
        try:
            check(body)
        except OrderFailed:
            failed.add(number)
    assert failed == plan.poisonous


# records


def test_what_a_killed_worker_had_written_is_read_up_to_the_last_whole_line(tmp_path):
    path = tmp_path / "worker-1.txt"
    reading = Reading(path)
    reading.more()  # nothing is there yet
    record = Record(str(path))
    record.add(Deed.DONE, 17)
    record.add(Deed.FAILED, 18)
    with path.open("ab") as file:
        file.write(b"done 1")
    reading.more()
    assert reading.numbers == {Deed.DONE: Counter([17]), Deed.FAILED: Counter([18]), Deed.HANGS: Counter()}
    with path.open("ab") as file:
        file.write(b"9\n")
    reading.more()
    assert reading.count(Deed.DONE) == 2
    assert reading.numbers[Deed.DONE][19] == 1


# the verdict


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


def hole(**changes: object) -> Hole:
    whole = Hole(
        vhost="/",
        queue=PARTITIONS[0],
        reader=GROUP,
        start=700,
        stop=701,
        state="in flight",
        held_by="127.0.0.1:5000 -> 127.0.0.1:5672 member-2 (consuming) (1) leveret.0f",
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
    """With other figures for one queue."""
    whole = findings()
    queues = [
        msgspec.structs.replace(each, **changes) if (each.queue, each.reader) == (queue, reader) else each
        for each in whole.queues
    ]
    return findings(queues=queues)


RECEIPTS = Receipts(confirmed=ROUTABLE, returned=UNROUTABLE, republished=7)
WORKED = Worked(
    done=Tally(VALID, VALID, 0, 0, 12), dead=Tally(BAD, BAD, 0, 0, 0), reasons={"rejected": BAD}, left=0
)
GROUPED = Grouped(
    done=Tally(ROUTABLE - 1, ROUTABLE - 1, 0, 0, 3),
    hangs=("member-2",),
    stored=ROUTABLE,
    lag=1,
    holders=("127.0.0.1:5000 -> 127.0.0.1:5672 member-2 (consuming) (1) leveret.0f",),
)
PIPED = Piped(
    table=Tally(VALID, VALID, 0, 0, 0),
    rejected=Tally(BAD, BAD, 0, 0, 0),
    reasons={jobs.NOT_JSON: TORN, jobs.UNPAID: UNPAID},
    wanted={jobs.NOT_JSON: TORN, jobs.UNPAID: UNPAID},
)
SEEN = Seen(
    orders=ORDERS,
    receipts=RECEIPTS,
    worked=WORKED,
    grouped=GROUPED,
    waiting=0,
    piped=PIPED,
    findings=findings(),
)
SEEN_WITHOUT_SPARK = replace(SEEN, waiting=ROUTABLE, piped=None, findings=None)


def broken(seen: Seen) -> list[str]:
    return [each.name for each in verdict.checks(seen) if not each.holds]


def test_the_verdict_holds_when_everything_agrees():
    assert broken(SEEN) == []
    assert "every message is accounted for" in verdict.sentence(verdict.checks(SEEN), with_spark=True)


def test_without_spark_the_verdict_is_made_of_what_is_left():
    checks = verdict.checks(SEEN_WITHOUT_SPARK)
    assert [each.name for each in checks] == ["published", "work", "kept", "group"]
    assert broken(SEEN_WITHOUT_SPARK) == []
    assert "without Spark" in verdict.sentence(checks, with_spark=False)


@pytest.mark.parametrize(
    ("seen", "name"),
    [
        (replace(SEEN, worked=replace(WORKED, left=1)), "work"),
        (replace(SEEN, worked=replace(WORKED, done=Tally(VALID, VALID - 1, 1, 0, 0))), "work"),
        (replace(SEEN, worked=replace(WORKED, dead=Tally(BAD, BAD, 0, 0, 1))), "work"),
        (replace(SEEN, worked=replace(WORKED, reasons={"expired": BAD})), "work"),
        (replace(SEEN, piped=replace(PIPED, table=Tally(VALID, VALID - 1, 1, 0, 0))), "table"),
        (replace(SEEN, piped=replace(PIPED, table=Tally(VALID, VALID, 0, 0, 1))), "table"),
        (replace(SEEN, piped=replace(PIPED, rejected=Tally(BAD, BAD + 1, 0, 1, 0))), "rejects"),
        (replace(SEEN, piped=replace(PIPED, reasons={jobs.NOT_JSON: BAD})), "rejects"),
        (replace(SEEN, findings=with_queue(WORK, confirmed=ROUTABLE - 1)), "audit"),
        (replace(SEEN, findings=with_queue(LAKE, confirmed=ROUTABLE + 1)), "audit"),
        (replace(SEEN, findings=with_queue(PARTITIONS[1], confirmed=0)), "audit"),
        (replace(SEEN, findings=findings(returned={"orders.unbound": UNROUTABLE + 1})), "audit"),
        (replace(SEEN, findings=with_queue(WORK, outcomes={"acked": ROUTABLE})), "settled"),
        (replace(SEEN, findings=with_queue(LAKE, outcomes={"acked": VALID})), "settled"),
        (replace(SEEN, findings=with_queue(PARTITIONS[2], GROUP, outcomes={})), "settled"),
        (replace(SEEN, findings=with_queue(REJECTS, ready=BAD - 1)), "settled"),
        (replace(SEEN, findings=with_queue(WORK, lost=1)), "none lost"),
        (replace(SEEN, findings=findings(damage=["a segment can't be read"])), "none lost"),
        (replace(SEEN, findings=with_queue(LAKE, doubled=1)), "none twice"),
        (replace(SEEN, findings=findings(holes=[])), "one hole"),
        (replace(SEEN, findings=findings(holes=[hole(), hole(start=900, stop=901)])), "one hole"),
        (replace(SEEN, findings=findings(holes=[hole(stop=702)])), "one hole"),
        (replace(SEEN, findings=findings(holes=[hole(reader="")])), "one hole"),
        (replace(SEEN, findings=findings(holes=[hole(held_by="")])), "one hole"),
        (replace(SEEN, grouped=replace(GROUPED, hangs=("member-1",))), "one hole"),
        (replace(SEEN, grouped=replace(GROUPED, hangs=("member-1", "member-2"))), "one hole"),
        (replace(SEEN_WITHOUT_SPARK, waiting=ROUTABLE - 1), "kept"),
        (replace(SEEN_WITHOUT_SPARK, grouped=replace(GROUPED, stored=ROUTABLE + 1)), "kept"),
        (replace(SEEN_WITHOUT_SPARK, grouped=replace(GROUPED, lag=2)), "group"),
        (replace(SEEN_WITHOUT_SPARK, grouped=replace(GROUPED, holders=())), "group"),
        (replace(SEEN_WITHOUT_SPARK, grouped=replace(GROUPED, done=Tally(9, 8, 1, 0, 0))), "group"),
    ],
)
def test_one_thing_that_is_wrong_is_named_alone(seen, name):
    assert broken(seen) == [name]
    assert verdict.sentence(verdict.checks(seen), with_spark=True).endswith(f"checks do not hold: {name}.")


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
    assert str(Tally(3, 3, 1, 1, 2)) == "3 of 3, 1 missing, 1 that should not be there, 2 again"


# processes


async def never() -> bool:
    return False


def test_a_process_that_dies_is_named_with_its_last_words(tmp_path):
    async def wait() -> None:
        processes = Processes(tmp_path)
        await processes.start("broken", "json.tool", "--no-such-option")
        await processes.until(never, "the sky falls", limit_s=30)

    with pytest.raises(SceneFailed, match=r"broken ended with code 2.*no-such-option.*broken\.log"):
        asyncio.run(wait())


def test_a_wait_that_is_over_says_for_what(tmp_path):
    with pytest.raises(SceneFailed, match="the sky falls: that did not happen in 0 s"):
        asyncio.run(Processes(tmp_path).until(never, "the sky falls", limit_s=0))


def test_a_machine_without_java_is_told_so_in_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert "Spark needs Java" in (jobs.missing() or "")


# the whole of it


def left_behind(place: Path) -> list[str]:
    """Processes that still work below this directory."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = each.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(place) in line:
            found.append(line)
    return found


def demo(*words: object) -> command.Ran:
    process = command.started("demo", *words, url=NOBODY)
    out, err = process.communicate(timeout=DEMO_S)
    return command.ended(process.returncode, out, err)


@pytest.mark.timeout(DEMO_S)
def test_without_spark_everything_else_is_shown_and_holds(tmp_path):
    place = tmp_path / "demo"
    ran = demo("--without-spark", "--orders", ORDERS, "--dir", place, "--json")
    assert ran.code == 0, ran.err
    assert "without pipeline and audit, which need Spark" in ran.err
    assert "killed with -9" in ran.err
    result = ran.result
    assert result["holds"]
    assert [each["name"] for each in result["checks"]] == ["published", "work", "kept", "group"]
    assert result["receipts"]["confirmed"] == ROUTABLE
    assert result["receipts"]["returned"] == UNROUTABLE
    assert result["work"]["done"]["found"] == VALID
    assert result["work"]["reasons"] == {"rejected": BAD}
    assert result["report"] is None
    assert left_behind(place) == []


@pytest.mark.needs_java
@pytest.mark.timeout(DEMO_S)
def test_the_demo_accounts_for_every_message_of_publishers_workers_pipeline_and_group(tmp_path):
    place = tmp_path / "demo"
    ran = demo("--orders", ORDERS, "--dir", place)
    assert ran.code == 0, ran.out.decode() + ran.err
    said = ran.out.decode()
    assert "✘" not in said
    assert "every message is accounted for" in said
    assert f"{VALID:,} rows" in said
    report = place / "audit" / "report.html"
    assert f"The report: {report}" in said
    assert report.exists()
    found = json.loads((place / "audit" / "findings.json").read_bytes())
    assert len(found["holes"]) == 1
    assert left_behind(place) == []


@pytest.mark.timeout(DEMO_S)
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_ctrl_c_ends_the_demo_and_everything_that_it_has_started(tmp_path):
    place = tmp_path / "demo"
    process = command.started("demo", "--without-spark", "--orders", ORDERS, "--dir", place, url=NOBODY)
    assert process.stderr is not None
    for line in process.stderr:
        if b"consumers" in line:
            break
    assert len(left_behind(place)) > 5
    os.kill(process.pid, signal.SIGINT)
    ran = command.finished(process)
    assert ran.code == 128 + signal.SIGINT
    assert "stopped" in ran.err
    assert left_behind(place) == []


def test_a_directory_that_is_not_empty_is_refused_and_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("precious")
    ran = demo("--dir", tmp_path)
    assert ran.code == 1
    assert "there is something in" in ran.err
    assert [each.name for each in tmp_path.iterdir()] == ["mine.txt"]


def test_a_demo_needs_some_orders(tmp_path):
    ran = demo("--orders", 10, "--dir", tmp_path / "demo")
    assert ran.code == 2
    assert not (tmp_path / "demo").exists()
