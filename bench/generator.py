"""The load generator, one run per process: `python -m bench.generator '{"host": ..., "run": ...}'`.

It encodes the whole run, opens its connections, measures, checks that every message was confirmed and
delivered once and in order and that the queue is empty, and prints one JSON object. Rates run from the first
publish to the last confirm and the last ack sent. CPU times are of the broker's processes, of this process
and of everybody else on the machine, over the measured part; the first is the figure that a noisy machine
disturbs least.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import sys
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.cpu import Cpu
from bench.frames import SETTLEMENT, Load, Shape, make_load, method
from bench.peer import Client, Unexpected
from bench.streams import Consuming, Publishing, Stall

STALL_S = 30.0
Figures = dict[str, float]
COMMIT, COMMIT_OK = method(90, 20), method(90, 21)
SO_TIMESTAMPNS = 35
"""Linux tells when a packet came in, on `CLOCK_REALTIME`; Python's `socket` has no name for it."""
TIMESPEC = struct.Struct("@qq")
Latencies = dict[str, "array[float]"]
"""In seconds, by name."""
Play = Callable[[list[Client], list[bytes], list[tuple[bytes, bytes]]], Latencies]


@dataclass(frozen=True)
class Run:
    """One measured run: what kind of traffic, and how much of it."""

    kind: str
    """stream, apart, one_at_a_time, stamped, transactions or paced."""
    messages: int
    shape: Shape = field(default_factory=Shape)
    confirms: bool = True
    auto_ack: bool = False
    window: int = 10_000
    """Publishes without a confirm."""
    backlog: int = 50_000
    """Publishes that were not delivered yet: keeps a run in a steady state."""
    prefetch: int = 2_000
    connections: int = 20
    rate: int = 1_000
    """Messages a second of a paced run."""
    arguments: dict[str, str | int | bool] = field(default_factory=dict)
    """Of the queue."""

    @property
    def messages_each(self) -> int:
        """Of one publishing connection."""
        single = self.kind in ("stream", "apart", "paced")
        return self.messages if single else self.messages // self.connections

    @classmethod
    def from_json(cls, data: dict[str, object]) -> Run:
        shape = dict(data.pop("shape"))  # type: ignore[call-overload]
        shape["keys"] = tuple(shape["keys"])
        return cls(shape=Shape(**shape), **data)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Target:
    """Where the broker listens and which processes it is made of."""

    host: str
    port: int
    pid: int
    queue: str = "queue"

    def connect(self) -> Client:
        return Client(self.host, self.port)


def stream(target: Target, run: Run, load: Load) -> Figures:
    """One connection publishes, one consumes, both as fast as the broker lets them."""
    publisher, consumer = target.connect(), target.connect()
    if run.confirms:
        publisher.confirm_select()
    consumer.consume(target.queue, prefetch=run.prefetch, auto_ack=run.auto_ack)
    publishing = Publishing(publisher.socket, load)
    consuming = Consuming(consumer.socket, load, auto_ack=run.auto_ack)
    cpu = Cpu(target.pid)
    began = time.perf_counter()
    pump(run, publishing, consuming)
    seconds = time.perf_counter() - began
    finish(consumer, target)
    measured = cpu.spent()
    publisher.close()
    consumer.close()
    return {"seconds": seconds, "rate": run.messages / seconds, **measured.per_message(run.messages)}


