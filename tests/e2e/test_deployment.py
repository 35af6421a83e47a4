"""The files of `deploy/`, each checked by its own validator, and the broker under a service manager."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from leveret.server.configuration import read
from leveret.server.settings import BY_NAME
from tests.e2e.serving import Serving
from tests.processes import WAIT_S

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
FILES = ("leveret.service", "Containerfile", "kubernetes.yaml")
UNIT, CONTAINER, MANIFEST = (DEPLOY / name for name in FILES)
TOOLS = Path(sys.executable).parent
SYSTEMD = shutil.which("systemd-analyze")

pytestmark = pytest.mark.real


def run(*command: object) -> str:
    ran = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=WAIT_S)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


@pytest.mark.skipif(SYSTEMD is None, reason="systemd-analyze is not installed")
def test_the_unit_is_valid_and_hardened(tmp_path: Path) -> None:
    command = re.search(r"^ExecStart=(\S+)", UNIT.read_text(), re.MULTILINE)
    assert command is not None
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace(command[1], shutil.which("true") or "/bin/true"))
    assert run(SYSTEMD, "verify", unit) == ""
    exposure = re.search(r"exposure level for \S+: ([\d.]+)", run(SYSTEMD, "security", "--offline=yes", UNIT))
    assert exposure is not None
    assert float(exposure[1]) < 2.0, "10 is a service without any protection"


def test_the_container_file_is_valid() -> None:
    assert run(TOOLS / "hadolint", CONTAINER) == ""
    variables = re.findall(r"\bLEVERET_\w+", CONTAINER.read_text())
    assert set(variables) <= {setting.variable for setting in BY_NAME.values()}
    assert variables


def test_the_manifest_is_valid_and_its_configuration_too() -> None:
    assert run(TOOLS / "kubernetes-validate", "--strict", MANIFEST).count(" passed ") == 3
    text = re.search(r"leveret\.toml: \|\n((?: {4}.*\n|\n)+)", MANIFEST.read_text())
    assert text is not None
    assert read(re.sub("^ {4}", "", text[1], flags=re.MULTILINE))["listeners.host"] == "0.0.0.0"


def test_the_service_manager_is_told_of_start_reload_and_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(WAIT_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))

        def told() -> dict[str, str]:
            return dict(line.split("=", 1) for line in manager.recv(4096).decode().splitlines())

        with Serving(tmp_path / "data") as server:
            ready = told()
            assert (ready["READY"], ready["MAINPID"]) == ("1", str(server.process.pid))
            assert f"ready on amqp://127.0.0.1:{server.port}" in ready["STATUS"]
            server.process.send_signal(signal.SIGHUP)
            assert told()["RELOADING"] == "1"
            assert told() == ready
            assert server.terminate() == 0
            assert told() == {"STOPPING": "1"}
