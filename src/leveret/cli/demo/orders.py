"""The orders of the demo: identical in each run, so that the expected results are known.

An order is a number and a body. A few are invalid (malformed JSON, or an amount below 0), a few go to an
exchange without bindings, some fail on the first attempt, and one makes a member hang. The rule: everything
follows from the number of orders, so workers, publishers and verdict agree without communicating.
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
ORDERS_MIN: Final = 1_000
# How many orders are unroutable, are not JSON, or have an amount below 0.
UNROUTABLE: Final = 50
MALFORMED: Final = 100
NEGATIVE: Final = 100
PUBLISHERS: Final = 3
GATE_SHARE: Final = 0.5
"""Publishers wait at this share of the orders until a worker has been killed."""
CRASH_SHARE: Final = 0.6
"""The broker is killed when this share of the orders is confirmed."""
_UNROUTABLE_UNTIL: Final = 0.3
"""Unroutable orders come before the crash: an order that is sent and returned again would count twice."""
_HANGS_FROM: Final = 0.8
"""The order that makes a member hang comes after the crash, so it is delivered only once."""
_SEED: Final = 20261115
_FAILURE_INTERVAL: Final = 50
_CUSTOMERS: Final = 500
_COUNTRIES: Final = ("AT", "DE", "ES", "FR", "IT", "NL", "PL", "SE")
_FIRST_TIME: Final = datetime(2026, 11, 1, tzinfo=UTC)
_SPAN_S: Final = 3 * 86_400
_NUMBER: Final = re.compile(rb'"order_id": (\d+)')


class Order(NamedTuple):
    number: int
    customer: str
    body: bytes
    routable: bool


@dataclass(frozen=True)
class Plan:
    """Which orders are published, and what must become of them: `Plan(200_000)`."""

    orders: int

    @cached_property
    def unroutable(self) -> frozenset[int]:
        return frozenset(self._random("unroutable").sample(range(self._share(_UNROUTABLE_UNTIL)), UNROUTABLE))

    @cached_property
    def malformed(self) -> frozenset[int]:
        """Return the orders whose body is not JSON."""
        return frozenset(self._invalid_numbers[:MALFORMED])

    @cached_property
    def negative(self) -> frozenset[int]:
        """Return the orders with an amount below 0."""
        return frozenset(self._invalid_numbers[MALFORMED:])

    @cached_property
    def invalid(self) -> frozenset[int]:
        return self.malformed | self.negative

    @cached_property
    def valid(self) -> frozenset[int]:
        return frozenset(range(self.orders)) - self.unroutable - self.invalid

    @cached_property
    def hangs(self) -> int:
        """Return the order that a member of the group receives and never settles."""
        numbers = range(self._share(_HANGS_FROM), self.orders)
        return next(number for number in numbers if number in self.valid)

    @property
    def routable(self) -> int:
        return self.orders - UNROUTABLE

    @property
    def window(self) -> int:
        """Return each publisher's window: small enough that orders are left to publish at the crash."""
        return min(1000, self.orders // (4 * PUBLISHERS))

    def of(self, publisher: int) -> Iterator[Order]:
        """Yield the orders of one publisher, in the sequence in which it sends them."""
        rng = self._random(f"publisher {publisher}")
        for number in range(publisher, self.orders, PUBLISHERS):
            customer = f"customer-{rng.randrange(_CUSTOMERS)}"
            yield Order(number, customer, self._body(number, customer, rng), number not in self.unroutable)

    def _body(self, number: int, customer: str, rng: random.Random) -> bytes:
        cents = rng.randrange(100, 50_000)
        if number in self.negative:
            cents = -cents
        at = _FIRST_TIME + timedelta(seconds=rng.randrange(_SPAN_S))
        country = _COUNTRIES[rng.randrange(len(_COUNTRIES))]
        text = (
            f'{{"order_id": {number}, "customer": "{customer}", "country": "{country}", '
            f'"amount": {cents / 100}, "at": "{at:%Y-%m-%dT%H:%M:%SZ}"}}'
        )
        return (text[: len(text) // 2] if number in self.malformed else text).encode()

    @cached_property
    def _invalid_numbers(self) -> list[int]:
        count = MALFORMED + NEGATIVE
        candidates = self._random("poisonous").sample(range(self.orders), count + UNROUTABLE)
        return [number for number in candidates if number not in self.unroutable][:count]

    def _share(self, share: float) -> int:
        return int(self.orders * share)

    def _random(self, purpose: str) -> random.Random:
        return random.Random(f"{_SEED} {self.orders} {purpose}")


def order_number(body: bytes) -> int:
    """Return the number of an order, even if its body is malformed."""
    match = _NUMBER.search(body)
    assert match is not None, body
    return int(match[1])


def fails_at_first(number: int) -> bool:
    """Return whether the first attempt fails, as if a service did not answer in time."""
    return zlib.crc32(b"%d" % number) % _FAILURE_INTERVAL == 0
