"""The sources of an audit: names of queues."""

from __future__ import annotations

import json
from pathlib import Path

from leveret.storage.files import OsFiles
from tests.audit.reckoning import reckon_directory
from tests.storage.builders import make_store, messages


def test_queue_names_may_be_any_bytes(tmp_path: Path) -> None:
    store = make_store(OsFiles(str(tmp_path / "data")))
    for name in ("caf\udce9", "caf\udce8"):
        log = store.create_log(label=json.dumps(["/", name]))
        store.create_cursor(log, "queue")
        store.append(log, messages(2))
    store.close()
    audit = reckon_directory(tmp_path / "data")
    assert (len(audit.of("caf\\xe9")), len(audit.of("caf\\xe8"))) == (2, 2)
