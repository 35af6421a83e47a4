"""`leveret serve` as a process: killed in the middle of everything, stopped in order, refused where it must.

What was promised to clients (`broker_workers`) is looked for in a copy of the directory that the killed
process left, by a broker in this process: the next life of the one that is killed finds the original.
"""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from random import Random

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from xxhash import xxh3_64_intdigest

from leveret.storage.formats import HEADER_BYTES, VERSION
from leveret.testing.broker import Broker
from tests.e2e.broker_workers import (
    DEAD,
    LEFT,
    PERSISTENT,
    RIGHT,
    TRIED,
    WORK,
    Ledger,
    declare,
    start,
)
from tests.e2e.serving import Serving
from tests.processes import WAIT_S

WORKED_S = 60
KILLS, KILLS_IN_FULL = 3, 10

Drained = dict[str, tuple[bool, dict[str, object]]]
"""Messages of a queue: (redelivered, headers) by body."""


def connect(server: Serving | Broker) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.URLParameters(server.url))


def drain(channel: BlockingChannel, queue: str) -> Drained:
    found: Drained = {}
    count = channel.queue_declare(queue, passive=True).method.message_count
    if count:
        for method, properties, body in islice(channel.consume(queue, auto_ack=True), count):
            assert body.decode() not in found, f"{body!r} is in {queue} twice"
            found[body.decode()] = (method.redelivered, properties.headers or {})
        channel.cancel()
    return found


def check(directory: Path, ledger: Ledger) -> None:
    """Everything that was promised is so."""
    with Broker(directory) as broker:
        channel = connect(broker).channel()
        for queue in ledger.queues:
            channel.queue_declare(queue, passive=True)
        work, dead, left, right, tried = (drain(channel, each) for each in (WORK, DEAD, LEFT, RIGHT, TRIED))
    lost = ledger.confirmed - work.keys() - dead.keys() - ledger.acked
    assert not lost, f"confirmed and lost: {sorted(lost)}"
    assert (work.keys() | dead.keys()) <= ledger.published
    assert not work.keys() & dead.keys(), "in its queue, and among the dead"
    back = ledger.settled & (work.keys() | dead.keys())
    assert not back, f"acked, and back: {sorted(back)}"
    assert ledger.buried <= dead.keys(), f"rejected, not dead: {sorted(ledger.buried - dead.keys())}"
    assert dead.keys() <= ledger.rejected
    for id_, (_, headers) in dead.items():
        told = [(death["queue"], death["reason"], death["count"]) for death in headers["x-death"]]
        assert told == [(WORK, "rejected", 1)], f"{id_} tells of {told}"
    hidden = [id_ for id_ in ledger.delivered & work.keys() if not work[id_][0]]
    assert not hidden, f"delivered before, and don't say so: {hidden}"
    assert left.keys() == right.keys(), "a transaction is in pieces"
    assert ledger.committed <= left.keys() <= ledger.begun
    for id_, tries in ledger.tries.items():
        assert int(str(tried[id_][1].get("x-delivery-count", 0))) >= tries, "the broker has lost count"


def wait_until_all_have_worked(ledger: Ledger) -> None:
    deadline = time.monotonic() + WORKED_S
    while (least := min(ledger.promises())) <= 10:
        assert time.monotonic() < deadline, f"a client has had {least} of its promises"
        time.sleep(0.01)  # threads that tell nobody


def test_after_a_kill_everything_that_was_promised_is_so(tmp_path: Path, full_run: bool) -> None:
    directory, random, ledger = tmp_path / "data", Random(1), Ledger()
    kills = KILLS_IN_FULL if full_run else KILLS
    for life in range(1, kills + 1):
        with Serving(directory) as server:
            assert server.is_ready, server.errors
            declare(connect(server).channel(), ledger)
            threads = start(server.url, ledger)
            if life == kills:
                wait_until_all_have_worked(ledger)
            time.sleep(random.uniform(0.1, 0.7))  # the moment of the kill is what is random here
            server.kill()
            for thread in threads:
                thread.join()
        assert not ledger.unexpected, ledger.unexpected
        copy = tmp_path / "copy"
        shutil.copytree(directory, copy)
        check(copy, ledger)
        shutil.rmtree(copy)


def test_a_stop_tells_clients_and_leaves_everything_in_order(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    with Serving(directory) as server:
        connection = connect(server)
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        channel.basic_publish("", "q", b"kept", PERSISTENT)
        server.process.terminate()
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as told:
            connection.process_data_events(time_limit=20)
        assert told.value.reply_code == 320
        assert told.value.reply_text.startswith("CONNECTION_FORCED")
        assert server.process.wait(WAIT_S) == 0
    with Serving(directory) as server:
        connection = connect(server)
        method, _, body = connection.channel().basic_get("q")
        assert (body, method.redelivered) == (b"kept", False), "a clean stop knows what was delivered"
        connection.close()
        assert server.terminate() == 0
        assert "Traceback" not in server.errors


def test_a_directory_in_use_is_refused_with_the_process_that_has_it(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    with Serving(directory) as server, Serving(directory) as second:
        assert not second.is_ready
        assert second.process.wait(WAIT_S) == 1
        assert f"locked by process {server.process.pid}" in second.errors
        assert "Traceback" not in second.errors
        assert connect(server).is_open


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with Serving(tmp_path / "data", port=port) as server:
            assert server.process.wait(WAIT_S) == 1
            assert f"{port}" in server.errors
            assert "is taken" in server.errors
            assert "Traceback" not in server.errors
    with Serving(tmp_path / "data") as server:
        assert server.is_ready, "the directory was left locked or spoilt"


def _not_ours(directory: Path) -> str:
    (directory / "definitions.db").write_bytes(b"something else entirely" * 100)
    return "definitions.db"


def _damaged(directory: Path) -> str:
    data = bytearray((directory / "definitions.db").read_bytes())
    data[100:1200] = bytes(1100)
    (directory / "definitions.db").write_bytes(data)
    return "definitions.db"


def _newer(directory: Path) -> str:
    """The last checkpoint says that another version wrote it."""
    path = max(directory.glob("checkpoint.*"))
    data = path.read_bytes()
    fields = bytearray(data[: HEADER_BYTES - 8])
    fields[8] += 1
    path.write_bytes(bytes(fields) + xxh3_64_intdigest(fields).to_bytes(8, "little") + data[HEADER_BYTES:])
    return f"{path.name} has format version {VERSION + 1}"


@pytest.mark.parametrize("spoil", [_not_ours, _damaged, _newer])
def test_a_directory_that_cannot_be_read_is_refused_with_a_reason(
    tmp_path: Path, spoil: Callable[[Path], str]
) -> None:
    directory = tmp_path / "data"
    with Serving(directory) as server:
        assert server.terminate() == 0
    reason = spoil(directory)
    with Serving(directory) as server:
        assert server.process.wait(WAIT_S) == 1
        assert "leveret: " in server.errors
        assert reason in server.errors
        assert "Traceback" not in server.errors


def test_a_data_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with Serving(tmp_path / "data") as server:
        assert server.process.wait(WAIT_S) == 1
        assert "leveret: " in server.errors
        assert "Traceback" not in server.errors