def apart(target: Target, run: Run, load: Load) -> Figures:
    """Publisher and consumer in processes of their own; only confirms hold the publisher back.

    `behind` is the time of the last ack divided by that of the last confirm: 1 when consumers keep up.
    """
    publisher, consumer = target.connect(), target.connect()
    publisher.confirm_select()
    consumer.consume(target.queue, prefetch=run.prefetch, auto_ack=run.auto_ack)
    cpu = Cpu(target.pid)
    began = time.perf_counter()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            pump(run, None, Consuming(consumer.socket, load, auto_ack=run.auto_ack))
            os.write(writing, struct.pack("d", time.perf_counter()))
        finally:
            os._exit(0)
    os.close(writing)
    pump(run, Publishing(publisher.socket, load), None)
    confirmed_s = time.perf_counter() - began
    ended = os.read(reading, 8)
    os.waitpid(child, 0)
    if not ended:
        raise Unexpected("the consumer gave up")
    acked_s = struct.unpack("d", ended)[0] - began
    consumer.socket.setblocking(True)
    finish(consumer, target)
    measured = cpu.spent()
    publisher.socket.setblocking(True)
    publisher.close()
    consumer.close()
    rates = {"rate": run.messages / acked_s, "confirm_rate": run.messages / confirmed_s}
    return {**rates, "behind": acked_s / confirmed_s, **measured.per_message(run.messages)}


def pump(run: Run, publishing: Publishing | None, consuming: Consuming | None) -> None:
    """Runs until everything is confirmed and acked; sends whenever the windows and the socket have room."""
    ends = {end.socket.fileno(): end for end in (publishing, consuming) if end is not None}
    interest = dict.fromkeys(ends, select.EPOLLIN)
    with select.epoll() as poll:
        for number, end in ends.items():
            end.socket.setblocking(False)
            poll.register(number, select.EPOLLIN)
        while not is_done(run, publishing, consuming):
            if publishing is not None:
                publishing.allow(room(run, publishing, consuming))
            for number, end in ends.items():
                wanted = select.EPOLLIN | (select.EPOLLOUT if end.wants_to_send else 0)
                if wanted != interest[number]:
                    interest[number] = wanted
                    poll.modify(number, wanted)
            events = poll.poll(STALL_S)
            if not events:
                confirmed = publishing.confirms.count if publishing is not None else 0
                delivered = consuming.delivered if consuming is not None else 0
                raise Stall(f"{confirmed} confirmed, {delivered} delivered")
            for number, event in events:
                if event & ~select.EPOLLOUT:
                    ends[number].receive()
                if ends[number].wants_to_send:
                    ends[number].send()


def is_done(run: Run, publishing: Publishing | None, consuming: Consuming | None) -> bool:
    if consuming is not None and consuming.acked < run.messages:
        return False
    return publishing is None or not run.confirms or publishing.confirms.count >= run.messages


def room(run: Run, publishing: Publishing, consuming: Consuming | None) -> int:
    """How many messages may have been published by now."""
    limits = [run.messages]
    if consuming is not None:
        limits.append(consuming.delivered + run.backlog)
    if run.confirms:
        limits.append(publishing.confirms.count + run.window)
    return min(limits)


def finish(consumer: Client, target: Target) -> None:
    """Waits until the broker has taken the acks in; nothing may be left in the queue then."""
    consumer.close_channel()
    left = consumer.depth(target.queue)
    if left:
        raise Unexpected(f"{left} messages came back to the queue")


def one_at_a_time(target: Target, run: Run, load: Load) -> Figures:
    """Every connection publishes one message, waits for its confirm, and goes on."""
    return lockstep(target, run, load, Client.confirm_select, confirm_of)


def stamped(target: Target, run: Run, load: Load) -> Figures:
    """The same with one connection, and how long until each confirm was at its socket.

    That is what the broker took; the rest is the publisher's own wait for a processor.
    """
    return lockstep(target, run, load, Client.confirm_select, confirm_of, play=stamped_rounds)


def transactions(target: Target, run: Run, load: Load) -> Figures:
    """Every connection publishes one message, commits, waits for the commit-ok, and goes on."""
    return lockstep(target, run, load, Client.tx_select, None)


def confirm_of(tag: int) -> tuple[bytes, bytes]:
    """The two frames that confirm one message: without and with the multiple flag."""
    one = SETTLEMENT.pack(1, 1, 13, 60, 80, tag, 0, 0xCE)
    return one, SETTLEMENT.pack(1, 1, 13, 60, 80, tag, 1, 0xCE)


