"""How much memory the process may use: the machine's, or less in a container."""

from pathlib import Path

import pytest

from leveret.server.malloc_settings import machine_bytes


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    return tmp_path


def group(root: Path, line: str, **limits: str) -> None:
    """Put the process into a control group; `limits` are files below /sys/fs/cgroup with their texts."""
    (root / "proc" / "self" / "cgroup").write_text(f"{line}\n")
    for path, text in limits.items():
        file = root / "sys" / "fs" / "cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")


def test_without_control_groups_it_is_the_memory_of_the_machine(root: Path) -> None:
    assert machine_bytes(str(root)) == machine_bytes("/nowhere") > 1 << 28


def test_the_smallest_limit_of_the_groups_around_the_process_holds(root: Path) -> None:
    limits = {"a/b/memory.max": "max", "a/memory.max": str(200 << 20), "memory.max": str(300 << 20)}
    group(root, "0::/a/b", **limits)
    assert machine_bytes(str(root)) == 200 << 20


def test_a_container_sees_its_own_limit_at_the_top(root: Path) -> None:
    group(root, "0::/", **{"memory.max": str(100 << 20)})
    assert machine_bytes(str(root)) == 100 << 20


def test_the_first_version_of_control_groups_has_the_limit_in_another_file(root: Path) -> None:
    group(root, "7:memory:/a", **{"memory/a/memory.limit_in_bytes": str(100 << 20)})
    assert machine_bytes(str(root)) == 100 << 20
