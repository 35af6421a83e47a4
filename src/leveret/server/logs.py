"""The broker's log: its level, its form, and where it goes.

Owns the handler of the logger `leveret` and of the libraries below it. What is logged is left to those who
log. The rule: a message never holds a password, a hash, a token or the body of a message.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final, Protocol

_TEXT: Final = "%(asctime)s %(levelname)s %(message)s"
_OWN_FIELDS: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes that every record has. All others are fields that the caller has added with `extra`."""


class Settings(Protocol):
    """The settings `log.level`, `log.format` and `log.file`, by name."""

    def __getitem__(self, name: str) -> Any: ...


class JsonLines(logging.Formatter):
    """A JSON object for each record, on one line."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
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
    handler: logging.Handler = logging.FileHandler(file) if file else logging.StreamHandler()
    handler.setFormatter(JsonLines() if settings["log.format"] == "json" else logging.Formatter(_TEXT))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(settings["log.level"].upper())