def lockstep(
    target: Target,
    run: Run,
    load: Load,
    select_mode: Callable[[Client], None],
    answer: Callable[[int], tuple[bytes, bytes]] | None,
    play: Play | None = None,
) -> Figures:
    clients = [target.connect() for _ in range(run.connections)]
    for client in clients:
        select_mode(client)
    each = run.messages_each
    first = load.publish_ends[0]
    after = b"" if answer else COMMIT
    texts = [load.publishes[:first] + after] + [
        load.publishes[load.publish_ends[i - 1] : load.publish_ends[i]] + after for i in range(1, each)
    ]
    answers = [answer(tag) for tag in range(1, each + 1)] if answer else [(COMMIT_OK, COMMIT_OK)] * each
    cpu = Cpu(target.pid)
    began = time.perf_counter()
    latencies = (play or rounds)(clients, texts, answers)
    seconds = time.perf_counter() - began
    measured = cpu.spent()
    depth = clients[0].depth(target.queue)
    if depth != each * run.connections:
        raise Unexpected(f"{depth} messages in the queue, {each * run.connections} were confirmed")
    for client in clients:
        client.close()
    done = each * run.connections
    return {
        "seconds": seconds,
        "rate": done / seconds,
        **measured.per_message(done),
        **{mark: us for name, each in latencies.items() for mark, us in percentiles(name, each).items()},
    }


def rounds(clients: list[Client], texts: list[bytes], answers: list[tuple[bytes, bytes]]) -> Latencies:
    """The lockstep itself: send, wait for the answer, send the next."""
    sockets = {client.socket.fileno(): client.socket for client in clients}
    done = dict.fromkeys(sockets, 0)
    sent = {}
    latencies = array("d")
    clock = time.perf_counter
    left = len(texts) * len(clients)
    with select.epoll() as poll:
        for number, connection in sockets.items():
            poll.register(number, select.EPOLLIN)
            sent[number] = clock()
            connection.send(texts[0])
        while left:
            events = poll.poll(STALL_S)
            if not events:
                raise Stall(f"{left} messages are not confirmed yet")
            for number, _ in events:
                got = sockets[number].recv(4096)
                now = clock()
                at = done[number]
                if got not in answers[at]:
                    raise Unexpected(f"message {at} was answered by {got!r}")
                latencies.append(now - sent[number])
                left -= 1
                done[number] = at = at + 1
                if at < len(texts):
                    sent[number] = clock()
                    sockets[number].send(texts[at])
    return {"confirm": latencies}


def stamped_rounds(
    clients: list[Client], texts: list[bytes], answers: list[tuple[bytes, bytes]]
) -> Latencies:
    (connection,) = (client.socket for client in clients)
    connection.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    connection.settimeout(STALL_S)
    confirms, arrivals = array("d"), array("d")
    for at, text in enumerate(texts):
        sent_ns = time.time_ns()
        connection.send(text)
        got, notes, _, _ = connection.recvmsg(4096, socket.CMSG_SPACE(TIMESPEC.size))
        now_ns = time.time_ns()
        if got not in answers[at]:
            raise Unexpected(f"message {at} was answered by {got!r}")
        seconds, nanoseconds = TIMESPEC.unpack(notes[0][2])
        arrivals.append((seconds * 1_000_000_000 + nanoseconds - sent_ns) / 1e9)
        confirms.append((now_ns - sent_ns) / 1e9)
    return {"confirm": confirms, "arrival": arrivals}


