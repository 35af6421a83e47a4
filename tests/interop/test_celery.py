"""Celery workers as real processes with `acks_late`: a task is acknowledged when it is done, not before.

Owns what a Celery installation relies on: results, retries, countdowns, priorities, routing, remote
control, and that a task whose worker is killed or cut off runs again. Workers are killed by their pid.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from celery import Celery, chain, group

from tests.interop.celery_app import make_app
from tests.interop.wire import WAIT_S, Proxy

ROOT = Path(__file__).parents[2]
QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat")
START_S = 30  # a worker imports for a second or two, longer on a busy machine


class Arrival(NamedTuple):
    """A held task that has reported: `release` lets it go on."""

    label: str
    pid: int
    redelivered: bool
    connection: socket.socket

    def release(self) -> None:
        with contextlib.suppress(OSError), self.connection:
            self.connection.sendall(b"!")


class Gate:
    """Where held tasks report, in the order in which they run."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(WAIT_S)
        self.port = self._listener.getsockname()[1]
        self.waiting: list[Arrival] = []

    def next(self) -> Arrival:
        connection, _ = self._listener.accept()
        with connection.makefile() as lines:
            label, pid, redelivered = lines.readline().split()
        self.waiting.append(Arrival(label, int(pid), redelivered == "True", connection))
        return self.waiting[-1]

    def close(self) -> None:
        self._listener.close()
        for arrival in self.waiting:
            arrival.release()


