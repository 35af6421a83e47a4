"""What happens in the demo, one scene after the other; each tells the stage what it counts.

The order is fixed, and where two things must meet (a kill, and work that is under way) one waits for the
other, so that it is the same play on a fast machine and on a slow one, with many orders and with few. Every
wait is bounded. What it all means is left to `verdict`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from leveret.cli.demo import dead_letters, jobs
from leveret.cli.demo.broker import Broker
from leveret.cli.demo.display import KILLED, Scene, Stage
from leveret.cli.demo.orders import CRASH, UNROUTABLE, Plan
from leveret.cli.demo.processes import Processes, SceneFailed, Started
from leveret.cli.demo.publishers import Publishers, Receipts
from leveret.cli.demo.records import Deed, Reading
from leveret.cli.demo.topology import DEAD, GROUP, LAKE, PARTITIONS, REJECTS, TOPIC, WORK, topology
from leveret.cli.demo.verdict import Grouped, Piped, Seen, Tally, Worked, by_reason
from leveret.client import Connection

WORKERS: Final = ("worker-1", "worker-2", "worker-3")
VICTIM: Final = WORKERS[1]
MEMBERS: Final = ("member-1", "member-2")
_READY_S: Final = 60.0
_PUBLISH_S: Final = 300.0
_WORK_S: Final = 300.0
_SPARK_S: Final = 300.0
_LOOK_S: Final = 0.2
_VICTIM_SHARE: Final = 100
"""The worker is killed when it has done a hundredth of all orders."""


@dataclass(slots=True)
class Crew:
    """Workers or members, and what they have written down."""

    processes: dict[str, Started] = field(default_factory=dict)
    readings: dict[str, Reading] = field(default_factory=dict)

    def look(self) -> None:
        for reading in self.readings.values():
            reading.more()

    def count(self, deed: Deed) -> int:
        """All times, also what was done again."""
        return sum(reading.count(deed) for reading in self.readings.values())

    def told(self, deed: Deed) -> str:
        found = self.numbers(deed)
        return f"{len(found):,} {deed}, {found.total() - len(found):,} of them again after a kill"

    def numbers(self, deed: Deed) -> Counter[int]:
        found: Counter[int] = Counter()
        for reading in self.readings.values():
            found.update(reading.numbers[deed])
        return found


class Play:
    """`seen = await Play(plan, place, stage, processes).run(with_spark=True)`."""

    def __init__(self, plan: Plan, place: Path, stage: Stage, processes: Processes) -> None:
        self._plan = plan
        self._place = place
        self._stage = stage
        self._processes = processes
        self._broker = Broker(processes, place / "data")
        self._workers = Crew()
        self._members = Crew()
        self._crash: asyncio.Event = asyncio.Event()
        self._pipeline = jobs.Pipeline(place)
        self._audit = jobs.Audit(place)

    @property
    def report(self) -> Path:
        return self._audit.report

    async def run(self, *, with_spark: bool) -> Seen:
        await self._open()
        await self._hire()
        receipts = await self._publish()
        async with asyncio.TaskGroup() as group:
            if with_spark:
                group.create_task(self._pipe())
            group.create_task(self._finish_work())
            group.create_task(self._finish_group())
        findings = await self._account() if with_spark else None
        return Seen(
            orders=self._plan.orders,
            receipts=receipts,
            worked=await self._look_at_work(),
            grouped=await self._look_at_group(),
            waiting=await self._left_in(LAKE),
            piped=await self._look_at_table() if with_spark else None,
            findings=findings,
        )

    # the stage is set

    async def _open(self) -> None:
        took_s = await self._broker.start()
        async with Connection(self._broker.url, name="demo", topology=topology()):
            pass
        self._stage.note("broker", f"ready after {took_s:.1f} s on port {self._broker.port} of this machine")
        self._stage.note(
            "topology", f"orders go to '{WORK}', to '{LAKE}' and to '{TOPIC}', {len(PARTITIONS)} partitions"
        )

    async def _hire(self) -> None:
        for crew, names, module, more in (
            (self._workers, WORKERS, "worker", ()),
            (self._members, MEMBERS, "member", (self._plan.orders,)),
        ):
            for name in names:
                path = self._place / f"{name}.txt"
                words = (f"leveret.cli.demo.{module}", self._broker.url, name, path, *more)
                crew.processes[name] = await self._processes.start(name, *words)
                crew.readings[name] = Reading(path)
        await self._processes.until(self._everybody_is_there, "workers and members come", limit_s=_READY_S)
        self._stage.note(
            "consumers", f"{len(WORKERS)} workers, and {len(MEMBERS)} members of group '{GROUP}'"
        )

    async def _everybody_is_there(self) -> bool:
        queue = await self._broker.ask("queues", WORK)
        groups = await self._broker.ask("groups", GROUP)
        if not queue or not groups:
            return False
        return queue["consumers"] == len(WORKERS) and len(groups[0]["members"]) == len(MEMBERS)

    # it is published, worked on, killed

    async def _publish(self) -> Receipts:
        publishers = Publishers(self._broker.url, self._plan, self._strike)
        scene = self._stage.scene("publishers")
        try:
            async with asyncio.timeout(_PUBLISH_S), asyncio.TaskGroup() as group:
                watching = group.create_task(self._watch(scene, publishers.receipts))
                group.create_task(self._kill_a_worker(publishers))
                group.create_task(self._bring_back(publishers))
                await publishers.run()
                watching.cancel()
        except TimeoutError:
            raise SceneFailed(f"publishing took longer than {_PUBLISH_S:g} s") from None
        receipts = publishers.receipts
        scene.end(
            f"{receipts.confirmed:,} confirmed, {receipts.returned:,} returned, "
            f"{receipts.republished:,} sent again after the crash; {receipts.total / scene.elapsed_s:,.0f}/s"
        )
        return receipts

    async def _watch(self, scene: Scene, receipts: Receipts) -> None:
        while True:
            self._workers.look()
            self._processes.check()
            scene.tell(
                f"{receipts.total:,} of {self._plan.orders:,}, {receipts.total / scene.elapsed_s:,.0f}/s, "
                f"{receipts.republished:,} sent again; {self._workers.count(Deed.DONE):,} worked on",
                receipts.total / self._plan.orders,
            )
            await asyncio.sleep(_LOOK_S)

    async def _kill_a_worker(self, publishers: Publishers) -> None:
        """While it works."""
        reading = self._workers.readings[VICTIM]

        async def is_at_work() -> bool:
            reading.more()
            return reading.count(Deed.DONE) >= self._plan.orders // _VICTIM_SHARE

        await self._processes.until(is_at_work, f"{VICTIM} is at work", limit_s=_PUBLISH_S)
        self._workers.processes[VICTIM].kill()
        await self._workers.processes[VICTIM].process.wait()
        reading.more()
        done = reading.count(Deed.DONE)
        self._stage.note(VICTIM, f"killed with -9, having done {done:,} orders", KILLED)
        publishers.go_on.set()

    def _strike(self, receipts: Receipts) -> None:
        """Kills the broker, from within the receipt that makes it so many: the rest is still to be sent."""
        if (
            not self._crash.is_set()
            and receipts.confirmed >= self._plan.orders * CRASH
            and receipts.returned == UNROUTABLE
        ):
            self._broker.kill()
            self._crash.set()

    async def _bring_back(self, publishers: Publishers) -> None:
        await self._crash.wait()
        count = publishers.receipts.confirmed
        self._stage.note("broker", f"killed with -9 after {count:,} confirms", KILLED)
        took_s = await self._broker.come_back()
        self._stage.note("broker", f"back after {took_s:.1f} s, on the same directory")

    # it is brought to an end

    async def _finish_work(self) -> None:
        """Until each order is done, or a dead letter; then the workers go home."""
        scene = self._stage.scene("workers")
        plan = self._plan

        async def is_empty() -> bool:
            self._workers.look()
            done, failed = self._workers.count(Deed.DONE), self._workers.count(Deed.FAILED)
            scene.tell(f"{done:,} handled, {failed:,} failures", done / len(plan.valid))
            return done >= len(plan.valid) and await self._left_in(WORK) == 0

        await self._processes.until(is_empty, "the workers finish", limit_s=_WORK_S)
        for name, worker in self._workers.processes.items():
            if name != VICTIM:
                await worker.end()
        self._workers.look()
        dead = await self._left_in(DEAD)
        failed = self._workers.count(Deed.FAILED)
        scene.end(f"{self._workers.told(Deed.DONE)}; {failed:,} failures, {dead:,} dead letters")

    async def _finish_group(self) -> None:
        """Until one message is left, which somebody holds."""
        scene = self._stage.scene("group")

        async def is_through() -> bool:
            self._members.look()
            done = self._members.count(Deed.DONE)
            scene.tell(f"{done:,} handled", done / self._plan.routable)
            return done >= self._plan.routable - 1 and (await self._group())["lag"] <= 1

        await self._processes.until(is_through, "the group finishes", limit_s=_WORK_S)
        self._members.look()
        hangs = " or ".join(self._hanging())
        scene.end(f"{self._members.told(Deed.DONE)}; {hangs or 'nobody'} hangs on one message")

    async def _pipe(self) -> None:
        scene = self._stage.scene("pipeline")
        job = await self._pipeline.start(self._processes, self._broker.url)
        await self._wait_for(job, scene, self._pipeline.doing)
        scene.end(f"{self._pipeline.told()}; Spark has written a table of {self._pipeline.days()} days")

    async def _account(self) -> Any:
        scene = self._stage.scene("audit")
        job = await self._audit.start(self._processes, self._broker.url, self._pipeline.table)
        await self._wait_for(job, scene, self._audit.doing, codes=(0, 1))
        try:
            findings = self._audit.findings()
        except FileNotFoundError:
            raise SceneFailed(f"the audit came to nothing{job.last_words()}") from None
        fates = sum(account.published for account in findings.queues)
        scene.end(f"{fates:,} fates of messages, in {scene.elapsed_s:.1f} s")
        return findings

    async def _wait_for(
        self, job: Started, scene: Scene, doing: Callable[[], str], codes: tuple[int, ...] = (0,)
    ) -> None:
        waiting = asyncio.create_task(jobs.ended(job, codes=codes))
        stop_s = time.monotonic() + _SPARK_S
        try:
            while not waiting.done():
                if time.monotonic() > stop_s:
                    raise SceneFailed(f"the {job.name} took longer than {_SPARK_S:g} s{job.last_words()}")
                scene.step(doing())
                await asyncio.wait((waiting,), timeout=_LOOK_S)
            waiting.result()
        finally:
            waiting.cancel()
            with suppress(asyncio.CancelledError, SceneFailed):
                await waiting

    # it is looked at

    async def _look_at_work(self) -> Worked:
        dead = await dead_letters.read(self._broker.url, DEAD, dead_letters.of_death)
        return Worked(
            Tally.of(self._plan.valid, self._workers.numbers(Deed.DONE)),
            by_reason({dead_letters.REJECTED: self._plan.poisonous}, dead),
            await self._left_in(WORK),
        )

    async def _look_at_group(self) -> Grouped:
        group = await self._group()
        topic = await self._broker.answer("topics", TOPIC)
        stuck = [part["stuck"] for part in group["partitions"] if part["stuck"]]
        expected = (self._plan.valid | self._plan.poisonous) - {self._plan.hangs}
        return Grouped(
            done=Tally.of(expected, self._members.numbers(Deed.DONE)),
            hangs=self._hanging(),
            stored=topic["messages"],
            lag=group["lag"],
            holders=tuple(each["member"] for each in stuck),
        )

    async def _look_at_table(self) -> Piped:
        rejected = await dead_letters.read(self._broker.url, REJECTS, dead_letters.of_pipeline)
        written = await asyncio.to_thread(self._pipeline.written)
        wanted = {jobs.NOT_JSON: self._plan.torn, jobs.UNPAID: self._plan.unpaid}
        return Piped(Tally.of(self._plan.valid, written), by_reason(wanted, rejected))

    def _hanging(self) -> tuple[str, ...]:
        return tuple(name for name, each in self._members.readings.items() if each.count(Deed.HANGS))

    async def _left_in(self, queue: str) -> int:
        """Messages, ready or in hand."""
        return int((await self._broker.answer("queues", queue))["messages"])

    async def _group(self) -> Any:
        return (await self._broker.answer("groups", GROUP))[0]
