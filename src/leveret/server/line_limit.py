"""Limits how many lines of one kind the log gets, so that no client can fill the disk with log lines.

Each source of lines, such as a client's address, has its own limit, and all sources together have one.
Further lines are only counted; one line at the end of the period says how many there were, and from where.
The rule: nothing is left out without being counted.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from leveret.server.logs import cut

Later: TypeAlias = Callable[[float, Callable[[], None]], object]
"""Calls a function after some seconds: `loop.call_later`."""

_PERIOD_S: Final = 60.0
_LINES_BY_SOURCE_MAX: Final = 10
_LINES_MAX: Final = 100
_SOURCES_NAMED_MAX: Final = 3
_SOURCES_MAX: Final = 1_000
"""Number of sources that are counted one by one."""
_OTHERS: Final = "other addresses"


class LineLimit:
    """`limit.log("10.0.0.7", "login failed: user %r", "ann")` logs a warning, or counts the line."""

    def __init__(self, log: logging.Logger, what: str, *, later: Later) -> None:
        """`what` is the plural of an event, as in "30 more failed logins"."""
        self._log = log
        self._what = what
        self._later = later
        self._logged: Counter[str] = Counter()
        """Number of lines in this period by source. Empty between periods."""
        self._left_out: Counter[str] = Counter()

    def log(
        self, source: str, message: str, *arguments: object, fields: Mapping[str, object] | None = None
    ) -> None:
        """Log a warning with fields for JSON, or count it if the limit is reached."""
        if not self._logged:
            self._later(_PERIOD_S, self.end_period)
        if self._logged[source] < _LINES_BY_SOURCE_MAX and self._logged.total() < _LINES_MAX:
            self._logged[source] += 1
            self._log.warning(message, *arguments, extra=dict(fields or {}))
        else:
            is_known = source in self._left_out or len(self._left_out) < _SOURCES_MAX
            self._left_out[source if is_known else _OTHERS] += 1

    def end_period(self) -> None:
        """Log how many lines were left out, and begin to count from zero."""
        left_out, self._left_out = self._left_out, Counter()
        self._logged.clear()
        if left_out:
            first = left_out.most_common(_SOURCES_NAMED_MAX)
            named = [f"{count} from {cut(source)}" for source, count in first]
            rest = left_out.total() - sum(count for _, count in first)
            self._log.warning(
                "%d more %s within %d s: %s",
                left_out.total(),
                self._what,
                _PERIOD_S,
                ", ".join([*named, f"{rest} from {_OTHERS}"] if rest else named),
                extra={"left_out": left_out.total()},
            )
