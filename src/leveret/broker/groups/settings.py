"""The settings of a group and their checks.

Every setting can be changed while the group runs, and applies at once, also to deliveries in flight. Members
give settings as arguments of `basic.consume`, operators over HTTP and on the command line. All use
`Settings.changed`, so that there is one list of names and one error text for each mistake.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from leveret.broker.canonical import Value
from leveret.broker.errors import PreconditionFailed

CONCURRENT: Final = "concurrent"
ORDERLY: Final = "orderly"
QUERY: Final = "query"
"""The mode of a Spark query's group: the query reads by offset and reports its progress."""
MODES: Final = (CONCURRENT, ORDERLY)

ROCKETMQ_DELAYS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
ROCKETMQ_FIRST_LEVEL: Final = 3
TIME_MS_MAX: Final = 315_360_000_000
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TIME: Final = re.compile(r"([0-9]{1,12})(ms|s|m|h|d)")

ARGUMENTS: Final = {
    "x-group-mode": "mode",
    "x-group-max-span": "max_span",
    "x-group-consume-timeout": "consume_timeout_ms",
    "x-group-max-reconsume": "max_reconsume",
    "x-group-delays": "delays",
    "x-group-first-level": "first_level",
}
"""Arguments of `basic.consume` and the settings that they stand for."""


class BadSetting(PreconditionFailed):
    """A setting of a group is unknown or has an invalid value; nothing was changed."""


class Settings(msgspec.Struct, frozen=True):
    """`settings.changed({"max_span": 500})` returns a copy, or raises `BadSetting`."""

    mode: str = CONCURRENT
    max_span: int = 2000
    """Deliveries are at most this many messages beyond the watermark: the lowest message that is
    neither settled nor sent back."""
    consume_timeout_ms: int = 900_000
    """Timeout of deliveries in concurrent mode; 0 for no limit."""
    max_reconsume: int = 16
    """How often a message may be redelivered before it is dead-lettered; -1 for no limit."""
    delays_ms: tuple[int, ...] = ()
    """The delay of each level."""
    first_level: int = ROCKETMQ_FIRST_LEVEL
    """The level of the first return; each further return is a level higher."""
    paused: bool = False

    @property
    def delivery_limit(self) -> int | None:
        return None if self.max_reconsume < 0 else self.max_reconsume

    @property
    def delays_returns(self) -> bool:
        return True

    @property
    def timeout_action(self) -> str:
        return "retry"

    def retry_delay_after(self, returns: int) -> int:
        """Return the retry delay in milliseconds of a message that was returned `returns` times before.

        >>> Settings.default().retry_delay_after(0), Settings.default().retry_delay_after(99)
        (10000, 7200000)
        """
        return self.delays_ms[min(self.first_level - 1 + returns, len(self.delays_ms) - 1)]

    @classmethod
    def default(cls, mode: str = CONCURRENT) -> Settings:
        return cls(mode=mode, delays_ms=_delays(ROCKETMQ_DELAYS))

    def changed(self, changes: Mapping[str, Any]) -> Settings:
        """Return the settings with these values, checked; a new delay table begins with its first level."""
        values: dict[str, Any] = {}
        for name, value in changes.items():
            check = _CHECKS.get(name)
            if check is None:
                known = ", ".join(sorted(_CHECKS))
                raise BadSetting(f"a group has no setting '{name}'; its settings are {known}")
            values[name] = check(name, value)
        if "delays" in values:
            values["delays_ms"] = values.pop("delays")
            values.setdefault("first_level", 1)
        return msgspec.structs.replace(self, **values)

    def shown(self) -> dict[str, Any]:
        """Return the settings as operators see and set them."""
        return {
            "mode": self.mode,
            "max_span": self.max_span,
            "consume_timeout_ms": self.consume_timeout_ms,
            "max_reconsume": self.max_reconsume,
            "delays": list(self.delays_ms),
            "first_level": self.first_level,
            "paused": self.paused,
        }


def of_arguments(table: Mapping[str, Value]) -> dict[str, Any]:
    """Return the settings that the arguments of a `basic.consume` ask for."""
    return {setting: table[argument] for argument, setting in ARGUMENTS.items() if argument in table}


def _mode(name: str, value: Any) -> str:
    if value not in MODES:
        raise BadSetting(f"a group's mode is {_shown(value)}; it can be {' or '.join(MODES)}")
    return str(value)


def _number(minimum: int, meaning: str) -> Any:
    def check(name: str, value: Any) -> int:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or not minimum <= value <= TIME_MS_MAX:
            raise BadSetting(f"{name} is {_shown(value)}; it must be {meaning}")
        return int(value)

    return check


def _boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise BadSetting(f"{name} is {_shown(value)}; it must be true or false")
    return value


def _delays(value: Any, name: str = "delays") -> tuple[int, ...]:
    listed = value.split() if isinstance(value, str) else value
    delays_ms = [_delay(name, delay) for delay in (listed if isinstance(listed, list | tuple) else ())]
    if not delays_ms:
        raise BadSetting(f"{name} is {_shown(value)}; a group needs at least one delay, like 10s 30s 1m")
    return tuple(delays_ms)


def _delay(name: str, value: Any) -> int:
    time = _TIME.fullmatch(value) if isinstance(value, str) else None
    delay_ms = value if time is None else int(time[1]) * _UNITS_MS[time[2]]
    is_whole = isinstance(delay_ms, int) and not isinstance(delay_ms, bool)
    if not is_whole or not 0 <= delay_ms <= TIME_MS_MAX:
        raise BadSetting(f"{name} contains {_shown(value)}; a delay is a time like 10s, or milliseconds")
    return int(delay_ms)


def _shown(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value)


_CHECKS: Final[Mapping[str, Any]] = {
    "mode": _mode,
    "max_span": _number(1, "a whole number of at least 1"),
    "consume_timeout_ms": _number(0, "a number of milliseconds, or 0 for no limit"),
    "max_reconsume": _number(-1, "a whole number, or -1 for no limit"),
    "delays": lambda name, value: _delays(value, name),
    "first_level": _number(1, "a level of the delay table, counted from 1"),
    "paused": _boolean,
}
