"""`leveret doctor`: what it says of a machine and of data directories, and that it changes nothing."""

import json
import os
import shutil
import time
from contextlib import closing
from datetime import timedelta

import pika
import pytest
from typer.testing import CliRunner

from leveret.cli import machine_checks
from leveret.cli.main import app
from leveret.server.clock import SteadyClock
from leveret.testing.broker import Broker
from tests.certificates import Authority
from tests.cli.api_commands import publish

pytestmark = pytest.mark.real


@pytest.fixture(autouse=True)
def on_a_disk(monkeypatch):
    """Temporary directories are in memory on some machines."""
    monkeypatch.setattr(machine_checks, "_file_system_of", lambda _: "ext4")


def doctor(*words):
    ran = CliRunner().invoke(app, ["doctor", "--json", *map(str, words)])
    assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
    findings = {}
    for each in json.loads(ran.stdout):
        findings.setdefault(each["about"], []).append(each)
    return ran.exit_code, findings


@pytest.fixture
def data(tmp_path):
    """Return the data directory of a stopped broker with three messages."""
    directory = tmp_path / "data"
    with Broker(directory) as broker:
        with closing(pika.BlockingConnection(pika.URLParameters(broker.url))) as connection:
            connection.channel().queue_declare("orders", durable=True)
        publish(broker.url, "orders", 3)
    return directory


def _files(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_sound_directory_is_ok_and_stays_as_it_is(data):
    before = _files(data)
    code, findings = doctor("--data-dir", data)
    assert code == 0
    assert [each["level"] for each in findings["definitions"] + findings["messages"]] == ["ok", "ok"]
    assert "closed" in findings["messages"][0]["text"]
    assert "median" in findings["disk sync"][0]["text"]
    assert _files(data) == before


def test_a_flipped_byte_is_found(data):
    segment = next(path for path in data.rglob("msgs.*") if path.stat().st_size > 100)
    content = bytearray(segment.read_bytes())
    content[-1] ^= 1
    segment.write_bytes(content)
    code, findings = doctor("--data-dir", data)
    assert code == 1
    assert findings["messages"][0]["level"] == "fail"
    assert segment.name in findings["messages"][0]["text"]
    assert doctor("--data-dir", data, "--no-data")[0] == 0


def test_damaged_definitions_are_found(data):
    (data / "definitions.db").write_bytes(b"SQLite is not here" * 100)
    code, findings = doctor("--data-dir", data)
    assert (code, findings["definitions"][0]["level"]) == (1, "fail")
    assert str(data) in findings["definitions"][0]["text"]


def test_the_directory_of_a_running_broker_is_left_alone(tmp_path):
    with Broker(tmp_path / "data"):
        code, findings = doctor("--data-dir", tmp_path / "data")
    assert code == 0
    assert findings["data"][0]["level"] == "warning"
    assert f"process {os.getpid()}" in findings["data"][0]["text"]


def test_a_directory_of_another_program_is_refused(tmp_path):
    (tmp_path / "wal").mkdir()
    (tmp_path / "wal" / "0001").write_bytes(b"x" * 100)
    code, findings = doctor("--data-dir", tmp_path)
    assert (code, findings["messages"][0]["level"]) == (1, "fail")


def test_a_directory_that_does_not_exist_is_not_created(tmp_path):
    code, findings = doctor("--data-dir", tmp_path / "none" / "yet")
    assert code == 0
    assert "does not exist yet" in findings["data"][0]["text"]
    assert not (tmp_path / "none").exists()


def test_people_get_a_line_for_each_finding(tmp_path):
    ran = CliRunner().invoke(app, ["doctor", "--data-dir", str(tmp_path)])
    assert ran.exit_code == 0
    assert "ok       python: CPython" in ran.stdout


def test_certificates_are_checked(tmp_path):
    authority = Authority(tmp_path, "test authority")
    for days, level in ((90, "ok"), (10, "warning"), (-0.5, "warning")):
        broker = authority.issue(f"broker{days}", ends=timedelta(days=days))
        words = ("--set", f"tls.key={broker.key}", "--set", f"tls.certificate={broker.certificate}")
        code, findings = doctor("--data-dir", tmp_path / "none", *words)
        assert (code, findings["certificates"][0]["level"]) == (0, level)
    words = ("--set", f"tls.key={broker.key}", "--set", "tls.certificate=/nowhere")
    code, findings = doctor("--data-dir", tmp_path / "none", *words)
    assert (code, findings["certificates"][0]["level"]) == (1, "fail")


def test_slow_and_impossible_syncs_are_warned_about(tmp_path, monkeypatch):
    for times_s, level in (([0.03] * 9, "warning"), ([0.001] * 9, "ok"), ([1e-7] * 9, "warning")):
        monkeypatch.setattr(machine_checks, "_sync_times_s", lambda _, times_s=times_s: iter(times_s))
        assert machine_checks.check_syncs(tmp_path).level == level


def test_low_space_fails(tmp_path):
    free = shutil.disk_usage(tmp_path).free
    assert machine_checks.check_space(tmp_path, free_min_bytes=2 * free).level == "fail"
    assert machine_checks.check_space(tmp_path, free_min_bytes=free * 3 // 4).level == "warning"


def test_a_clock_that_was_set_is_a_warning(monkeypatch):
    monkeypatch.setattr(machine_checks, "_clock_state", lambda: 0)
    ticking = SteadyClock()
    assert machine_checks.check_clock(ticking).level == "ok"
    stepped = SteadyClock(time_of_day_ns=lambda: time.time_ns() - 3600 * 10**9)
    stepped._time_of_day_ns = time.time_ns
    assert machine_checks.check_clock(stepped).level == "warning"
    monkeypatch.setattr(machine_checks, "_clock_state", lambda: 5)
    assert machine_checks.check_clock(ticking).level == "warning"


def test_few_descriptors_fail(monkeypatch):
    for most, level in ((30, "fail"), (1024, "warning"), (65_536, "ok"), (-1, "ok")):
        monkeypatch.setattr(machine_checks.resource, "getrlimit", lambda _, most=most: (most, most))
        assert machine_checks.check_descriptors().level == level


def test_a_file_system_in_memory_fails(tmp_path, monkeypatch):
    for kind, level in (("tmpfs", "fail"), ("nfs4", "warning"), ("ext4", "ok")):
        monkeypatch.setattr(machine_checks, "_file_system_of", lambda _, kind=kind: kind)
        assert machine_checks.check_file_system(tmp_path).level == level
