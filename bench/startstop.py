"""How long a broker with much in it takes to start and to stop: `python -m bench.startstop --beside DIR`.

A directory with many queues, bindings and messages is made once and copied for each contender. A round of a
contender is: a start after a clean stop, `GET /api/queues`, a burst of messages to every queue, a clean stop;
then a start, another burst, kill -9, and the start after that. Rounds are interleaved; ratios are medians of
the ratios within a round, of wall time and of the broker's CPU time. The directory grows by the bursts, for
all contenders alike. Nothing is asserted about speed; a burst that is not in its queues afterwards is an
error. Raw results go to `bench/results/startstop.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

from bench.cpu import process_tree, stat_fields
from bench.frames import method, short
from bench.peer import Client
from bench.report import number, table

RESULTS = Path(__file__).parent / "results" / "startstop.json"
LIMIT_S = 600.0
FANOUT, TOPIC = "everything", "some"
BODY = b"x" * 100
GETS = 10
Measured = dict[str, float]


@dataclass(frozen=True)
class Size:
    """What the directory holds, and how many messages each queue gets before it is stopped or killed."""

    queues: int = 10_000
    bindings: int = 100_000
    messages: int = 5_000_000
    burst: int = 10


# --- the directory ----------------------------------------------------------------------------------------


def build(directory: Path, size: Size) -> None:
    """Makes the directory with the classes of the broker: over AMQP it would take several times as long."""
    from leveret.broker.broker import Broker
    from leveret.server.definitions import Definitions
    from leveret.storage.files import OsFiles
    from leveret.storage.store import Store

    definitions = Definitions(str(directory / "definitions.db"))
    store = Store(OsFiles(str(directory)), clock=clock_us, entropy=lambda: secrets.randbits(64))
    broker = Broker(store, clock=clock_us, token=secrets.token_urlsafe, define=definitions.put)
    definitions.start(lambda number: None, lambda error: sys.exit(str(error)))
    declare(broker, size)
    store.checkpoint()
    fill(broker, size)
    store.close()
    definitions.close()


def clock_us() -> int:
    return time.time_ns() // 1000


def declare(broker: Any, size: Size) -> None:
    from leveret.broker.queues.arguments import declared_settings

    vhost = broker.vhosts["/"]
    kinds = {"durable": True, "auto_delete": False, "internal": False}
    fanout = vhost.add_exchange(FANOUT, "fanout", table={}, **kinds)
    topic = vhost.add_exchange(TOPIC, "topic", table={}, **kinds)
    for at in range(size.queues):
        settings = declared_settings({}, queue=str(at), vhost="/")
        queue = vhost.add_queue(
            f"queue-{at:06d}", durable=True, auto_delete=False, owner=None, table={}, declared=settings
        )
        vhost.bind(fanout, queue, "", {})
        for key in range(size.bindings // size.queues - 1):
            vhost.bind(topic, queue, f"shop.{at}.orders.{key}.#", {})


def fill(broker: Any, size: Size) -> None:
    """As publishers would: a few messages for each queue at a time, and checkpoints when they are due."""
    from leveret.amqp.properties import encode
    from leveret.storage.records import PERSISTENT, Message

    header = encode({"delivery_mode": 2}, len(BODY))
    message = Message(FANOUT.encode(), b"", header, BODY, PERSISTENT)
    each = size.messages // size.queues
    queues = list(broker.vhosts["/"].queues.values())
    for start in range(0, each, 100):
        for queue in queues:
            queue.append([message] * min(100, each - start))
            if broker.store.unsynced_bytes > 8 << 20:
                broker.store.sync()
            if broker.store.checkpoint_due:
                broker.store.checkpoint()
        progress(f"{min(each, start + 100)} of {each} messages in each queue")


# --- a broker over it -------------------------------------------------------------------------------------


class Process:
    """`leveret serve` over a directory that stays; `source` is a folder with another `leveret` package."""

    def __init__(self, data: Path, source: Path | None) -> None:
        script = Path(sys.executable).parent / "leveret"
        command = [sys.executable, str(script), "serve", "--port", "0", "--flight-port", "-1"]
        environment = {**os.environ, "PYTHONPATH": str(source)} if source else None
        self._process = subprocess.Popen(
            [*command, "--data-dir", str(data)], text=True, stdout=subprocess.PIPE, env=environment
        )
        assert self._process.stdout
        line = self._process.stdout.readline()
        found = re.search(r"amqp://[^:]+:(\d+).*http://[^:]+:(\d+)", line)
        if not found:
            raise SystemExit(f"the broker ended before it was ready: exit code {self._process.wait()}")
        self.port, self.http_port = int(found[1]), int(found[2])

    def cpu_s(self) -> float:
        ticks = 0
        for pid in process_tree(self._process.pid):
            fields = stat_fields(pid)
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def end(self, how: signal.Signals) -> float:
        """Ends it; returns the CPU time that it has used in all."""
        self._process.send_signal(how)
        _, _, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = 0  # it has been waited for
        return usage.ru_utime + usage.ru_stime

    def queues(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.queues_text())
        return found

    def queues_text(self) -> bytes:
        request = urllib.request.Request(f"http://127.0.0.1:{self.http_port}/api/queues")
        request.add_header("Authorization", "Basic " + b64encode(b"guest:guest").decode())
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            text: bytes = answer.read()
        return text

    @contextmanager
    def load(self) -> Iterator[None]:
        """A publisher that nothing holds back, to an exchange that leads nowhere, while this is open."""
        client = Client("127.0.0.1", self.port)
        client.socket.settimeout(LIMIT_S)
        publish = method(60, 40, b"\0\0" + short("amq.direct") + short("nowhere") + b"\0")
        many = (publish + content_frames()) * 1000
        ended = Event()

        def send() -> None:
            while not ended.is_set():
                client.socket.sendall(many)

        sender = Thread(target=send)
        sender.start()
        try:
            yield
        finally:
            ended.set()
            sender.join()
            client.close()

    def burst(self, count: int) -> None:
        """Messages to every queue, each confirmed."""
        client = Client("127.0.0.1", self.port)
        client.socket.settimeout(LIMIT_S)
        client.confirm_select()
        publish = method(60, 40, b"\0\0" + short(FANOUT) + short("") + b"\0")
        for _ in range(count):
            client.socket.sendall(publish + content_frames())
            client.expect(60, 80)
        client.close()


def content_frames() -> bytes:
    """The header frame (persistent) and the body frame of one message."""
    header = b"\0\x3c\0\0" + len(BODY).to_bytes(8, "big") + b"\x10\0\x02"
    frames = ((2, header), (3, BODY))
    return b"".join(
        bytes((kind,)) + b"\0\x01" + len(data).to_bytes(4, "big") + data + b"\xce" for kind, data in frames
    )


class Contender:
    """One version of the code with its own copy of the directory."""

    def __init__(self, name: str, data: Path, source: Path | None, size: Size) -> None:
        self.name = name
        self._data = data
        self._source = source
        self._size = size
        self._expected = 0  # a directory that is found may have bursts of earlier runs

    def round(self) -> dict[str, Measured]:
        broker, started = self._start()
        self._check(broker.queues())
        listed = self._timed(broker, lambda: [broker.queues_text() for _ in range(GETS)])
        with broker.load():
            loaded = self._timed(broker, broker.queues_text)
        self._burst(broker)
        stopped = self._stop(broker)
        broker, _ = self._start()
        self._burst(broker)
        broker.end(signal.SIGKILL)
        broker, recovered = self._start()
        self._check(broker.queues())
        self._stop(broker)
        listed = {name: value / GETS for name, value in listed.items()}
        gets = {"GET queues": listed, "GET queues, under load": loaded}
        return {"stop": stopped, "start": started, "start after kill": recovered, **gets}

    def _start(self) -> tuple[Process, Measured]:
        before_s = time.monotonic()
        broker = Process(self._data, self._source)
        return broker, {"wall_s": time.monotonic() - before_s, "cpu_s": broker.cpu_s()}

    def _stop(self, broker: Process) -> Measured:
        before_s, used_s = time.monotonic(), broker.cpu_s()
        in_all_s = broker.end(signal.SIGTERM)
        return {"wall_s": time.monotonic() - before_s, "cpu_s": in_all_s - used_s}

    def _timed(self, broker: Process, work: Callable[[], object]) -> Measured:
        before_s, used_s = time.monotonic(), broker.cpu_s()
        work()
        return {"wall_s": time.monotonic() - before_s, "cpu_s": broker.cpu_s() - used_s}

    def _burst(self, broker: Process) -> None:
        broker.burst(self._size.burst)
        self._expected += self._size.burst

    def _check(self, found: list[dict[str, Any]]) -> None:
        self._expected = self._expected or found[0]["messages"]
        wrong = [each for each in found if each["messages"] != self._expected]
        if len(found) != self._size.queues or wrong:
            raise SystemExit(f"{self.name}: {len(found)} queues, {len(wrong)} not with {self._expected}")


# --- the run ----------------------------------------------------------------------------------------------


def measure(contenders: list[Contender], rounds: int) -> dict[str, list[dict[str, Measured]]]:
    raw: dict[str, list[dict[str, Measured]]] = {each.name: [] for each in contenders}
    for at in range(rounds):
        for each in contenders:
            found = each.round()
            raw[each.name].append(found)
            told = ", ".join(f"{what} {value['wall_s']:.1f} s" for what, value in found.items())
            progress(f"round {at + 1}, {each.name}: {told}")
    return raw


def ratios(raw: Mapping[str, list[dict[str, Measured]]]) -> dict[str, Measured]:
    """How many times as long the code before took: medians over the rounds."""
    pairs = list(zip(raw.get("before", ()), raw["leveret"], strict=False))
    if not pairs:
        return {}
    return {
        what: {
            figure: statistics.median(
                before[what][figure] / max(now[what][figure], 0.01) for before, now in pairs
            )
            for figure in ("wall_s", "cpu_s")
        }
        for what in raw["leveret"][0]
    }


def report(raw: Mapping[str, list[dict[str, Measured]]], found: Mapping[str, Measured]) -> str:
    rows = [["seconds (CPU)", *raw, "ratio", "of CPU"]]
    for what in raw["leveret"][0]:
        row = [what]
        for runs in raw.values():
            wall, cpu = (statistics.median(run[what][key] for run in runs) for key in ("wall_s", "cpu_s"))
            row.append(f"{wall:.2f} ({cpu:.2f})")
        times = found.get(what, {})
        rows.append([*row, number(times.get("wall_s"), 1), number(times.get("cpu_s"), 1)])
    return table(rows)


def progress(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def keep(size: Size, raw: object, found: object) -> None:
    machine = {"python": platform.python_version(), "cpus": os.cpu_count(), "kernel": platform.release()}
    result = {"size": asdict(size), "machine": machine, "before_over_leveret": found, "runs": raw}
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in asdict(Size()).items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{default:,}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beside", type=Path, metavar="DIR", help="measure the leveret in this folder, too")
    parser.add_argument(
        "--directory", type=Path, help="where the directories are kept and found again; else temporary"
    )
    parser.add_argument("--build", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def prepare(root: Path, size: Size, names: list[str], source: Path | None) -> None:
    """The directory, made once by the oldest code, and a copy for each; what is found is used again."""
    original = root / "original"
    if not original.exists():
        draft = root / "draft"
        draft.mkdir()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source), "."])} if source else None
        sizes = [f"--{name}={value}" for name, value in asdict(size).items()]
        command = [sys.executable, "-m", "bench.startstop", "--build", str(draft), *sizes]
        subprocess.run(command, check=True, env=environment)
        draft.rename(original)
    for name in names:
        if not (root / name).exists():
            shutil.copytree(original, root / f"draft-{name}")
            (root / f"draft-{name}").rename(root / name)
    os.sync()  # or the first to sync would write the copies


def main() -> None:
    chosen = arguments()
    size = Size(chosen.queues, chosen.bindings, chosen.messages, chosen.burst)
    if chosen.build:
        build(chosen.build, size)
        return
    sources = {"before": chosen.beside} if chosen.beside else {}
    sources["leveret"] = None
    with tempfile.TemporaryDirectory(prefix="bench-startstop-") as temporary:
        root = chosen.directory or Path(temporary)
        root.mkdir(exist_ok=True)
        prepare(root, size, list(sources), chosen.beside)
        contenders = [Contender(name, root / name, source, size) for name, source in sources.items()]
        raw = measure(contenders, chosen.rounds)
    found = ratios(raw)
    print(report(raw, found))
    if found and size == Size():
        keep(size, raw, found)


if __name__ == "__main__":
    main()
