"""Keeps `docs/ARCHITECTURE.md` honest: its tables of files are complete, and what it names exists."""

import re

from tests import module_tables

ROOT = module_tables.ROOT
TEXT = module_tables.PAGE.read_text(encoding="utf-8")
BY_HAND = re.sub(r"```.*?```", "", TEXT.partition(module_tables.BEGIN)[0], flags=re.DOTALL)
NAMED = sorted(set(re.findall(r"`([^`\n]+)`", BY_HAND)))
FOLDERS = (ROOT / "src" / "leveret", ROOT, ROOT / "docs")
SOURCE_FILES = [path for path in (ROOT / "src" / "leveret").rglob("*.py") if path.name != "__init__.py"]
SOURCES = "\n".join(
    path.read_text(encoding="utf-8")
    for path in (*(ROOT / "src").rglob("*.py"), ROOT / "tests/test_architecture.py")
)
WORDS = frozenset(re.findall(r"\w+", SOURCES))


def test_every_module_is_in_the_tables():
    assert module_tables.page() == TEXT, "docs/ARCHITECTURE.md is out of date: run `make docs`"


def test_every_module_says_in_its_first_line_what_it_holds():
    silent = [path for path in SOURCE_FILES if not module_tables.first_line(path)]
    assert silent == []


def test_the_files_that_it_names_are_there():
    files = [name for name in NAMED if name.endswith((".py", "/")) and " " not in name]
    missing = [
        name
        for name in files
        if not any((folder / name).exists() for folder in FOLDERS) and not list((ROOT / "src").rglob(name))
    ]
    assert files
    assert missing == []


def test_the_names_that_it_quotes_from_the_code_are_in_the_code():
    names = [name for name in NAMED if re.fullmatch(r"[A-Za-z_][\w.]*", name) and not name.endswith(".py")]
    missing = [name for name in names if not set(name.split(".")) <= WORDS]
    assert names
    assert missing == []
