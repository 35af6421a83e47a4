"""An audit without Spark, for tests that make many audits: pieces in turn, and their rows chunk by chunk.

`leveret.audit.job` does this work with many workers. The tests know what the figures should be.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from leveret.audit.accounting import MESSAGES, account
from leveret.audit.damaged_files import by_file
from leveret.audit.evidence import Case, of_directory
from leveret.storage import message_events
from leveret.testing.disk import SimulatedDisk

Row = dict[str, Any]


@dataclass
class Reckoned:
    """The result of an audit: the table of messages as rows, and damaged files."""

    rows: list[Row] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    returned: dict[str, int] = field(default_factory=dict)
    """Numbers of returned messages by exchange."""
    logs: dict[str, int] = field(default_factory=dict)
    """Ids of logs by queue."""

    def of(self, queue: str, reader: str = "") -> dict[int, Row]:
        """Return the rows of one reader by offset."""
        mine = [row for row in self.rows if (row["queue"], row["reader"]) == (queue, reader)]
        by_offset = {row["offset"]: row for row in mine}
        assert len(by_offset) == len(mine), "an offset is accounted for twice"
        return by_offset

    @property
    def lost(self) -> list[tuple[str, int]]:
        return sorted((row["queue"], row["offset"]) for row in self.rows if row["state"] == "lost")

    @property
    def doubled(self) -> list[tuple[str, int]]:
        twice = (row for row in self.rows if row["done"] > 1 or row["copies"] > 1)
        return sorted((row["queue"], row["offset"]) for row in twice)


def reckon(case: Case) -> Reckoned:
    damage = set(case.damage)
    audit = Reckoned(logs={log.queue: log.id for log in case.logs})
    by_log: dict[int, list[pa.RecordBatch]] = {}
    for piece in case.pieces:
        for batch in case.evidence.rows(piece):
            if not batch.num_rows:
                continue
            if damaged := message_events.damage_of(batch):
                damage.update(damaged)
            elif piece.log_id in case.returned:
                for row in batch.to_pylist():
                    count = audit.returned.get(row["why"], 0)
                    audit.returned[row["why"]] = count + row["stop"] - row["start"]
            else:
                by_log.setdefault(batch["log"][0].as_py(), []).append(batch)
    for log in case.logs:
        for rows in _chunks(by_log.get(log.id, [])):
            messages = account(rows, log)
            assert messages.schema == MESSAGES
            audit.rows += messages.to_pylist()
    audit.damage = by_file(damage)
    return audit


def _chunks(batches: list[pa.RecordBatch]) -> Iterator[pa.Table]:
    table = pa.Table.from_batches(batches, message_events.SCHEMA)
    chunks = table["chunk"].to_numpy()
    order = np.argsort(chunks, kind="stable")
    table = table.take(pa.array(order))
    edges = np.flatnonzero(np.diff(chunks[order])) + 1
    for start, stop in zip([0, *edges.tolist()], [*edges.tolist(), len(chunks)], strict=True):
        if start < stop:
            yield table.slice(start, stop - start)


def reckon_directory(path: Path) -> Reckoned:
    with of_directory(str(path)) as case:
        return reckon(case)


def copy_disk(disk: SimulatedDisk, path: Path) -> Path:
    """Copy the files of a simulated disk to a real directory."""
    for name in disk.paths():
        target = path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(disk.read_bytes(name))
    return path
