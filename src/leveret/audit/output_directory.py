"""Checks of the output directory and of a pipeline's table, before Spark starts.

This module owns the mark that distinguishes the directory of an audit from other directories. `job` and
`results` write into it. The rule: an audit replaces or deletes nothing in a directory that no audit has made.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
from pyarrow import dataset

from leveret.audit.errors import NothingToAudit
from leveret.spark.pipelines.tables import Batch, Table

MARK: Final = ".leveret-audit"
FINDINGS: Final = "findings.json"
IDENTITY: Final = ("_queue", "_partition", "_offset")
"""The columns of a pipeline's table that identify the message of a row."""
_MARK_TEXT: Final = "leveret audit writes into this directory and replaces what it wrote before.\n"
_OTHER_OUT: Final = "name another directory with --out"


class _Verdict(msgspec.Struct):
    """The beginning of `findings.json`, by which directories of audits before the mark are recognized."""

    holds: bool
    lost_count: int
    doubled_count: int


def check_out(place: Path) -> None:
    """Raise `NothingToAudit` if this directory is not writable, or has files that no audit has made."""
    if place.exists() and not place.is_dir():
        raise NothingToAudit(f"{place} is a file, and results need a directory", hint=_OTHER_OUT)
    try:
        has_other_files = place.is_dir() and any(place.iterdir()) and not _is_of_an_audit(place)
    except OSError as error:
        raise NothingToAudit(f"{place} can't be read: {error.strerror}", hint=_OTHER_OUT) from error
    if has_other_files:
        raise NothingToAudit(f"{place} is not empty, and no audit has made it", hint=_OTHER_OUT)
    above = next(path for path in (place, *place.absolute().parents) if path.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise NothingToAudit(f"{place} can't be written: {above} does not allow it", hint=_OTHER_OUT)


def claim(place: Path) -> None:
    """Make the directory and mark it as an audit's, so that the next audit may replace its contents."""
    place.mkdir(parents=True, exist_ok=True)
    (place / MARK).write_text(_MARK_TEXT, "utf-8")


def _is_of_an_audit(place: Path) -> bool:
    if (place / MARK).exists():
        return True
    try:
        msgspec.json.decode((place / FINDINGS).read_bytes(), type=_Verdict)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return False
    return True


def check_table(path: str, format: str) -> None:
    """Raise `NothingToAudit` if `path` has no batch of a pipeline, or no columns that identify messages.

    Only Spark can read the columns of formats other than parquet: `check_columns` checks them later.
    """
    table = Table.at(path)
    batches = table.batches()
    if not batches:
        raise NothingToAudit(
            f"there is no whole batch of a pipeline at {table.shown}",
            hint="give --table the path of a table that a pipeline has written",
        )
    if format == "parquet":
        check_columns(path, _columns(table, batches[-1]))


def check_columns(path: str, columns: list[str]) -> None:
    """Raise `NothingToAudit` if a column that identifies messages is missing."""
    missing = [name for name in IDENTITY if name not in columns]
    if missing:
        raise NothingToAudit(
            f"the table {path} has no column {missing[0]}",
            hint="a pipeline writes it into its table, unless a step drops it",
        )


def _columns(table: Table, batch: Batch) -> list[str]:
    """Return the columns of the files of a batch, and those that are encoded in the names of folders."""
    try:
        batch_files = dataset.dataset(
            table.folder(batch.folder), filesystem=table.files, format="parquet", partitioning="hive"
        )
    except (OSError, pa.ArrowException) as error:
        raise NothingToAudit(
            f"the table {table.shown} can't be read: {str(error).splitlines()[0]}",
            hint="is it parquet? --table-format names another format",
        ) from error
    return list(batch_files.schema.names)
