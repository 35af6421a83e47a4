"""Prometheus' text format, version 0.0.4: the lines of metrics, their labels and histograms.

Owns the escaping of labels and the order of lines. Which metrics there are is left to `metric_tables`. The
rule: names of queues and of everything else may be any bytes, and every page can still be parsed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Final, Protocol

from leveret.fronts.http.json_replies import text

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_PLAIN: Final = re.compile(r"[ !#-\[\]-~]*").fullmatch
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def head(name: str, kind: str, help_text: str) -> str:
    """
    >>> head("rabbitmq_queues", "gauge", "Queues available")
    '# TYPE rabbitmq_queues gauge\\n# HELP rabbitmq_queues Queues available\\n'
    """
    return f"# TYPE {name} {kind}\n# HELP {name} {help_text}\n"


def labels(names: tuple[str, ...], values: Sequence[str]) -> str:
    """Return labels in braces. A value that is not UTF-8 is shown in base64, with RabbitMQ's words.

    >>> labels(("vhost", "queue"), ("/", 'a"b'))
    '{vhost="/",queue="a\\\\"b"}'
    """
    return _template(names) % tuple(map(_escaped, values))


@cache
def _template(names: tuple[str, ...]) -> str:
    return "{" + ",".join(f'{name}="%s"' for name in names) + "}"


def _escaped(value: str) -> str:
    return value if _PLAIN(value) else text(value).translate(_ESCAPES)


def sample(name: str, value: float, label: str = "") -> str:
    return f"{name}{label} {value}\n"


def rows(name: str, labelled: Iterable[tuple[str, Sequence[int]]], column: int) -> str:
    """Return a line for each row of numbers, with the number in one column; 0.2 µs for each line."""
    return "".join([f"{name}{label} {numbers[column]}\n" for label, numbers in labelled])


class Buckets(Protocol):
    """A histogram: `counts[n]` values lie above the bound before `bounds[n]` and not above `bounds[n]`."""

    @property
    def bounds(self) -> Sequence[int]: ...

    @property
    def counts(self) -> Sequence[int]:
        """One more than bounds: the values above the last bound come last."""

    @property
    def total(self) -> int:
        """The sum of all values."""


def histogram(name: str, help_text: str, view: Buckets, *, divisor: int) -> str:
    """Return the lines of a histogram; observed values are divided, for example microseconds by a million."""
    below, lines = 0, [head(name, "histogram", help_text)]
    for bound, count in zip(view.bounds, view.counts, strict=False):
        below += count
        lines.append(f'{name}_bucket{{le="{_divided(bound, divisor)}"}} {below}\n')
    below += view.counts[-1]
    lines.append(f'{name}_bucket{{le="+Inf"}} {below}\n')
    lines += [f"{name}_sum {_divided(view.total, divisor)}\n", f"{name}_count {below}\n"]
    return "".join(lines)


def _divided(value: int, divisor: int) -> float:
    return value if divisor == 1 else value / divisor


def by_reason(name: str, help_text: str, counts: Mapping[str, int]) -> str:
    """Return a counter with a line for each reason."""
    lines = (sample(name, count, labels(("reason",), (reason,))) for reason, count in counts.items())
    return head(name, "counter", help_text) + "".join(lines)
