"""The orders of the demo: the same ones each time, so that everybody knows what must come of them.

An order is a number and a body. A few are poisonous (torn JSON, or an amount below 0), a few go to an
exchange that nobody has bound a queue to, some fail at the first try, and one hangs. The rule: all of that
follows from the number of orders alone, so that workers, publishers and verdict agree without talking.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Final, NamedTuple

ORDERS: Final = 200_000
FEWEST: Final = 1_000
UNROUTABLE: Final = 50
TORN: Final = 100
UNPAID: Final = 100
PUBLISHERS: Final = 3
GATE: Final = 0.5
"""Publishers go on beyond this share when a worker has been killed."""
CRASH: Final = 0.6
"""The broker is killed when this share is confirmed."""
_UNROUTABLE_UNTIL: Final = 0.3
"""Returned before the crash: what is sent again, and returned again, would be counted twice."""
_HANGS_FROM: Final = 0.8
"""Behind the crash: it is delivered once, to one member."""
_SEED: Final = 20261115
_FAILS_EACH: Final = 50
_CUSTOMERS: Final = 500
_COUNTRIES: Final = ("AT", "DE", "ES", "FR", "IT", "NL", "PL", "SE")
_FIRST: Final = datetime(2026, 11, 1, tzinfo=UTC)
_SPAN_S: Final = 3 * 86_400
_NUMBER: Final = re.compile(rb'"order_id": (\d+)')


class Order(NamedTuple):
    number: int
    customer: str
    body: bytes
    routable: bool


@dataclass(frozen=True)
class Plan:
    """`Plan(200_000)`: what is published, and what must come of it."""

    orders: int

    @cached_property
    def unroutable(self) -> frozenset[int]:
        return frozenset(self._chance("unroutable").sample(range(self._share(_UNROUTABLE_UNTIL)), UNROUTABLE))

    @cached_property
    def torn(self) -> frozenset[int]:
        """Those whose body is not JSON."""
        return frozenset(self._bad[:TORN])

    @cached_property
    def unpaid(self) -> frozenset[int]:
        """Those with an amount below 0."""
        return frozenset(self._bad[TORN:])

    @cached_property
    def poisonous(self) -> frozenset[int]:
        return self.torn | self.unpaid

    @cached_property
    def valid(self) -> frozenset[int]:
        return frozenset(range(self.orders)) - self.unroutable - self.poisonous

    @cached_property
    def hangs(self) -> int:
        """The order that a member of the group takes and never settles."""
        return next(n for n in range(self._share(_HANGS_FROM), self.orders) if n in self.valid)

    @property
    def routable(self) -> int:
        return self.orders - UNROUTABLE

    @property
    def window(self) -> int:
        """Of each publisher: small enough that there is something left to publish at the crash."""
        return min(1000, self.orders // (4 * PUBLISHERS))

    def of(self, publisher: int) -> Iterator[Order]:
        """What one of the publishers sends, in its order."""
        chance = self._chance(f"publisher {publisher}")
        for number in range(publisher, self.orders, PUBLISHERS):
            customer = f"customer-{chance.randrange(_CUSTOMERS)}"
            yield Order(number, customer, self._body(number, customer, chance), number not in self.unroutable)

    def _body(self, number: int, customer: str, chance: random.Random) -> bytes:
        cents = chance.randrange(100, 50_000)
        if number in self.unpaid:
            cents = -cents
        at = _FIRST + timedelta(seconds=chance.randrange(_SPAN_S))
        country = _COUNTRIES[chance.randrange(len(_COUNTRIES))]
        text = (
            f'{{"order_id": {number}, "customer": "{customer}", "country": "{country}", '
            f'"amount": {cents / 100}, "at": "{at:%Y-%m-%dT%H:%M:%SZ}"}}'
        )
        return (text[: len(text) // 2] if number in self.torn else text).encode()

    @cached_property
    def _bad(self) -> list[int]:
        chosen = (n for n in self._chance("poisonous").sample(range(self.orders), TORN + UNPAID + UNROUTABLE))
        return [n for n in chosen if n not in self.unroutable][: TORN + UNPAID]

    def _share(self, share: float) -> int:
        return int(self.orders * share)

    def _chance(self, what: str) -> random.Random:
        return random.Random(f"{_SEED} {self.orders} {what}")


def number_of(body: bytes) -> int:
    """Also of an order that is torn."""
    found = _NUMBER.search(body)
    assert found is not None, body
    return int(found[1])


def fails_at_first(number: int) -> bool:
    """As if a service that it needs did not answer in time."""
    return zlib.crc32(b"%d" % number) % _FAILS_EACH == 0