class Worker:
    """One `celery worker` process that listens to the queues of `make_app(url, queue)`."""

    def __init__(self, url: str, queue: str, *options: str) -> None:
        self.queue, self.name = queue, f"{queue}@worker"
        environment = {**os.environ, "INTEROP_BROKER_URL": url, "INTEROP_QUEUE": queue, "C_FORCE_ROOT": "1"}
        command = [sys.executable, "-m", "celery", "-A", "tests.interop.celery_app", "worker"]
        self.process = subprocess.Popen(
            [*command, "--concurrency=1", "--loglevel=INFO", f"--hostname={self.name}", *options],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.log: list[str] = []
        self._logged = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._logged:
                self.log.append(line)
                self._logged.notify_all()

    def wait_for(self, text: str) -> bool:
        """Whether it logs this in time."""
        with self._logged:
            return self._logged.wait_for(lambda: any(text in line for line in self.log), START_S)

    def end(self) -> None:
        """Kills it and the children of its pool: it leads its own group of processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


def new_queue() -> str:
    return f"celery.{uuid.uuid4().hex[:8]}"


@contextlib.contextmanager
def running(url: str, queue: str, *options: str) -> Iterator[Worker]:
    worker = Worker(url, queue, *options)
    try:
        assert worker.wait_for("ready."), "".join(worker.log)
        yield worker
    finally:
        worker.end()


@contextlib.contextmanager
def sending(url: str, queue: str) -> Iterator[Celery]:
    app = make_app(url, queue)
    try:
        yield app
    finally:
        app.close()


@pytest.fixture(scope="module")
def wire(amqp_url: str) -> Iterator[Proxy]:
    with Proxy(amqp_url) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def worker(wire: Proxy) -> Iterator[Worker]:
    """The one that most tests share: all of Celery's defaults but a pool of one, behind a wire."""
    with running(wire.url, new_queue()) as started:
        yield started


@pytest.fixture
def app(amqp_url: str, worker: Worker) -> Iterator[Celery]:
    with sending(amqp_url, worker.queue) as opened:
        yield opened


@pytest.fixture
def gate() -> Iterator[Gate]:
    opened = Gate()
    try:
        yield opened
    finally:
        opened.close()


def purged(app: Celery, queue: str) -> int:
    """How many messages were still there. None is left, so that a test can't ask twice."""
    with app.connection_for_read() as connection:
        return connection.default_channel.queue_purge(queue)


def test_results_come_back_through_the_reply_queue(app: Celery) -> None:
    add = app.signature
    assert add("interop.add", (2, 3)).delay().get(timeout=WAIT_S) == 5
    many = group(add("interop.add", (n, n)) for n in range(20)).apply_async()
    assert many.get(timeout=WAIT_S) == [2 * n for n in range(20)]
    chained = chain(add("interop.add", (1, 2)), add("interop.add", (3,)), add("interop.add", (4,)))
    assert chained.apply_async().get(timeout=WAIT_S) == 10


def test_a_failed_task_tells_why_and_is_not_run_again(app: Celery, worker: Worker) -> None:
    with pytest.raises(ValueError, match="no reason"):
        app.signature("interop.fail", ("no reason",)).delay().get(timeout=WAIT_S)
    assert app.signature("interop.add", (1, 1)).delay().get(timeout=WAIT_S) == 2
    assert purged(app, worker.queue) == 0


def test_a_task_is_retried_after_its_countdown(app: Celery) -> None:
    assert app.signature("interop.flaky", (3,)).delay().get(timeout=WAIT_S) == {"retries": 3}


def test_a_topic_exchange_routes_tasks_by_their_key(app: Celery, worker: Worker) -> None:
    task = app.signature("interop.add", (1, 2))
    result = task.apply_async(exchange=f"{worker.queue}.topic", routing_key="report.daily.berlin")
    assert result.get(timeout=WAIT_S) == 3


def test_urgent_tasks_overtake_those_that_wait(app: Celery, worker: Worker, gate: Gate) -> None:
    def send(label: str, priority: int) -> None:
        task = app.signature("interop.held", (gate.port, label))
        task.apply_async(queue=f"{worker.queue}.priority", priority=priority)

    send("first", 0)
    first = gate.next()  # the worker is busy with it and has room for no other
    for label, priority in [("low", 1), ("high", 9), ("middle", 5), ("high-too", 9)]:
        send(label, priority)
    first.release()
    order = []
    for _ in range(4):
        arrived = gate.next()
        order.append(arrived.label)
        arrived.release()
    assert order == ["high", "high-too", "middle", "low"]


def test_a_worker_answers_what_is_broadcast_to_all(app: Celery, worker: Worker) -> None:
    assert {worker.name: {"ok": "pong"}} in app.control.ping(timeout=WAIT_S, limit=1)
    stats = app.control.inspect([worker.name], timeout=WAIT_S, limit=1).stats()
    assert stats[worker.name]["pid"] == worker.process.pid


def test_a_task_in_the_middle_of_a_killed_worker_runs_again_in_the_next_one(
    amqp_url: str, worker: Worker, gate: Gate
) -> None:
    name = new_queue()
    asked = {"destination": [worker.name], "reply": True, "timeout": WAIT_S, "limit": 1}
    with sending(amqp_url, name) as app:
        with running(amqp_url, name, "--pool=solo", *QUIET) as doomed:
            result = app.signature("interop.held", (gate.port, "task")).delay()
            waiting = app.signature("interop.add", (1, 2)).delay()
            first = gate.next()
            assert (first.pid, first.redelivered) == (doomed.process.pid, False)
            os.kill(doomed.process.pid, signal.SIGKILL)
        added = app.control.add_consumer(name, **asked)
        assert added == [{worker.name: {"ok": f"add consumer {name}"}}]
        second = gate.next()
        assert second.redelivered
        second.release()
        assert (result.get(timeout=WAIT_S), waiting.get(timeout=WAIT_S)) == ("task", 3)
        app.control.cancel_consumer(name, **asked)
        assert purged(app, name) == 0


def test_a_worker_that_is_asked_to_stop_finishes_its_task_and_leaves_the_rest(
    amqp_url: str, gate: Gate
) -> None:
    name = new_queue()
    with sending(amqp_url, name) as app, running(amqp_url, name, *QUIET) as stopped:
        result = app.signature("interop.held", (gate.port, "task")).delay()
        held = gate.next()
        for _ in range(3):
            app.signature("interop.add", (1, 2)).delay()
        os.kill(stopped.process.pid, signal.SIGTERM)
        assert stopped.wait_for("Warm shutdown")
        held.release()
        assert result.get(timeout=WAIT_S) == "task"
        assert stopped.process.wait(WAIT_S) == 0
        assert purged(app, name) == 3


def test_a_task_whose_process_is_killed_is_rejected_and_runs_again(app: Celery, gate: Gate) -> None:
    result = app.signature("interop.held", (gate.port, "task")).delay()
    first = gate.next()
    os.kill(first.pid, signal.SIGKILL)  # a child of the pool: its worker lives
    second = gate.next()
    assert (first.redelivered, second.redelivered) == (False, True)
    assert second.pid != first.pid
    second.release()
    assert result.get(timeout=WAIT_S) == "task"


def test_a_worker_that_is_cut_off_reconnects_and_its_task_is_delivered_again(
    app: Celery, wire: Proxy, gate: Gate
) -> None:
    result = app.signature("interop.held", (gate.port, "task")).delay()
    first = gate.next()
    connections = wire.connections
    wire.cut()
    assert wire.wait_for_connections(connections + 1)
    first.release()
    second = gate.next()
    assert (first.redelivered, second.redelivered) == (False, True)
    second.release()
    assert result.get(timeout=WAIT_S) == "task"
    assert app.signature("interop.add", (1, 2)).delay().get(timeout=WAIT_S) == 3


def test_a_task_that_waits_for_its_countdown_leaves_room_for_others(app: Celery) -> None:
    # It fills the prefetch of one, which Celery then widens. One such task is enough to show it: Celery
    # may sit for five seconds on each, on RabbitMQ too, when the wider prefetch is answered very fast.
    app.signature("interop.add", (0, 0)).apply_async(countdown=3600)
    assert app.signature("interop.add", (1, 2)).delay().get(timeout=WAIT_S) == 3
