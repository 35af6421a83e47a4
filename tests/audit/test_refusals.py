"""Refused audits: one sentence, exit code 1, no file changed, and Spark is not started."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result
from xxhash import xxh3_64_intdigest

from leveret.audit import output_directory, results
from leveret.cli.main import app
from leveret.spark.endpoint import Endpoint, find
from leveret.spark.options import BrokerOptions
from leveret.storage import formats
from leveret.storage.files import OsFiles
from leveret.testing.broker import Broker
from tests.audit import examples
from tests.processes import free_ports
from tests.semantics.client import Client
from tests.storage.builders import make_store, messages

HEADER = formats.HEADER_BYTES
KINDS = ["checkpoint.*", "wal/*", "logs/*/msgs.*", "logs/*/index.*", "logs/*/snapshot.*"]


def audit(tmp_path: Path, *words: object) -> Result:
    """Run the command, which must fail before it writes anything."""
    out = tmp_path / "out"
    ran = CliRunner().invoke(app, ["audit", *map(str, words), "--out", str(out)], catch_exceptions=False)
    assert ran.exit_code == 1
    assert ran.stdout == ""
    assert not out.exists()
    assert len(ran.stderr.strip().splitlines()) == 1, ran.stderr
    return ran


def fingerprint(path: Path) -> str:
    """Return a hash of the names and contents of all files and directories below `path`."""
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")):
        digest.update(str(file).encode() + b"\0")
        digest.update(file.read_bytes() if file.is_file() else b"")
    return digest.hexdigest()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The directory of a closed store with files of all kinds."""
    path = tmp_path / "data"
    store = make_store(OsFiles(str(path)))
    log = store.create_log(label='["/", "orders"]')
    cursor = store.create_cursor(log, "queue")
    store.append(log, messages(200))
    store.sync()
    for _ in range(100):
        cursor.settle(cursor.take(1))
    store.checkpoint()
    store.sync()
    store.close()
    return path


def make_newer(path: Path) -> None:
    """Give a file a newer format version and a valid checksum."""
    content = bytearray(path.read_bytes())
    content[8] = formats.VERSION + 1
    content[HEADER - 8 : HEADER] = xxh3_64_intdigest(content[: HEADER - 8]).to_bytes(8, "little")
    path.write_bytes(content)


@pytest.mark.parametrize("kind", KINDS)
def test_a_newer_format_is_refused(data: Path, tmp_path: Path, kind: str) -> None:
    make_newer(max(data.glob(kind)))
    before = fingerprint(data)
    ran = audit(tmp_path, "--data", data)
    problem = f"has format version {formats.VERSION + 1}, this program reads version {formats.VERSION}"
    message = f"{problem} (audit it with the version of Leveret that wrote it, or a later one)\n"
    assert ran.stderr.startswith(f"leveret: {data}: ")
    assert ran.stderr.endswith(message)
    assert fingerprint(data) == before


