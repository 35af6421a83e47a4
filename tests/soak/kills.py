"""Who is killed, and one cell of the soak: so many kills of one victim at one phase of a query's batches.

A round: messages are published, the query runs into the gate, the victim dies, the gate opens, what has died
comes back, more is published, and when the queue is empty the account must be even. How a victim comes back
differs from round to round: before the query goes on, or while it already tries; and of a dead driver one
process may go on as if nothing had happened.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.soak.brokers import Broker, Leveret
from tests.soak.gated import LOGGED
from tests.soak.gates import Gates, wait_until
from tests.soak.network import Network
from tests.soak.pipeline import Pipeline
from tests.soak.processes import EXECUTOR, Driver, ancestors_of, command_of, kill

MESSAGES = 150
MORE_MESSAGES = 50
AWAY_S = 1.0
REASON_CHARACTERS = 300
LOCAL = "local[2,8]"
CLUSTER = "local-cluster[2,1,1024]"


class Scene:
    """A broker, a driver with queries over it, and perhaps a network between."""

    def __init__(
        self,
        broker: Broker,
        pipelines: list[Pipeline],
        *,
        master: str = LOCAL,
        network: Network | None = None,
    ) -> None:
        self.broker = broker
        self.pipelines = {pipeline.kind: pipeline for pipeline in pipelines}
        self.network = network
        (module,) = {each.module for each in pipelines}
        queries = [each.job() for each in pipelines]
        self._job: dict[str, Any] = {"module": module, "master": master, "queries": queries}
        self.driver = Driver(self._job)
        self._failures: list[str] = []

    def start_driver_again(self) -> None:
        self._failures += self.driver.failures
        self.driver = Driver(self._job)
        self.driver.wait_until_started()

    def failures(self) -> list[str]:
        """What queries have ended with so far."""
        return self._failures + self.driver.failures


Let = Callable[[], None]
"""Lets the query go on."""
Strike = Callable[[Scene, int | None, int, Let], None]
"""Kills the victim of a round, given the process at the gate and the round's number."""


def driver(scene: Scene, holder: int | None, number: int, go_on: Let) -> None:
    spared = holder if number % 2 and holder != scene.driver.pid else None
    scene.driver.kill(spared=spared)
    if spared is None:
        go_on()
    scene.start_driver_again()
    if spared is not None:
        go_on()
        wait_until(lambda: not command_of(spared), lambda: f"{command_of(spared)} ends: its driver is gone")


def executor(scene: Scene, holder: int | None, number: int, go_on: Let) -> None:
    """The one whose worker is at the gate, or one of the two."""
    busy = [pid for pid in ancestors_of(holder) if EXECUTOR in command_of(pid)] if holder else []
    found = busy or sorted(scene.driver.executors())
    assert found, "there is no executor"
    kill(found[number % len(found)])
    go_on()


def python_worker(scene: Scene, holder: int | None, number: int, go_on: Let) -> None:
    """The one at the gate; where that is the driver itself, all that work for it."""
    at_gate = holder is not None and holder != scene.driver.pid
    for pid in [holder] if at_gate and holder is not None else scene.driver.python_workers():
        kill(pid)
    go_on()


def broker(scene: Scene, holder: int | None, number: int, go_on: Let) -> None:
    scene.broker.kill()
    if number % 2:
        go_on()
        time.sleep(AWAY_S)  # so long the query meets nobody
    scene.broker.start()
    go_on()


def flight_process(scene: Scene, holder: int | None, number: int, go_on: Let) -> None:
    assert isinstance(scene.broker, Leveret)
    scene.broker.kill_flight()
    go_on()


def network(scene: Scene, holder: int | None, number: int, go_on: Let) -> None:
    assert scene.network is not None
    with scene.network.failing():
        if number % 2:
            go_on()
        time.sleep(AWAY_S)
    go_on()


VICTIMS: dict[str, Strike] = {
    "driver": driver,
    "executor": executor,
    "python-worker": python_worker,
    "broker": broker,
    "flight-process": flight_process,
    "network": network,
}


@contextmanager
def held_at(pipeline: Pipeline, phase: str, scene: Scene) -> Iterator[Callable[[], int | None]]:
    """Gives what waits for the phase, and returns the process that is at the gate, if it has one."""
    before = pipeline.commits()
    gates: Gates = pipeline.gates

    def reached() -> bool:
        assert scene.driver.runs, scene.driver.said
        return bool(pipeline.commits() - before) if phase == LOGGED else gates.holder(phase) is not None

    def wait() -> int | None:
        wait_until(reached, lambda: f"{phase}: {scene.driver.said}\n{scene.broker.errors}")
        return gates.holder(phase)

    if phase != LOGGED:
        gates.arm(phase)
    try:
        yield wait
    finally:
        gates.open(phase)


def play(scene: Scene, kind: str, *, victim: str, phase: str, rounds: int) -> None:
    """One cell. Says how it went on standard output."""
    pipeline = scene.pipelines[kind]
    scene.driver.wait_until_started()
    pipeline.wait_until_empty()
    failed, copies_before, began_s = len(scene.failures()), pipeline.copies, time.monotonic()
    for number in range(rounds):
        with held_at(pipeline, phase, scene) as wait:
            pipeline.publish(MESSAGES)
            holder = wait()
            VICTIMS[victim](scene, holder, number, lambda: pipeline.gates.open(phase))
        pipeline.publish(MORE_MESSAGES)
        try:
            pipeline.wait_until_empty()
        except AssertionError as error:
            said = f"{scene.driver.said}\n{scene.broker.errors}"
            raise AssertionError(f"round {number}, {victim} at {phase}: {error}\n{said}") from error
    took_s = (time.monotonic() - began_s) / rounds
    copies = (
        f" but for {pipeline.copies - copies_before} copies with their ids" if pipeline.tells_copies else ""
    )
    restarts = scene.failures()[failed:]
    print(
        f"\n{victim} killed at '{phase}' ({kind}): {rounds} rounds, nothing lost, nothing twice{copies}; "
        f"{took_s:.1f} s a round, {len(restarts)} restarts of queries",
        flush=True,
    )
    for reason, count in Counter(restarts).most_common():
        print(f"  {count} x {reason[:REASON_CHARACTERS]}", flush=True)
