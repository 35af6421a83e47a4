"""Names that no other attempt has: nothing must be taken away before the next one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count


@dataclass(frozen=True, slots=True)
class Names:
    number: int

    @property
    def queue(self) -> str:
        return f"plain-q{self.number}"

    @property
    def locked(self) -> str:
        return f"plain-l{self.number}"

    @property
    def new(self) -> str:
        return f"plain-n{self.number}"

    @property
    def exchange(self) -> str:
        return f"plain-x{self.number}"

    @property
    def query(self) -> str:
        return f"own-query{self.number}"

    @property
    def sink(self) -> str:
        return f"own-sink{self.number}"

    @property
    def group(self) -> str:
        return f"own-group{self.number}"

    @property
    def in_paths(self) -> dict[str, str]:
        """The names that stand in paths of the HTTP API."""
        return {name: getattr(self, name) for name in ("queue", "new", "query", "group", "exchange")}

    def filled(self, needs: Iterable[str]) -> tuple[str, ...]:
        """The needs with these names.

        >>> Names(3).filled(["read queue {queue}"])
        ('read queue plain-q3',)
        """
        names = {name: getattr(self, name) for name in _NAMES}
        return tuple(need.format(**names) for need in needs)


_NAMES = ("queue", "locked", "new", "exchange", "query", "sink", "group")


def all_names() -> Iterator[Names]:
    return map(Names, count())
