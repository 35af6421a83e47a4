"""The soak takes hours, so it is collected only when LEVERET_SOAK is set, as `make soak` does.

LEVERET_SOAK_ROUNDS says how often each victim is killed at each phase: 20 times unless it is given.
"""

import os
from collections.abc import Iterator

import pytest

from tests.soak.settings import Stage

if not os.environ.get("LEVERET_SOAK"):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Cells with the same setting that follow each other share a scene."""
    with Stage(tmp_path_factory.mktemp("soak")) as ready:
        yield ready
