"""A PostgreSQL of one's own: a free port, a temporary directory, ended however the run ends.

Owns starting Debian's server without touching a system-wide one. Whether it is installed is left to
`tests/tools.py` and the mark `needs_postgresql`.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.processes import Guard, end, free_ports
from tests.tools import postgresql as installed_postgresql

USER = "shop"
PASSWORD = "let/me in"
LIMIT_S = 60
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "fsync": "off",
    "shared_buffers": "16MB",
    "max_connections": "20",
    "autovacuum": "off",
}


@dataclass(frozen=True, slots=True)
class PostgreSQL:
    """A running server, with a superuser of ours."""

    port: int
    programs: str

    @property
    def url(self) -> str:
        return f"jdbc:postgresql://127.0.0.1:{self.port}/postgres"

    def ask(self, statements: str) -> list[str]:
        """The rows of an answer, as `psql` shows them: `1|c0|4.5`."""
        where = f"host=127.0.0.1 port={self.port} user={USER} password='{PASSWORD}' dbname=postgres"
        command = [f"{self.programs}/psql", where, "-qAt", "-v", "ON_ERROR_STOP=1", "-c", statements]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
        return done.stdout.splitlines()


@contextmanager
def running_postgresql() -> Iterator[PostgreSQL]:
    """
    >>> with running_postgresql() as server:
    ...     server.ask("SELECT 1")
    """
    programs = installed_postgresql()
    assert programs is not None
    (port,) = free_ports(1)
    directory = Path(tempfile.mkdtemp(prefix="leveret-postgresql-"))
    server = PostgreSQL(port, programs)
    with ExitStack() as cleanup:
        cleanup.callback(shutil.rmtree, directory, ignore_errors=True)
        rights = _not_root(directory)
        password = directory / "password"
        password.write_text(PASSWORD)
        made = [f"{programs}/initdb", "-D", str(directory / "data"), "-U", USER, "--auth=scram-sha-256"]
        options = ["--pwfile", str(password), "--no-sync", "--locale=C", "--encoding=UTF8"]
        subprocess.run(
            [*made, *options], capture_output=True, timeout=LIMIT_S, check=True, cwd=directory, **rights
        )
        settings = {**SETTINGS, "port": port, "unix_socket_directories": directory}
        flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (directory / "log").open("wb") as log:
            process = subprocess.Popen(
                [f"{programs}/postgres", "-D", str(directory / "data"), *flags],
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **rights,
            )
        guard = Guard(directory)
        cleanup.callback(guard.dismiss)
        guard.watch(process.pid)
        cleanup.callback(end, process)
        _wait_until_it_listens(server, process, directory / "log")
        yield server


def _not_root(directory: Path) -> dict[str, Any]:
    """Who runs the server, which refuses to be root's: then it is the user of Debian's package."""
    if os.getuid() != 0:
        return {}
    owner = pwd.getpwnam("postgres")
    os.chown(directory, owner.pw_uid, owner.pw_gid)
    return {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}


def _wait_until_it_listens(server: PostgreSQL, process: subprocess.Popen[bytes], log: Path) -> None:
    command = [f"{server.programs}/pg_isready", "-q", "-h", "127.0.0.1", "-p", str(server.port), "-t", "1"]
    for _ in range(10 * LIMIT_S):
        if subprocess.run(command, timeout=LIMIT_S, check=False).returncode == 0:
            return
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
        break
    raise RuntimeError(f"postgres did not start:\n{log.read_text(errors='replace')}")
