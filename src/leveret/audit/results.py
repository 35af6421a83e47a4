"""The files of an audit beside its table of messages: findings as tables, as JSON, and as a report.

messages/       a row for each message and reader (parquet)
queues.parquet, lost.parquet, ...   the lists of the findings
findings.json   all findings, for programs
report.html     for people: one file that needs nothing else
.leveret-audit  the mark of an audit's directory (`output_directory`)
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from leveret.audit import report
from leveret.audit.findings import Findings
from leveret.audit.output_directory import FINDINGS

REPORT: Final = "report.html"
_TABLES: Final = (
    "queues",
    "lost",
    "doubled",
    "loops",
    "holes",
    "latencies",
    "dead_letters",
    "flows",
    "advice",
)

_OUTCOMES: Final = pa.map_(pa.string(), pa.int64())


def plain(findings: Findings) -> dict[str, Any]:
    """Return the findings as they are in JSON, with the verdict and its figures first."""
    verdict = {
        "holds": findings.holds,
        "lost_count": findings.lost_count,
        "doubled_count": findings.doubled_count,
    }
    return {**verdict, **msgspec.to_builtins(findings)}


def write(findings: Findings, place: Path) -> Path:
    """Write all files, and return the path of the report."""
    place.mkdir(parents=True, exist_ok=True)
    (place / FINDINGS).write_bytes(msgspec.json.format(msgspec.json.encode(plain(findings))))
    for name in _TABLES:
        rows = msgspec.to_builtins(getattr(findings, name), builtin_types=(datetime,))
        path = place / f"{name}.parquet"
        if rows:
            pq.write_table(_table(rows), path)
        else:
            path.unlink(missing_ok=True)
    path = place / REPORT
    path.write_text(report.html(findings), "utf-8")
    return path


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    """Return the rows as a table. A dict becomes a map, because its keys differ from row to row."""
    columns = {
        name: pa.array([list(row[name].items()) for row in rows], _OUTCOMES)
        if isinstance(value, dict)
        else pa.array([row[name] for row in rows])
        for name, value in rows[0].items()
    }
    return pa.table(columns)