def paced(target: Target, run: Run, load: Load) -> Figures:
    """A steady trickle from one connection to another: how long until a message is with its consumer?"""
    publisher, consumer = target.connect(), target.connect()
    publisher.confirm_select()
    consumer.consume(target.queue, prefetch=run.prefetch, auto_ack=run.auto_ack)
    publishing = Publishing(publisher.socket, load)
    consuming = Consuming(consumer.socket, load, auto_ack=run.auto_ack)
    for end in (publishing, consuming):
        end.socket.setblocking(False)
    cpu = Cpu(target.pid)
    sent, came, confirmed = trickle(run, publishing, consuming)
    finish(consumer, target)
    measured = cpu.spent()
    publisher.close()
    consumer.close()
    return {
        "rate": run.messages / (came[-1] - sent[0]),
        **measured.per_message(run.messages),
        **percentiles("confirm", array("d", (b - a for a, b in zip(sent, confirmed, strict=True)))),
        **percentiles("delivery", array("d", (b - a for a, b in zip(sent, came, strict=True)))),
    }


def trickle(run: Run, publishing: Publishing, consuming: Consuming) -> tuple[array[float], ...]:
    """Sends on schedule whether or not the broker keeps up; times of sending, delivery and confirm.

    `select.select` because `epoll` rounds its timeout up to milliseconds. The time of the i-th confirm
    is the time at which i messages were confirmed: with one publisher they come in order or nearly so.
    """
    sent, came, confirmed = array("d"), array("d"), array("d")
    sockets = [publishing.socket, consuming.socket]
    start = progress_at = time.perf_counter()
    while len(came) < run.messages or len(confirmed) < run.messages or consuming.acked < run.messages:
        now = time.perf_counter()
        due = min(run.messages, int((now - start) * run.rate) + 1)
        if due > len(sent):
            publishing.allow(due)
            sent.extend([now] * (due - len(sent)))
        if publishing.wants_to_send:
            publishing.send()
        pause = start + due / run.rate - time.perf_counter() if due < run.messages else STALL_S
        readable = select.select(sockets, [], [], max(0.0, pause))[0]
        now = time.perf_counter()
        if consuming.socket in readable:
            consuming.receive()
            consuming.send()
        if publishing.socket in readable:
            publishing.receive()
        came.extend([now] * (consuming.delivered - len(came)))
        confirmed.extend([now] * (publishing.confirms.count - len(confirmed)))
        if readable:
            progress_at = now
        elif now - progress_at > STALL_S:
            raise Stall(f"{len(confirmed)} confirmed, {len(came)} delivered")
    return sent, came, confirmed


def percentiles(name: str, values: array[float]) -> dict[str, float]:
    """In microseconds. The first tenth is not counted: the run warms up in it."""
    ordered = sorted(values[len(values) // 10 :])
    marks = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
    found = {f"{name}_{mark}_us": ordered[int(len(ordered) * part)] * 1e6 for mark, part in marks.items()}
    return {**found, f"{name}_max_us": ordered[-1] * 1e6}


KINDS: dict[str, Callable[[Target, Run, Load], Figures]] = {
    "stream": stream,
    "apart": apart,
    "one_at_a_time": one_at_a_time,
    "stamped": stamped,
    "transactions": transactions,
    "paced": paced,
}


def measure(target: Target, run: Run) -> Figures:
    """Declares what the run needs, runs it, and removes what it declared."""
    load = make_load(run.shape, run.messages_each)
    operator = target.connect()
    operator.declare_queue(target.queue, run.arguments)
    if run.shape.exchange:
        operator.declare_exchange(run.shape.exchange, target.queue, run.shape.keys)
    found = KINDS[run.kind](target, run, load)
    operator.delete_queue(target.queue)
    if run.shape.exchange:
        operator.delete_exchange(run.shape.exchange)
    operator.close()
    figures = {name: round(value, 3) for name, value in found.items()}
    return {"messages": run.messages, **figures}


def main() -> None:
    given = json.loads(sys.argv[1])
    run = Run.from_json(given.pop("run"))
    print(json.dumps(measure(Target(**given), run)))


if __name__ == "__main__":
    main()
