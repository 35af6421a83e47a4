"""The broker's log: its level, its form, and where it goes.

Owns the handler of the logger `leveret` and of the libraries below it. What is logged is left to those who
log; `event_log` has what clients do. The rules: a message never holds a password, a hash, a token or the body
of a message. A record is one line, whatever names clients choose: control characters are escaped, and long
texts are cut.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final, Protocol

_TEXT: Final = "%(asctime)s %(levelname)s %(message)s"
_MESSAGE_MAX: Final = 4_000
"""Characters of a message. Names of queues and connections may be far longer."""
_TAIL: Final = 500
"""Characters at the end of a message that is cut: there is often the reason."""
NAME_MAX: Final = 200
"""Characters of a name that a client has chosen."""
_OWN_FIELDS: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes that every record has. All others are fields that the caller has added with `extra`."""


class Settings(Protocol):
    """The settings `log.level`, `log.format` and `log.file`, by name."""

    def __getitem__(self, name: str) -> Any: ...


def cut(text: str, most: int = NAME_MAX) -> str:
    """
    >>> cut("a" * 5, 3)
    'aaa… (2 more)'
    """
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most} more)"


def printable(text: str) -> str:
    """Return a text whose characters all have a place on the line: no line ends, no terminal escapes.

    >>> print(printable("a\\nb\\x1b[31m"))
    a\\nb\\x1b[31m
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text
    )


def _message_of(record: logging.LogRecord) -> str:
    """Return the message of a record; without the middle if it is too long."""
    message = record.getMessage()
    if len(message) <= _MESSAGE_MAX:
        return message
    left_out = len(message) - _MESSAGE_MAX
    return f"{message[: _MESSAGE_MAX - _TAIL]} … ({left_out} characters) … {message[-_TAIL:]}"


class TextLines(logging.Formatter):
    """A line for each record: time, level, message. The lines of a traceback are indented."""

    def __init__(self) -> None:
        super().__init__(_TEXT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the name is logging's
        record.message = printable(_message_of(record))
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802  # the name is logging's
        lines = super().formatException(ei).splitlines()
        return "\n".join(f"  {printable(line)}" for line in lines)


class JsonLines(logging.Formatter):
    """A JSON object for each record, on one line, in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message_of(record),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        fields |= {name: value for name, value in vars(record).items() if name not in _OWN_FIELDS}
        return json.dumps(fields, default=str)


def set_up(settings: Settings) -> None:
    """Send log messages where `log.level`, `log.format` and `log.file` say; raise `OSError` for a bad file.

    A second call replaces what the first one has set up, and opens the file again: so logs can be rotated.
    """
    file = settings["log.file"]
    handler: logging.Handler = (
        logging.FileHandler(file, encoding="utf-8", errors="backslashreplace")
        if file
        else logging.StreamHandler()
    )
    handler.setFormatter(JsonLines() if settings["log.format"] == "json" else TextLines())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(settings["log.level"].upper())
