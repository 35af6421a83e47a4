"""The tables of files in `docs/ARCHITECTURE.md`, from the first lines of the modules.

`python -m tests.module_tables` writes them into the page.
"""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "ARCHITECTURE.md"
SOURCES = ROOT / "src" / "leveret"
BEGIN = "<!-- `make docs` writes what follows from the first lines of the modules -->\n"


def tables() -> str:
    """Return a heading and a table for each folder with modules."""
    rows: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCES.rglob("*.py")):
        folder, summary = path.parent.relative_to(SOURCES.parent).as_posix(), first_line(path)
        if path.name == "__init__.py":
            rows[folder]  # the folder's heading
        else:
            rows[folder].append(f"| `{path.name}` | {summary} |\n")
    return "\n".join(
        f"### `{folder}/`\n\n{folder_summary(folder)}| file | holds |\n|---|---|\n{''.join(lines)}"
        for folder, lines in sorted(rows.items())
        if lines
    )


def folder_summary(folder: str) -> str:
    """Return the first line of the folder's `__init__.py` as a paragraph, or nothing."""
    summary = first_line(SOURCES.parent / folder / "__init__.py")
    return f"{summary}\n\n" if summary else ""


def first_line(path: Path) -> str:
    """Return the first line of a module's docstring, or nothing."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.split("\n")[0].replace("|", "\\|")


def page() -> str:
    """Return the page with the present tables."""
    written_by_hand, _, _ = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{written_by_hand}{BEGIN}\n{tables()}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
