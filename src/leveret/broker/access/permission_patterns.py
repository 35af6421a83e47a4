"""Permission patterns: regular expressions that are searched for in the names of queues and exchanges.

RE2 does the search, because its time is linear in the length of the name. Python's `re` would try 2^n ways
through `(a+)+$` and stop the broker for hours. In exchange, RE2 has no look-around and no back-references;
`check_pattern` explains this when such a pattern is set. As in RabbitMQ, patterns and names are compared byte
by byte. The rule: `matches` never raises, and an invalid pattern matches no name.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import re2

from leveret.broker.canonical import to_bytes
from leveret.broker.errors import PreconditionFailed

_NAME_MAX: Final = 255
"""The longest name in AMQP, a short string (section 4.2.5.3)."""
_MEMORY_BYTES_MAX: Final = 1 << 20
"""Limit of one compiled pattern's memory. Within it, a search in 255 bytes takes 10 ms at most."""


def _options() -> Any:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_capture = True
    options.log_errors = False
    options.max_mem = _MEMORY_BYTES_MAX
    return options


def check_pattern(what: str, pattern: str) -> None:
    """Raise `PreconditionFailed` with the reason if a pattern is not valid: `check_pattern("read", "(")`."""
    try:
        _compiled(pattern)
    except (re2.error, UnicodeEncodeError) as error:
        reason = error.args[0] if isinstance(error, re2.error) else str(error)
        reason_text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else reason
        raise PreconditionFailed(
            f"{what}: '{pattern}' is not a regular expression of RE2: {reason_text}. "
            "RE2 has no look-around ('(?=', '(?!', '(?<=') and no back-references ('\\1')"
        ) from None


def matches(pattern: str, name: str) -> bool:
    """Return whether the pattern occurs in the name. The empty pattern matches only the empty name.

    >>> matches("^own-", "own-queue"), matches("^own-", "another"), matches("", "queue")
    (True, False, False)
    """
    if not pattern:
        return not name
    if len(name) > _NAME_MAX:
        return False
    return _occurs(pattern, name)


@lru_cache(maxsize=4096)
def _occurs(pattern: str, name: str) -> bool:
    try:
        return _compiled(pattern).search(to_bytes(name)) is not None
    except (re2.error, UnicodeEncodeError):
        return False


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> Any:
    return re2.compile(to_bytes(pattern), _options())
