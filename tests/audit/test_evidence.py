"""What an audit looks at: whose messages they are, and who reads them."""

from __future__ import annotations

import json
from pathlib import Path

from leveret.storage.files import OsFiles
from tests.audit.reckoning import reckon_directory
from tests.storage.builders import make_store, messages


def test_a_queue_whose_name_is_no_text_is_audited_too(tmp_path: Path) -> None:
    store = make_store(OsFiles(str(tmp_path / "data")))
    for name in ("caf\udce9", "caf\udce8"):
        log = store.create_log(label=json.dumps(["/", name]))
        store.create_cursor(log, "queue")
        store.append(log, messages(2))
    store.close()
    found = reckon_directory(tmp_path / "data")
    assert (len(found.of("caf\\xe9")), len(found.of("caf\\xe8"))) == (2, 2)
