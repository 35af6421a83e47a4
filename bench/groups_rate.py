"""`rate`: one member of a concurrent group beside one consumer of a durable queue.

The same windows, the same bodies, an ack for each message, on the same broker within seconds. The queue's
side is the `stream` run of `bench.generator`; the group's differs in what is declared and in the two headers
that its deliveries carry, which are encoded beforehand and compared byte for byte like everything else.
"""

from __future__ import annotations

import time
from dataclasses import replace

from bench import generator
from bench.cpu import Cpu
from bench.frames import Shape, make_load
from bench.generator import Run, Target, pump
from bench.groups_broker import GroupBroker, Measured, Runs, attempt, progress
from bench.peer import Arguments
from bench.streams import Consuming, Publishing

WARM_UP = 20_000
MOST = 400_000
SPAN = 1_000_000
STREAM = "stream"
RUN = Run("stream", messages=WARM_UP)


def measure(broker: GroupBroker, *, rounds: int, seconds: float) -> Runs:
    contenders = {"queue": of_queue, "group": of_group}
    lengths = {}
    for name, run in contenders.items():
        rate = run(broker, RUN)["rate"]
        lengths[name] = max(WARM_UP, min(MOST, int(rate * seconds)))
    runs: Runs = {name: [] for name in contenders}
    for number in range(rounds):
        for name, run in contenders.items():
            chosen = replace(RUN, messages=lengths[name])
            found = attempt(lambda run=run, chosen=chosen: run(broker, chosen))  # type: ignore[misc]
            runs[name].append(found)
            shown = found.get("error") or f"{found['rate']:,.0f}/s, broker {found['broker_cpu_us']:.2f} µs"
            progress(f"rate, round {number + 1}, {name}: {shown}")
    return runs


def of_queue(broker: GroupBroker, run: Run) -> Measured:
    return dict(generator.measure(Target(broker.host, broker.port, broker.pid), run))


def of_group(broker: GroupBroker, run: Run) -> Measured:
    load = make_load(Shape(keys=(STREAM,)), run.messages, stream=STREAM)
    operator, publisher, member = (broker.connect() for _ in range(3))
    operator.declare_queue(STREAM, {"x-queue-type": "stream"})
    publisher.confirm_select()
    group: Arguments = {"x-group": "rate", "x-group-mode": "concurrent", "x-group-max-span": SPAN}
    member.consume(STREAM, prefetch=run.prefetch, arguments=group)
    publishing = Publishing(publisher.socket, load)
    consuming = Consuming(member.socket, load, auto_ack=False)
    cpu = Cpu(broker.pid)
    began = time.perf_counter()
    pump(run, publishing, consuming)
    seconds = time.perf_counter() - began
    member.close_channel()
    spent = cpu.spent()
    broker.check_done("rate")
    publisher.close()
    member.close()
    operator.delete_queue(STREAM)
    operator.close()
    found = {"seconds": seconds, "rate": run.messages / seconds, **spent.per_message(run.messages)}
    return {"messages": run.messages, **{name: round(value, 3) for name, value in found.items()}}