@pytest.mark.real
def test_a_directory_that_a_broker_has_open_is_refused_and_the_broker_goes_on(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker:
        channel = Client(broker.port).channel().confirm_select()
        channel.declare("q")
        channel.publish_confirmed("q", "one")
        before = fingerprint(tmp_path / "data")
        ran = audit(tmp_path, "--data", tmp_path / "data")
        place = tmp_path / "data"
        assert ran.stderr == f"leveret: {place} is in use by process {os.getpid()} (audit it with --url)\n"
        assert fingerprint(tmp_path / "data") == before
        channel.publish_confirmed("q", "two")


def empty_directory(path: Path) -> None:
    path.mkdir()


def missing(path: Path) -> None:
    pass


def other_files(path: Path) -> None:
    (path / "photos").mkdir(parents=True)
    (path / "photos" / "cat.png").write_bytes(b"meow")


def other_logs(path: Path) -> None:
    (path / "logs").mkdir(parents=True)
    (path / "logs" / "access.log").write_bytes(b"GET /")


def a_file(path: Path) -> None:
    path.write_bytes(b"hello")


@pytest.mark.parametrize("make", [empty_directory, missing, other_files, other_logs, a_file])
def test_a_path_without_a_data_directory_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "data")
    before = fingerprint(tmp_path)
    ran = audit(tmp_path, "--data", tmp_path / "data")
    assert str(tmp_path / "data") in ran.stderr
    assert fingerprint(tmp_path) == before


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if Spark is started."""

    def started(*_: object, **__: object) -> None:
        raise AssertionError("Spark is started")

    monkeypatch.setattr("leveret.audit.job.session", started)


def refused(*words: object) -> str:
    """Run the command, and return its one line of error."""
    ran = CliRunner().invoke(app, ["audit", *map(str, words)], catch_exceptions=False)
    assert (ran.exit_code, ran.stdout, len(ran.stderr.strip().splitlines())) == (1, "", 1), ran.output
    return ran.stderr


@pytest.mark.usefixtures("no_spark")
@pytest.mark.parametrize("name", ["messages/letter.txt", "findings.json", "report.html"])
def test_files_that_no_audit_has_made_are_not_replaced(data: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    (out / name).parent.mkdir(parents=True)
    (out / name).write_text("mine")
    before = fingerprint(tmp_path)
    assert f"{out} is not empty, and no audit has made it" in refused("--data", data, "--out", out)
    assert fingerprint(tmp_path) == before


@pytest.mark.usefixtures("no_spark")
@pytest.mark.parametrize("below", [False, True])
def test_an_output_path_that_is_a_file_is_refused(data: Path, tmp_path: Path, below: bool) -> None:
    (tmp_path / "out").write_text("mine")
    out = tmp_path / "out" / "deeper" if below else tmp_path / "out"
    message = refused("--data", data, "--out", out)
    assert str(out) in message
    assert "name another directory with --out" in message


def test_the_directory_of_an_earlier_audit_is_written_again(tmp_path: Path) -> None:
    output_directory.check_out(tmp_path / "new")
    output_directory.check_out(tmp_path)
    output_directory.claim(tmp_path / "marked")
    (tmp_path / "marked" / "messages").mkdir()
    output_directory.check_out(tmp_path / "marked")
    results.write(examples.well(), tmp_path / "older")
    output_directory.check_out(tmp_path / "older")


@pytest.mark.usefixtures("no_spark")
def test_a_missing_table_is_refused_before_spark_starts(data: Path, tmp_path: Path) -> None:
    message = refused("--data", data, "--out", tmp_path / "out", "--table", tmp_path / "lake")
    assert f"there is no whole batch of a pipeline at {tmp_path / 'lake'}" in message
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("no_spark")
@pytest.mark.parametrize("content", ["rows of something else", "no parquet"])
def test_a_table_without_the_columns_of_a_pipeline_is_refused_before_spark_starts(
    data: Path, tmp_path: Path, content: str
) -> None:
    batch = tmp_path / "lake" / "_batch=0"
    batch.mkdir(parents=True)
    (batch / "_SUCCESS").touch()
    if content == "no parquet":
        (batch / "part-0.parquet").write_bytes(b"hello")
    else:
        pq.write_table(pa.table({"_queue": ["orders"], "id": [1]}), batch / "part-0.parquet")
    message = refused("--data", data, "--out", tmp_path / "out", "--table", tmp_path / "lake")
    assert ("can't be read" if content == "no parquet" else "has no column _partition") in message


@pytest.mark.usefixtures("no_spark")
def test_a_directory_and_a_broker_together_are_refused(data: Path, tmp_path: Path) -> None:
    words = ["audit", "--data", str(data), "--url", "amqp://127.0.0.1/", "--out", str(tmp_path / "out")]
    ran = CliRunner().invoke(app, words, catch_exceptions=False)
    assert ran.exit_code == 2
    assert "give one of them" in " ".join(ran.stderr.replace("│", " ").split())
    assert not (tmp_path / "out").exists()


def test_a_missing_java_is_reported(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    before = fingerprint(data)
    ran = audit(tmp_path, "--data", data)
    assert "Spark needs Java" in ran.stderr
    assert fingerprint(data) == before


@pytest.mark.real
def test_an_unreachable_broker_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def quickly(options: BrokerOptions) -> Endpoint:
        return find(options, timeout_s=0.1)

    (port,) = free_ports(1)
    monkeypatch.setattr("leveret.audit.evidence.find", quickly)
    ran = audit(tmp_path, "--url", f"amqp://guest:guest@127.0.0.1:{port}/")
    assert "no broker answered" in ran.stderr


def test_the_directory_may_be_read_only(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit gets to the point where Spark needs Java."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    shutil.copytree(data, tmp_path / "copy")
    for path in (tmp_path / "copy").rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    assert "Java" in audit(tmp_path, "--data", tmp_path / "copy").stderr
