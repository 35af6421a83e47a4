"""One flipped byte anywhere in the definitions: nothing false is used, and what is lost is named."""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path
from random import Random

import pytest

from leveret.broker.definitions import Change, Row
from leveret.server.definitions import Definitions, DefinitionsDamaged
from leveret.storage.errors import StorageError
from tests.server.test_definitions import ONE_OF_EACH, rows_named

ROWS: list[Row] = [
    *ONE_OF_EACH,
    *rows_named("other"),
    *(row for n in range(20) for row in rows_named(f"n{n}")),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("definitions") / "definitions.db"
    definitions = Definitions(str(path))
    definitions.put(1, [Change(row) for row in ROWS])
    definitions.close()
    return path.read_bytes()


def loaded(definitions: Definitions) -> list[Row] | None:
    """The rows; None if the file is refused."""
    with suppress(DefinitionsDamaged), closing(definitions):
        return definitions.load()
    return None


@pytest.mark.histories(sample=300, full=20_000)
def test_a_flipped_byte_costs_a_row_that_is_named_or_the_start(
    seed: int, whole: bytes, tmp_path: Path
) -> None:
    random = Random(seed)
    at = random.randrange(len(whole))
    flipped = bytes([whole[at] ^ random.randrange(1, 256)])
    path = tmp_path / "definitions.db"
    path.write_bytes(whole[:at] + flipped + whole[at + 1 :])
    try:
        definitions = Definitions(str(path))
    except StorageError as refused:
        said = str(refused)
    else:
        said = ""
    if said:
        assert str(path) in said
        return
    rows = loaded(definitions)
    if rows is None:
        return
    assert [row for row in rows if row not in ROWS] == [], f"byte {at}: a row that nobody has written"
    lost = len(ROWS) - len(rows)
    assert lost == len(definitions.damage), f"byte {at}: {lost} rows are lost, {definitions.damage} are named"
    assert lost <= 1
