"""Keeps `docs/ARCHITECTURE.md` honest: its tables of files are complete, and what it names exists."""

import re

from tests import module_tables

ROOT = module_tables.ROOT
TEXT = module_tables.PAGE.read_text(encoding="utf-8")
BY_HAND = re.sub(r"```.*?```", "", TEXT.partition(module_tables.BEGIN)[0], flags=re.DOTALL)
NAMED = sorted(set(re.findall(r"`([^`\n]+)`", BY_HAND)))
FOLDERS = (ROOT / "src" / "leveret", ROOT, ROOT / "docs")
SOURCE_FILES = [path for path in (ROOT / "src" / "leveret").rglob("*.py") if path.name != "__init__.py"]
QUOTED = (*SOURCE_FILES, ROOT / "tests" / "test_architecture.py")
TEXTS = [(path.stem, path.read_text(encoding="utf-8")) for path in QUOTED]


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
    names = [
        name for name in NAMED if re.fullmatch(r"(?!leveret\.|amq\.)[A-Za-z_][\w.]*(?<!\.py|\.db)", name)
    ]
    missing = [name for name in names if not any(_has(text, stem, name.split(".")) for stem, text in TEXTS)]
    assert names
    assert missing == []


def _has(text: str, stem: str, parts: list[str]) -> bool:
    """Return whether a file has a name; for `Log.read` it must define `read` and be or have `Log`."""
    *owners, name = parts
    if not owners:
        return re.search(rf"\b{name}\b", text) is not None
    is_owner = stem == owners[-1] or re.search(rf"^class {owners[-1]}\b", text, re.MULTILINE)
    defined = rf"\bdef {name}\b|\bself\.{name}\b|^\s*{name}: |\bclass {name}\b"
    return bool(is_owner) and re.search(defined, text, re.MULTILINE) is not None
