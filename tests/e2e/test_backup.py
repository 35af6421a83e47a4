"""A backup of a broker under load: what was confirmed before it began is in it, and its broker starts."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pika
import pytest
from typer.testing import CliRunner

from leveret.cli.main import app
from leveret.storage.backup import NotCopied, copy_store
from leveret.storage.files import OsFiles
from leveret.testing.broker import Broker
from tests.e2e.serving import Serving
from tests.processes import WAIT_S, wait_until

pytestmark = pytest.mark.real

PERSISTENT = pika.BasicProperties(delivery_mode=2)
BODY = b"x" * 2000


def command(*words: object, code: int = 0) -> str:
    ran = CliRunner().invoke(app, ["backup", *map(str, words)], catch_exceptions=False)
    assert ran.exit_code == code, ran.output
    return ran.stdout if code == 0 else ran.stderr


class Publisher(threading.Thread):
    """Publishes numbered messages and counts those that were confirmed."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.connection = pika.BlockingConnection(pika.URLParameters(url))
        self.channel = self.connection.channel()
        self.channel.queue_declare("q", durable=True)
        self.channel.queue_bind("q", "amq.topic", "#")
        self.channel.confirm_delivery()
        self.confirmed = 0
        self.ends = threading.Event()

    def run(self) -> None:
        while not self.ends.is_set():
            body = b"%d " % self.confirmed + BODY
            self.channel.basic_publish("amq.topic", "key", body, PERSISTENT)
            self.confirmed += 1
        self.connection.close()


def test_what_was_confirmed_before_a_backup_under_load_is_in_it(tmp_path: Path) -> None:
    small = ("--set", "store.memory_bytes=65536", "--set", "store.wal_bytes=65536")
    with Serving(tmp_path / "data", *small) as server:
        publisher = Publisher(server.url)
        publisher.start()
        promised = {}
        for name in ("first", "second"):
            before = publisher.confirmed + 200
            wait_until(lambda: publisher.confirmed >= before, "more is published", timeout_s=WAIT_S)  # noqa: B023
            promised[name] = publisher.confirmed
            copied = json.loads(command(tmp_path / name, "--data-dir", tmp_path / "data", "--json"))
            assert copied["damage"] == []
            assert copied["bytes"] > promised[name] * len(BODY)
        publisher.ends.set()
        publisher.join(WAIT_S)
    for name, count in promised.items():
        with Broker(tmp_path / name) as broker:
            connection = pika.BlockingConnection(pika.URLParameters(broker.url))
            channel = connection.channel()
            numbers = []
            while (body := channel.basic_get("q", auto_ack=True)[2]) is not None:
                numbers.append(int(body.split()[0]))
            assert numbers == list(range(len(numbers)))
            assert len(numbers) >= count
            channel.confirm_delivery()
            channel.basic_publish("amq.topic", "key", b"new", PERSISTENT, mandatory=True)
            connection.close()


def test_a_copy_begins_again_when_the_store_has_written_two_checkpoints(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker:
        files = OsFiles(str(tmp_path / "data"), read_only=True)

        def copy(name: str, checkpoints: list[int]) -> None:
            """Copy the store; with each piece the store writes the next number of checkpoints."""

            def go_on(_: int) -> None:
                for _ in range(checkpoints.pop(0) if checkpoints else 0):
                    broker.server.broker.store.checkpoint()

            copy_store(files, OsFiles(str(tmp_path / name)), [].append, copied=go_on)

        def newest(name: str) -> str:
            return max(path.name for path in (tmp_path / name).glob("checkpoint.*"))

        before = newest("data")
        copy("one", [1])
        assert newest("one") == before < newest("data")
        copy("two", [2])
        assert newest("two") == newest("data")
        with pytest.raises(NotCopied, match="two checkpoints during each of 5 copies"):
            copy("never", [2] * 1000)
        assert not list((tmp_path / "never").glob("checkpoint.*"))


def test_what_can_not_be_copied_is_one_sentence(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    assert "is no data directory of a broker" in command(tmp_path / "copy", "--data-dir", data, code=1)
    assert f"{data.parent} is not empty" in command(data.parent, "--data-dir", data, code=1)
    (data / "definitions.db").touch()
    said = command(tmp_path / "copy", "--data-dir", data, code=1)
    assert "can't be copied to" in said
    assert "the directory has no checkpoint" in said
