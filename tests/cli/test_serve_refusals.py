"""`leveret serve` that can't start: one sentence with the port or the file, and what to do."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from leveret.cli import broker_process, preflight
from leveret.cli.main import app
from tests.processes import WAIT_S, free_ports


@pytest.fixture(autouse=True)
def not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the broker is started."""

    async def serve(*_: object, **__: object) -> bool:
        raise AssertionError("the broker is started")

    monkeypatch.setattr(broker_process, "serve", serve)
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", root.handlers[:])
    monkeypatch.setattr(root, "level", root.level)


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def refused(tmp_path: Path, *words: object, code: int = 1) -> str:
    data = [] if "--data-dir" in words else ["--data-dir", str(tmp_path / "data")]
    ran = CliRunner().invoke(app, ["serve", *data, *map(str, words)], catch_exceptions=False)
    assert (ran.exit_code, ran.stdout) == (code, "")
    if code == 1:
        assert len(ran.stderr.strip().splitlines()) == 1, ran.stderr
    return ran.stderr


@pytest.fixture
def certificate(tmp_path: Path) -> list[str]:
    """Two files that are no certificate and no key."""
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).write_text("hello")
    return ["--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem")]


@pytest.mark.parametrize(
    ("option", "protocol"), [("--port", "AMQP"), ("--http-port", "HTTP")], ids=["amqp", "http"]
)
def test_a_taken_port_is_named_with_the_option_that_helps(
    tmp_path: Path, taken: int, option: str, protocol: str
) -> None:
    ports = {"--port": 0, "--http-port": 0, "--flight-port": 0, option: taken}
    said = refused(tmp_path, *(word for pair in ports.items() for word in pair))
    assert said == (
        f"leveret: port {taken} ({protocol}) on 127.0.0.1 is taken "
        f"(stop what uses it, or choose another with {option}; 0 picks a free one)\n"
    )


def test_a_second_broker_is_told_all_ports_that_it_has_to_name(tmp_path: Path, taken: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        bulk = other.getsockname()[1]
        (free,) = free_ports(1)
        said = refused(tmp_path, "--port", free, "--http-port", taken, "--flight-port", bulk)
    assert f"ports {taken} (HTTP) and {bulk} (Arrow Flight) on 127.0.0.1 are taken" in said
    assert "choose others with --http-port and --flight-port" in said


def test_a_taken_port_for_tls_is_named(tmp_path: Path, taken: int) -> None:
    for option, protocol in (("--tls-port", "AMQP over TLS"), ("--https-port", "HTTPS")):
        with pytest.raises(preflight.PortsTaken, match=rf"port {taken} \({protocol}\).*{option}"):
            preflight.check_ports("127.0.0.1", [preflight.Listener(protocol, option, taken)])


def test_one_port_for_two_protocols_is_refused(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    said = refused(tmp_path, "--port", port, "--http-port", 0, "--flight-port", port)
    assert f"--flight-port: listeners.flight_port is {port}, and so is listeners.amqp_port (--port)" in said


@pytest.mark.parametrize("host", ["nowhere.invalid", "203.0.113.7"])
def test_a_host_that_is_not_this_machine_is_named(tmp_path: Path, host: str) -> None:
    said = refused(tmp_path, "--host", host, "--port", 0)
    assert host in said
    assert "give --host an address of this machine" in said


@pytest.mark.parametrize("option", ["--port", "--http-port", "--flight-port", "--tls-port", "--https-port"])
def test_a_port_out_of_range_is_a_mistake_of_the_command_line(tmp_path: Path, option: str) -> None:
    said = refused(tmp_path, option, 70000, code=2)
    assert option in said
    assert "70000 is not in the range" in said


def test_a_data_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("hello")
    said = refused(tmp_path, "--port", 0, "--data-dir", tmp_path / "file")
    assert f"the data directory {tmp_path / 'file'} is a file" in said
    said = refused(tmp_path, "--port", 0, "--data-dir", tmp_path / "file" / "below")
    assert f"the data directory {tmp_path / 'file' / 'below'} can't be created" in said


def test_a_data_directory_that_can_not_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)  # root may write everywhere
    said = refused(tmp_path, "--port", 0)
    assert f"the data directory {tmp_path / 'data'} can't be written" in said


def test_a_wrong_certificate_is_refused_before_anything_is_made(
    tmp_path: Path, certificate: list[str]
) -> None:
    said = refused(tmp_path, "--port", 0, *certificate)
    assert f"{certificate[1]} (tls.certificate) is not a PEM file" in said
    Path(certificate[3]).unlink()
    said = refused(tmp_path, "--port", 0, *certificate)
    assert f"{certificate[3]} (tls.key) can't be read: No such file or directory" in said
    assert not (tmp_path / "data").exists()


@pytest.mark.real
def test_a_taken_flight_port_alone_is_a_sentence_and_no_dump_of_grpc(tmp_path: Path, taken: int) -> None:
    words = ["--port", "0", "--flight-port", str(taken), "--data-dir", str(tmp_path / "data")]
    ran = subprocess.run(
        [sys.executable, "-m", "leveret", "serve", *words],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == (
        f"leveret: port {taken} (Arrow Flight) on 127.0.0.1 is taken "
        "(stop what uses it, or choose another with --flight-port; 0 picks a free one)\n"
    )


# In a process of its own: modules that are imported anew would not be those that other tests patch.
WITHOUT_SPARK = """
import sys
sys.modules["pyspark"] = None
from leveret.cli.main import app
app(["pipeline", "new", sys.argv[1]])
"""


@pytest.mark.real
def test_a_new_pipeline_without_the_extra_is_a_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_SPARK, str(tmp_path / "p.toml")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith("leveret: pipelines need pyspark")
    assert "pip install 'leveret[spark]'" in ran.stderr
    assert not (tmp_path / "p.toml").exists()
