"""Definitions that are deleted or damaged: queues stay, nobody gets rights, and an operator gets in again."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.serving import Serving
from tests.semantics.client import Channel, Client, ClosedByBroker


def connect(server: Serving, user: str = "guest", password: str = "guest") -> Channel:
    return Client(server.port, user=user, password=password).channel()


def recover(directory: Path, *, stdin: str = "secret\n") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "leveret", "users", "recover", "admin"]
    options = ["--data-dir", str(directory), "--password-file", "-"]
    return subprocess.run([*command, *options], input=stdin, capture_output=True, text=True, check=False)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The data directory of a broker that has a durable queue with a message, and was stopped."""
    directory = tmp_path / "data"
    with Serving(directory) as server:
        channel = connect(server)
        channel.declare("orders", arguments={"x-max-length": 7})
        channel.exchange("e", "fanout")
        channel.bind("orders", "e")
        channel.confirm_select().publish_confirmed("orders", "kept")
        assert server.terminate() == 0
    return directory


def refused(server: Serving) -> str:
    with pytest.raises(ClosedByBroker) as caught:
        connect(server)
    return caught.value.text


@pytest.mark.parametrize("how", ["deleted", "emptied"])
def test_without_its_definitions_an_old_directory_has_no_guest_and_keeps_its_queues(
    directory: Path, how: str
) -> None:
    if how == "deleted":
        (directory / "definitions.db").unlink()
    else:
        (directory / "definitions.db").write_bytes(b"")
    for _ in range(2):  # the start after it is no way in, either
        with Serving(directory) as server:
            assert "ACCESS_REFUSED" in refused(server)
            assert server.terminate() == 0
            said = server.errors
    assert (
        said.count("CRITICAL the definitions are missing, but the data directory is not new. 1 durable") == 1
    )
    assert said.count("leveret users recover NAME --data-dir DIRECTORY") == 2
    made = recover(directory)
    assert made.returncode == 0, made.stderr
    (line,) = (directory / "admin-log.jsonl").read_text().splitlines()
    assert '"path": "leveret users recover", "names": {"name": "admin"}' in line
    assert "secret" not in line
    with Serving(directory) as server:
        assert "ACCESS_REFUSED" in refused(server)
        channel = connect(server, "admin", "secret")
        channel.declare("orders", arguments={"x-max-length": 7})
        assert channel.get_all("orders") == ["kept"]


def test_an_administrator_is_made_only_where_a_broker_was_and_is_stopped(
    directory: Path, tmp_path: Path
) -> None:
    with Serving(directory):
        running = recover(directory)
    assert running.returncode == 1
    assert "is locked by process" in running.stderr
    elsewhere = recover(tmp_path)
    assert elsewhere.returncode == 1
    assert "is not a broker's data directory" in elsewhere.stderr
    assert recover(directory, stdin="\n").returncode == 2


@pytest.mark.parametrize("table", ["users", "permissions"])
def test_a_damaged_user_or_right_lets_nobody_in(directory: Path, table: str) -> None:
    with sqlite3.connect(directory / "definitions.db") as connection:
        connection.execute(f"UPDATE {table} SET checksum = x'0000000000000000'")
    connection.close()
    with Serving(directory) as server:
        refused(server)
        assert f"a row of table '{table}' is damaged and left out" in server.errors
    with Serving(directory) as server:
        refused(server)
    assert recover(directory).returncode == 0
    with Serving(directory) as server:
        assert connect(server, "admin", "secret").count("orders") == 1
        rights = sqlite3.connect(directory / "definitions.db")
        assert rights.execute("SELECT DISTINCT user FROM permissions").fetchall() == [("admin",)]
        rights.close()


def test_damaged_topology_is_named_and_the_rest_is_kept(directory: Path) -> None:
    with sqlite3.connect(directory / "definitions.db") as connection:
        connection.execute("UPDATE vhosts SET name = '!'")
        connection.execute("UPDATE queues SET arguments = x'00000000'")
        connection.execute("UPDATE exchanges SET type = 'direct'")
    connection.close()
    with Serving(directory) as server:
        channel = connect(server)
        channel.declare("orders", arguments={"x-max-length": 7})  # as its log says
        channel.exchange("e", "topic")  # nothing is left of the old one, nor of its binding
        channel.publish("any", "to nobody", exchange="e")
        assert channel.get_all("orders") == ["kept"]
        for table in ("vhosts", "queues", "exchanges"):
            assert f"a row of table '{table}' is damaged and left out" in server.errors
        assert "the binding from exchange 'e' to 'orders'" in server.errors
        assert server.terminate() == 0
    with Serving(directory) as server:
        channel = connect(server)
        channel.exchange("e", "topic")
        channel.publish("any", "to nobody", exchange="e")
        assert channel.count("orders") == 0
