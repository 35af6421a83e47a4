"""Line numbers of the keys in a TOML text, for error messages. The standard library does not tell them.

A key that is not found, as inside an inline table, has the line of the table around it. The text must be one
that `tomllib` accepts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

Key = tuple[str | int, ...]
"""`("sinks", 1, "path")`: tables by name, and by index in an array of tables."""

_NAME: Final = r"""(?:"[^"]*"|'[^']*'|[A-Za-z0-9_-]+)"""
_NAMES: Final = re.compile(_NAME)
_HEADER: Final = re.compile(rf"\s*(\[\[?)\s*({_NAME}(?:\s*\.\s*{_NAME})*)\s*\]")
_ASSIGNMENT: Final = re.compile(rf"\s*({_NAME}(?:\s*\.\s*{_NAME})*)\s*=")
_TOKEN: Final = re.compile(r'"""|\'\'\'|"(?:\\.|[^"\\])*"|\'[^\']*\'|#.*|[\[\]{}]')


class Lines:
    """`Lines(text).of(("source", "queue"))`."""

    def __init__(self, text: str) -> None:
        self._lines: dict[Key, int] = {}
        for key, line in _keys(text):
            self._lines.setdefault(key, line)

    def of(self, key: Sequence[str | int]) -> int:
        """Return the line of a key, or of the nearest table around it; 1 for the whole file."""
        for length in range(len(key), 0, -1):
            line = self._lines.get(tuple(key[:length]))
            if line is not None:
                return line
        return 1


def _keys(text: str) -> Iterator[tuple[Key, int]]:
    table: Key = ()
    counts: dict[Key, int] = {}
    value = _OpenValue()
    for number, line in enumerate(text.splitlines(), 1):
        if value:
            value.read(line)
            continue
        if header := _HEADER.match(line):
            table = _nested(_split(header[2]), counts)
            if header[1] == "[[":
                index = counts[table] = counts.get(table, -1) + 1
                yield table, number
                table += (index,)
            yield table, number
        elif assignment := _ASSIGNMENT.match(line):
            names = _split(assignment[1])
            for length in range(1, len(names) + 1):
                yield (*table, *names[:length]), number
            value.read(line[assignment.end() :])


def _split(dotted: str) -> Key:
    return tuple(name.strip("\"'") for name in _NAMES.findall(dotted))


def _nested(names: Key, counts: dict[Key, int]) -> Key:
    """Return the key of a table; inside an array of tables, the table belongs to its latest element."""
    table: Key = ()
    for name in names[:-1]:
        table += (name,)
        if table in counts:
            table += (counts[table],)
    return table + names[-1:]


class _OpenValue:
    """True while a value goes on in the next line: an array, or a long string."""

    def __init__(self) -> None:
        self._depth = 0
        self._quotes = ""

    def __bool__(self) -> bool:
        return bool(self._depth or self._quotes)

    def read(self, line: str) -> None:
        at = 0
        while at < len(line):
            if self._quotes:
                end = line.find(self._quotes, at)
                while end > 0 and line[end - 1] == "\\" and self._quotes == '"""':
                    end = line.find(self._quotes, end + 1)
                if end < 0:
                    return
                at, self._quotes = end + 3, ""
                continue
            token = _TOKEN.search(line, at)
            if token is None:
                return
            at = token.end()
            if token[0] in ('"""', "'''"):
                self._quotes = token[0]
            elif token[0] in "[{":
                self._depth += 1
            elif token[0] in "]}":
                self._depth -= 1
