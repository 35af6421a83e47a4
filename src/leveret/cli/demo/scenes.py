"""The steps of the demo, one after the other; each prints what it counts.

The sequence is fixed. Where two events must coincide (a kill, and work under way), one waits for the other,
so the demo is the same on fast and slow machines, with many orders and with few. Every wait is bounded.
`verdict` judges the results.
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
from leveret.cli.demo.display import KILLED, Display, ProgressLine
from leveret.cli.demo.orders import CRASH_SHARE, UNROUTABLE, Plan
from leveret.cli.demo.processes import DemoFailed, DemoProcess, Processes
from leveret.cli.demo.publishers import Publishers, Receipts
from leveret.cli.demo.records import Action, ActionReader
from leveret.cli.demo.topology import DEAD, GROUP, LAKE, PARTITIONS, REJECTS, TOPIC, WORK, topology
from leveret.cli.demo.verdict import GroupResult, Observations, PipelineResult, QueueResult, Tally, by_reason
from leveret.client import Connection

WORKERS: Final = ("worker-1", "worker-2", "worker-3")
VICTIM: Final = WORKERS[1]
MEMBERS: Final = ("member-1", "member-2")
_READY_S: Final = 60.0
_PUBLISH_S: Final = 300.0
_WORK_S: Final = 300.0
_SPARK_S: Final = 300.0
_POLL_S: Final = 0.2
_VICTIM_DIVISOR: Final = 100
"""The worker is killed when it has done one order in 100 of all."""


@dataclass(slots=True)
class Consumers:
    """The workers or the members, and what they have recorded."""

    processes: dict[str, DemoProcess] = field(default_factory=dict)
    records: dict[str, ActionReader] = field(default_factory=dict)

    def update(self) -> None:
        for record in self.records.values():
            record.update()

    def count(self, action: Action) -> int:
        """Return how often the action was recorded, repetitions included."""
        return sum(record.count(action) for record in self.records.values())

    def summary(self, action: Action) -> str:
        orders = self.numbers(action)
        return f"{len(orders):,} {action}, {orders.total() - len(orders):,} of them again after a kill"

    def numbers(self, action: Action) -> Counter[int]:
        orders: Counter[int] = Counter()
        for record in self.records.values():
            orders.update(record.numbers[action])
        return orders


class Scenario:
    """One run: `observations = await Scenario(plan, directory, display, processes).run(with_spark=True)`."""

    def __init__(self, plan: Plan, directory: Path, display: Display, processes: Processes) -> None:
        self._plan = plan
        self._directory = directory
        self._display = display
        self._processes = processes
        self._broker = Broker(processes, directory / "data")
        self._workers = Consumers()
        self._members = Consumers()
        self._crashed: asyncio.Event = asyncio.Event()
        self._pipeline = jobs.Pipeline(directory)
        self._audit = jobs.Audit(directory)

    @property
    def report(self) -> Path:
        return self._audit.report

    async def run(self, *, with_spark: bool) -> Observations:
        await self._start_broker()
        await self._start_consumers()
        receipts = await self._publish()
        async with asyncio.TaskGroup() as group:
            if with_spark:
                group.create_task(self._run_pipeline())
            group.create_task(self._finish_work())
            group.create_task(self._finish_group())
        findings = await self._run_audit() if with_spark else None
        return Observations(
            orders=self._plan.orders,
            receipts=receipts,
            work=await self._inspect_work(),
            group=await self._inspect_group(),
            waiting=await self._message_count(LAKE),
            pipeline=await self._inspect_table() if with_spark else None,
            findings=findings,
        )

    async def _start_broker(self) -> None:
        took_s = await self._broker.start()
        async with Connection(self._broker.url, name="demo", topology=topology()):
            pass
        self._display.note("broker", f"ready after {took_s:.1f} s on port {self._broker.port}")
        self._display.note(
            "topology", f"orders go to '{WORK}', '{LAKE}' and the {len(PARTITIONS)} partitions of '{TOPIC}'"
        )

    async def _start_consumers(self) -> None:
        for consumers, names, module, arguments in (
            (self._workers, WORKERS, "worker", ()),
            (self._members, MEMBERS, "member", (self._plan.orders,)),
        ):
            for name in names:
                path = self._directory / f"{name}.txt"
                command = (f"leveret.cli.demo.{module}", self._broker.url, name, path, *arguments)
                consumers.processes[name] = await self._processes.start(name, *command)
                consumers.records[name] = ActionReader(path)
        await self._processes.wait_until(
            self._all_consumers_are_connected, "workers and members connect", limit_s=_READY_S
        )
        self._display.note(
            "consumers", f"{len(WORKERS)} workers, and {len(MEMBERS)} members of group '{GROUP}'"
        )

    async def _all_consumers_are_connected(self) -> bool:
        queue = await self._broker.try_get("queues", WORK)
        groups = await self._broker.try_get("groups", GROUP)
        if not queue or not groups:
            return False
        return queue["consumers"] == len(WORKERS) and len(groups[0]["members"]) == len(MEMBERS)

    async def _publish(self) -> Receipts:
        publishers = Publishers(self._broker.url, self._plan, self._kill_broker_at_share)
        line = self._display.progress_line("publishers")
        try:
            async with asyncio.timeout(_PUBLISH_S), asyncio.TaskGroup() as group:
                showing = group.create_task(self._show_publishing(line, publishers.receipts))
                group.create_task(self._kill_a_worker(publishers))
                group.create_task(self._restart_broker(publishers))
                await publishers.run()
                showing.cancel()
        except TimeoutError:
            raise DemoFailed(f"publishing took longer than {_PUBLISH_S:g} s") from None
        receipts = publishers.receipts
        line.end(
            f"{receipts.confirmed:,} confirmed, {receipts.returned:,} returned, "
            f"{receipts.republished:,} sent again after the crash; {receipts.total / line.elapsed_s:,.0f}/s"
        )
        return receipts

    async def _show_publishing(self, line: ProgressLine, receipts: Receipts) -> None:
        while True:
            self._workers.update()
            self._processes.check()
            line.tell(
                f"{receipts.total:,} of {self._plan.orders:,}, {receipts.total / line.elapsed_s:,.0f}/s, "
                f"{receipts.republished:,} sent again; {self._workers.count(Action.DONE):,} done by workers",
                receipts.total / self._plan.orders,
            )
            await asyncio.sleep(_POLL_S)

    async def _kill_a_worker(self, publishers: Publishers) -> None:
        """Kill one worker while it works, then let the publishers continue."""
        record = self._workers.records[VICTIM]

        async def is_at_work() -> bool:
            record.update()
            return record.count(Action.DONE) >= self._plan.orders // _VICTIM_DIVISOR

        await self._processes.wait_until(is_at_work, f"{VICTIM} does its first orders", limit_s=_PUBLISH_S)
        self._workers.processes[VICTIM].kill()
        await self._workers.processes[VICTIM].process.wait()
        record.update()
        done = record.count(Action.DONE)
        self._display.note(VICTIM, f"killed with -9 after {done:,} orders", KILLED)
        publishers.gate.set()

    def _kill_broker_at_share(self, receipts: Receipts) -> None:
        """Kill the broker from the callback of a receipt, so that the other orders are still unsent."""
        if (
            not self._crashed.is_set()
            and receipts.confirmed >= self._plan.orders * CRASH_SHARE
            and receipts.returned == UNROUTABLE
        ):
            self._broker.kill()
            self._crashed.set()

    async def _restart_broker(self, publishers: Publishers) -> None:
        await self._crashed.wait()
        count = publishers.receipts.confirmed
        self._display.note("broker", f"killed with -9 after {count:,} confirms", KILLED)
        took_s = await self._broker.restart()
        self._display.note("broker", f"restarted in {took_s:.1f} s with its data directory")

    async def _finish_work(self) -> None:
        """Wait until each order is done or dead-lettered; then end the workers."""
        line = self._display.progress_line("workers")
        plan = self._plan

        async def is_empty() -> bool:
            self._workers.update()
            done, failed = self._workers.count(Action.DONE), self._workers.count(Action.FAILED)
            line.tell(f"{done:,} handled, {failed:,} failures", done / len(plan.valid))
            return done >= len(plan.valid) and await self._message_count(WORK) == 0

        await self._processes.wait_until(is_empty, "the workers finish", limit_s=_WORK_S)
        for name, worker in self._workers.processes.items():
            if name != VICTIM:
                await worker.end()
        self._workers.update()
        dead = await self._message_count(DEAD)
        failed = self._workers.count(Action.FAILED)
        line.end(f"{self._workers.summary(Action.DONE)}; {failed:,} failures, {dead:,} dead letters")

    async def _finish_group(self) -> None:
        """Wait until only the message is left that a member holds."""
        line = self._display.progress_line("group")

        async def is_done() -> bool:
            self._members.update()
            done = self._members.count(Action.DONE)
            line.tell(f"{done:,} handled", done / self._plan.routable)
            return done >= self._plan.routable - 1 and (await self._group_state())["lag"] <= 1

        await self._processes.wait_until(is_done, "the group finishes", limit_s=_WORK_S)
        self._members.update()
        hangs = " or ".join(self._hanging_members())
        line.end(f"{self._members.summary(Action.DONE)}; {hangs or 'nobody'} hangs on one message")

    async def _run_pipeline(self) -> None:
        line = self._display.progress_line("pipeline")
        job = await self._pipeline.start(self._processes, self._broker.url)
        await self._wait_for(job, line, self._pipeline.doing)
        line.end(f"{self._pipeline.summary()}; table with {self._pipeline.day_count()} days")

    async def _run_audit(self) -> Any:
        line = self._display.progress_line("audit")
        job = await self._audit.start(self._processes, self._broker.url, self._pipeline.table)
        await self._wait_for(job, line, self._audit.doing, codes=(0, 1))
        try:
            findings = self._audit.findings()
        except FileNotFoundError:
            raise DemoFailed(f"the audit has no findings{job.log_tail()}") from None
        copies = sum(account.published for account in findings.queues)
        line.end(f"accounted for {copies:,} messages in all queues, in {line.elapsed_s:.1f} s")
        return findings

    async def _wait_for(
        self, job: DemoProcess, line: ProgressLine, doing: Callable[[], str], codes: tuple[int, ...] = (0,)
    ) -> None:
        waiting = asyncio.create_task(jobs.wait_for_end(job, exit_codes=codes))
        stop_s = time.monotonic() + _SPARK_S
        try:
            while not waiting.done():
                if time.monotonic() > stop_s:
                    raise DemoFailed(f"the {job.name} took longer than {_SPARK_S:g} s{job.log_tail()}")
                line.step(doing())
                await asyncio.wait((waiting,), timeout=_POLL_S)
            waiting.result()
        finally:
            waiting.cancel()
            with suppress(asyncio.CancelledError, DemoFailed):
                await waiting

    async def _inspect_work(self) -> QueueResult:
        dead = await dead_letters.read(self._broker.url, DEAD, dead_letters.dead_letter_reason)
        return QueueResult(
            Tally.of(self._plan.valid, self._workers.numbers(Action.DONE)),
            by_reason({dead_letters.REJECTED: self._plan.invalid}, dead),
            await self._message_count(WORK),
        )

    async def _inspect_group(self) -> GroupResult:
        group = await self._group_state()
        topic = await self._broker.get("topics", TOPIC)
        stuck = [part["stuck"] for part in group["partitions"] if part["stuck"]]
        expected = (self._plan.valid | self._plan.invalid) - {self._plan.hangs}
        return GroupResult(
            done=Tally.of(expected, self._members.numbers(Action.DONE)),
            hangs=self._hanging_members(),
            stored=topic["messages"],
            lag=group["lag"],
            holders=tuple(message["member"] for message in stuck),
        )

    async def _inspect_table(self) -> PipelineResult:
        rejected = await dead_letters.read(self._broker.url, REJECTS, dead_letters.reject_reason)
        order_counts = await asyncio.to_thread(self._pipeline.order_counts)
        expected = {jobs.NOT_JSON: self._plan.malformed, jobs.BELOW_ZERO: self._plan.negative}
        return PipelineResult(Tally.of(self._plan.valid, order_counts), by_reason(expected, rejected))

    def _hanging_members(self) -> tuple[str, ...]:
        return tuple(name for name, record in self._members.records.items() if record.count(Action.HANGS))

    async def _message_count(self, queue: str) -> int:
        """Return the number of messages in the queue, ready or unacked."""
        return int((await self._broker.get("queues", queue))["messages"])

    async def _group_state(self) -> Any:
        return (await self._broker.get("groups", GROUP))[0]
