"""Create an administrator in the data directory of a stopped broker.

For definitions that were lost or damaged. Whoever may write to the directory's files may do this. The rule:
nothing is changed while a broker has the directory open.
"""

from __future__ import annotations

import secrets
from contextlib import closing
from pathlib import Path

from leveret.broker.access.accounts import ADMINISTRATOR
from leveret.broker.access.passwords import hash_password
from leveret.broker.definitions import Change, PermissionRow, Row, UserRow, VhostRow
from leveret.server.definitions import Definitions
from leveret.storage.files import OsFiles

_EVERYTHING = ".*"


class NoDataDirectory(Exception):
    """No broker has ever used this directory."""


def make_administrator(data_dir: Path, name: str, password: bytes) -> list[str]:
    """Create or replace a user with all permissions; return the virtual hosts.

    Raises `StorageError` if a broker has the directory open, or if the definitions can't be read or written.
    """
    if not (data_dir / "lock").exists():
        raise NoDataDirectory(f"{data_dir} is not a broker's data directory (choose it with --data-dir)")
    lock = OsFiles(str(data_dir)).lock("lock")
    try:
        with closing(Definitions(str(data_dir / "definitions.db"))) as definitions:
            rows = definitions.load()
            vhosts = [row.name for row in rows if isinstance(row, VhostRow)] or ["/"]
            definitions.put(1, [Change(row) for row in _administrator_rows(name, password, vhosts)])
    finally:
        lock.release()
    return vhosts


def _administrator_rows(name: str, password: bytes, vhosts: list[str]) -> list[Row]:
    user = UserRow(name, hash_password(password, secrets.token_urlsafe().encode()), ADMINISTRATOR)
    hosts = [VhostRow(vhost) for vhost in vhosts]
    return [
        *hosts,
        user,
        *(PermissionRow(vhost, name, _EVERYTHING, _EVERYTHING, _EVERYTHING) for vhost in vhosts),
    ]
