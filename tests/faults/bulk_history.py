"""A query and a writer of batches over a broker that fails and falls, and what must be true of the three.

`BulkHistory` drives a broker without sockets over a simulated disk, with the requests that the Flight
endpoint passes on. The query is Spark's way of going on: it notes a batch before it works on it, works on
what its lease names, commits, and acks with the next request; its own notes survive everything. The writer
stages rows for two queues and commits them. The rules that `check` holds the broker to: a lease that was
answered names the same messages until it is settled; a message is in a table, in a lease or in the queue,
and once; what was confirmed is somewhere; rows of a batch are visible all together, or not at all, and once.
When leases expire, their messages are anybody's; only what a consumer has taken of them may be in two places.
When the query is ended at the broker, what it had comes again to a new checkpoint, and never to the old one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final

from leveret.amqp.properties import encode
from leveret.broker.queries.lease_notes import LeaseNote
from leveret.broker.queues.queue import Queue
from leveret.flight import actions
from leveret.flight.tickets import StageDescriptor, unpack_ranges
from leveret.fronts.flight.answers import Answers
from leveret.storage.errors import WriteFailed
from leveret.storage.records import PERSISTENT, Message
from tests.faults.broker_life import BrokerLife

QUEUES = ("q", "r")
QUERY = "nightly"
WRITER = "writer"
NO_LIMITS: Final[Mapping[str, int]] = MappingProxyType({})


class BulkHistory(BrokerLife):
    """`publish`, `trigger`, `stage`, `crash` … in any order; `check` says whether all is well."""

    def __init__(self, seed: int, *, priorities: bool = False, limits: Mapping[str, int] = NO_LIMITS) -> None:
        super().__init__(seed)
        self.priorities = priorities
        self.limits = limits
        self.published = 0
        self.confirmed: set[bytes] = set()
        self.acked: set[bytes] = set()
        """Before anybody can say whether that is durable."""
        self.consumed: set[bytes] = set()
        self.table: Counter[bytes] = Counter()
        """What the query has committed."""
        self.committed = 0
        """The last lease of it."""
        self.noted: dict[int, list[bytes]] = {}
        """Batches that the query has begun with, by the lease, and what was in them."""
        self.shared: set[bytes] = set()
        """What a consumer has taken of expired leases, and what went back when the query was ended."""
        self.unsaid: set[bytes] = set()
        """What of it the query has committed: it comes again to one that was told, and began anew."""
        self.epoch = 0
        self.batch = 0
        self.rows: dict[int, list[bytes]] = {}
        """What the writer's batches consist of."""
        self.staged: list[str] = []
        """Stages of the present batch that are whole and durable: they can be committed at any time."""
        self.shown: set[int] = set()
        """Batches whose commit was answered."""
        self.answers: Answers
        self.open()

    # what clients do

    def publish(self, count: int) -> None:
        bodies = [b"m%d" % (self.published + n) for n in range(count)]
        self.published += count
        highest = 3 if self.priorities else 0
        messages = [
            Message(b"", b"q", b"", body, PERSISTENT, self.random.randint(0, highest)) for body in bodies
        ]
        with suppress(WriteFailed):
            self.queue("q").append(messages)
            self.broker.ledger.when_durable(lambda: self.confirmed.update(bodies))

    def consume(self, count: int) -> None:
        """A consumer beside the query: takes, returns some, acks the others, and that becomes durable."""
        if not self.sync():
            return
        queue = self.queue("q")
        expired = {body for bodies in self._expired().values() for body in bodies}
        for _ in range(count):
            ranges = queue.cursor.take(1)
            if self.random.random() < 0.3 and ranges:
                queue.cursor.give_back(ranges)
                continue
            for record in queue.log.read(ranges):
                queue.deliverer.ack(ranges)
                self.acked.add(record.body)
                self.shared |= {record.body} & expired
        if self.sync():
            self.consumed |= self.acked
            self.acked.clear()

    # the query

    def trigger(self) -> None:
        """Acks what is committed, asks for the next lease, and works on it; it may fall anywhere.

        What it has begun with it goes on with, and asks for nothing else before.
        """
        end = max(self.noted, default=0)
        if end <= self.committed:
            limit = self.random.choice([None, 1, 3, 50])
            leased = self.ask(actions.Lease("/", "q", QUERY, self.epoch, self.committed, limit))
            if not isinstance(leased, actions.Leased) or leased.end == self.committed:
                return
            end = leased.end
        bodies = self.plan(end)
        if bodies is None:
            return
        assert sorted(self.noted.setdefault(end, bodies)) == sorted(bodies), f"lease {end} has changed"
        assert not self.unsaid.intersection(bodies), "it is read twice, and nobody was told"
        if self.random.random() < 0.7:
            self.table.update(bodies)
            self.committed = end

    def plan(self, end: int) -> list[bytes] | None:
        planned = self.ask(actions.Plan("/", "q", QUERY, self.epoch, self.committed, end))
        if not isinstance(planned, actions.Planned):
            return None
        log = self.queue("q").log
        return [
            record.body for portion in planned.portions for record in log.read(unpack_ranges(portion.ranges))
        ]

    def lapse(self) -> None:
        """Nobody hears of the query for longer than its leases are kept."""
        self.now_us += 3600_000_000
        self.broker.tick()
        self.sync()

    def end(self) -> None:
        """Somebody ends the query at the broker."""
        had = self._held() | self._expired()
        self.shared.update(body for bodies in had.values() for body in bodies)
        self.unsaid.update(body for n, bodies in had.items() if n <= self.committed for body in bodies)
        self.ask(actions.Release("/", "q", QUERY))

    def hear_of_the_end(self) -> None:
        """It goes on with its checkpoint if all of it was acked, and with a new one otherwise."""
        opened = self.ask(actions.Open("/", "q", QUERY, 3600.0))
        if isinstance(opened, actions.Opened):
            self.epoch = opened.epoch
            if opened.settled > self.committed:
                old = actions.Lease("/", "q", QUERY, self.epoch, self.committed)
                assert self.answers.to("guest", old).kind == "forgotten"  # type: ignore[union-attr]
                self.noted = {n: bodies for n, bodies in self.noted.items() if n <= self.committed}
                self.committed = opened.settled
                self.unsaid.clear()

    def take_over(self) -> None:
        opened = self.ask(actions.Open("/", "q", QUERY, 3600.0))
        if isinstance(opened, actions.Opened):
            self.epoch = opened.epoch

    def begin_anew(self) -> None:
        """With a new checkpoint, because the batch that it has begun with can't be read again."""
        assert self.shared & set(self.noted.pop(max(self.noted)))
        opened = self.ask(actions.Open("/", "q", QUERY, 3600.0))
        if isinstance(opened, actions.Opened):
            self.epoch, self.committed = opened.epoch, opened.settled

    # the writer

    def stage(self) -> None:
        """Tasks of the present batch, one of which was tried twice; then it commits, or aborts, or waits."""
        rows = self.rows.setdefault(self.batch, [b"b%d.%d" % (self.batch, n) for n in range(6)])
        attempt = self.random.getrandbits(32)
        stages = []
        for task in range(2):
            for again in range(self.random.choice([1, 1, 2])):
                name = f"{task}.{again}.{attempt:x}"
                if self.write(name, rows[3 * task : 3 * task + 3]) is None:
                    return
            stages.append(name)
        if not self.sync():
            return
        self.staged = stages
        if self.random.random() < 0.2:
            self.staged = []
            self.ask(actions.Abort("/", WRITER, self.batch, []))
        elif self.random.random() < 0.6:
            self.commit()

    def write(self, stage: str, bodies: list[bytes]) -> actions.Done | None:
        descriptor = StageDescriptor("/", WRITER, self.batch, stage, 36_000_000.0)
        rows = [
            (b"", queue.encode(), encode({"delivery_mode": 2}, len(body)), body)
            for body in bodies
            for queue in QUEUES
        ]
        answer = self.answers.stage("guest", descriptor, rows)
        return answer if isinstance(answer, actions.Done) else None

    def commit(self) -> None:
        """Of what was staged, perhaps a crash ago."""
        if not self.staged:
            return
        answer = self.ask(actions.Commit("/", WRITER, self.batch, self.staged))
        if isinstance(answer, actions.Committed):
            self.staged = []
            self.shown.add(self.batch)
            self.confirmed.update(self.rows[self.batch])
            self.batch += 1

    # what the broker does

    def ask(self, request: actions.Request) -> actions.Answer | None:
        """The answer, if it was given: it is when what it says is durable."""
        answer = self.answers.to("guest", request)
        if isinstance(answer, actions.Refused):
            if answer.kind == "fenced":  # the answer to an `Open` was lost with the power
                self.take_over()
            elif answer.kind == "expired":
                self.begin_anew()
            elif answer.kind == "forgotten":
                self.hear_of_the_end()
            else:
                assert answer.code == 541, answer  # a full disk; nothing else is wrong here
            return None
        given: list[actions.Answer] = []
        self.broker.ledger.when_durable(lambda: given.append(answer))
        self.sync()
        return given[0] if given else None

    # what goes wrong

    def restart(self) -> None:
        self.heal()
        assert self.sync()
        self.broker.store.close()
        self.disk = self.disk.restart()
        self.open()

    def open(self) -> None:
        self.start()
        self.answers = Answers(self.broker)
        vhost = self.broker.vhosts["/"]
        if not vhost.queues:
            from leveret.broker.queues.arguments import declared_settings

            table: dict[str, Any] = {**self.limits, **({"x-max-priority": 3} if self.priorities else {})}
            declared = declared_settings(table, queue="q", vhost="/")
            for name in QUEUES:
                vhost.add_queue(
                    name, durable=True, auto_delete=False, owner=None, table=table, declared=declared
                )
        self.broker.end_turn()
        self.consumed |= self.acked - set(self._visible("q"))  # the others come again
        self.acked.clear()
        if self.epoch == 0:
            self.take_over()

    def queue(self, name: str) -> Queue:
        return self.broker.vhosts["/"].queues[name]

    # what must be true

    def check(self) -> None:
        held, expired = self._held(), self._expired()
        for number, bodies in self.noted.items():
            if number > self.committed and not self.shared.intersection(bodies):
                assert sorted((held | expired).get(number, [])) == sorted(bodies), (
                    f"lease {number} has changed"
                )
        leased = [body for number, bodies in held.items() if number > self.committed for body in bodies]
        settling = {
            body for number, bodies in (held | expired).items() if number <= self.committed for body in bodies
        }
        ready = [body for body in self._visible("q") if body not in settling]
        places = Counter(leased) + Counter(ready) + self.table + Counter(self.consumed)
        twice = {body for body, count in places.items() if count > 1} - self.shared
        assert not twice, f"in more than one place: {twice}"
        assert settling <= self.table.keys()
        there = places.keys() | settling | self.acked
        assert self.confirmed <= there, f"confirmed and gone: {self.confirmed - there}"
        self._check_batches(there)

    def _check_batches(self, of_q: set[bytes]) -> None:
        of_r = Counter(self._visible("r"))
        for batch, rows in self.rows.items():
            seen = [body for body in rows if of_r[body]]
            assert all(of_r[body] <= 1 for body in rows), f"batch {batch} is there twice"
            assert seen in ([], rows), f"a part of batch {batch} is visible"
            assert [body for body in rows if body in of_q] == seen, f"batch {batch} is visible in one queue"
            assert seen or batch not in self.shown, f"batch {batch} was committed"

    def _held(self) -> dict[int, list[bytes]]:
        leases = self.queue("q").leases
        if leases is None or QUERY not in leases.queries:
            return {}
        return self._read(leases.queries[QUERY].leases)

    def _expired(self) -> dict[int, list[bytes]]:
        leases = self.queue("q").leases
        return (
            {} if leases is None or QUERY not in leases.queries else self._read(leases.queries[QUERY].expired)
        )

    def _read(self, leases: dict[int, LeaseNote]) -> dict[int, list[bytes]]:
        log = self.queue("q").log
        return {number: [each.body for each in log.read(lease.ranges)] for number, lease in leases.items()}

    def _visible(self, name: str) -> list[bytes]:
        """What is ready, or with a consumer that will not be heard of again."""
        queue = self.queue(name)
        progress = queue.cursor.progress
        ranges = [*progress.ready_ranges()]
        return [record.body for record in queue.log.read(sorted(ranges))]
