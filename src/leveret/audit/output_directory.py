"""Where an audit writes and which table it reads: both are checked before Spark starts.

Owns the mark that tells an audit's directory from somebody else's. What is written there is left to
`job` and `results`. The rule: nothing in a directory that no audit has made is replaced or deleted.
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
"""The columns that say which message a row of a pipeline's table was."""
_MARK_TEXT: Final = "leveret audit writes into this directory and replaces what it wrote before.\n"
_OTHER_OUT: Final = "name another directory with --out"


class _Verdict(msgspec.Struct):
    """The beginning of `findings.json`: audits that made no mark have left it too."""

    holds: bool
    lost_count: int
    doubled_count: int


def check_out(place: Path) -> None:
    """Raise `NothingToAudit` if results can't be written to this directory, or would replace other files."""
    if place.exists() and not place.is_dir():
        raise NothingToAudit(f"{place} is a file, and results need a directory", hint=_OTHER_OUT)
    try:
        is_other = place.is_dir() and any(place.iterdir()) and not _is_of_an_audit(place)
    except OSError as error:
        raise NothingToAudit(f"{place} can't be read: {error.strerror}", hint=_OTHER_OUT) from error
    if is_other:
        raise NothingToAudit(f"{place} is not empty, and no audit has made it", hint=_OTHER_OUT)
    above = next(each for each in (place, *place.absolute().parents) if each.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise NothingToAudit(f"{place} can't be written: {above} does not allow it", hint=_OTHER_OUT)


def claim(place: Path) -> None:
    """Make the directory and mark it as the audit's, so that the next audit may replace what is in it."""
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
    """Raise if there is no batch of a pipeline at `path`, or its rows do not say which messages they were.

    The columns of formats other than parquet are left to Spark.
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
    """Raise `NothingToAudit` if one of the columns that name a message is missing."""
    missing = [name for name in IDENTITY if name not in columns]
    if missing:
        raise NothingToAudit(
            f"the table {path} has no column {missing[0]}",
            hint="a pipeline's table says of its rows which messages they were, unless a step left that out",
        )


def _columns(table: Table, batch: Batch) -> list[str]:
    """Columns of the files of a batch, and those that are names of folders."""
    try:
        found = dataset.dataset(
            table.folder(batch.folder), filesystem=table.files, format="parquet", partitioning="hive"
        )
    except (OSError, pa.ArrowException) as error:
        raise NothingToAudit(
            f"the table {table.shown} can't be read: {str(error).splitlines()[0]}",
            hint="is it parquet? --table-format names another format",
        ) from error
    return list(found.schema.names)
