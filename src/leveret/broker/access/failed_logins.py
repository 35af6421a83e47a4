"""How long a login waits because logins before it have failed: counts by address and by user.

Owns the counts and the rule who is counted together. A failure counts for the address that it came from and
for the user that it named: it must be slow to guess at many users from one address, and at one user from many
addresses. A user who has logged in from an address before is counted alone there. Failures from elsewhere do
not delay that user, nor do failures of others at the same address. Waiting itself is left to `logins`. The
tables are bounded, and failures are forgotten after a while.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from ipaddress import IPv6Address, ip_address
from typing import Final, TypeAlias

FREE: Final = 10
"""So many failures in a row cost no delay: people mistype, and services are deployed with old passwords."""
_FIRST_DELAY_US: Final = 100_000
DELAY_MAX_US: Final = 5_000_000
"""The default: half of what a handshake may take, so that a login with the right password still gets in."""
FORGET_US: Final = 10 * 60 * 1_000_000
_COUNTS_MAX: Final = 10_000
_HOMES_MAX: Final = 10_000
_IPV6_NETWORK_BITS: Final = 64
"""Whoever has one IPv6 address usually has all of its /64 network."""

_Home: TypeAlias = tuple[str, bytes]
"""An address, and the digest of the name of a user who has logged in from there."""
_Key: TypeAlias = str | bytes | _Home
"""What failures are counted of: an address, the digest of a user's name, or both."""


class FailedLogins:
    """`failures.failed("10.0.0.7", "ann", now_us)`; later `failures.delay_us("10.0.0.7", "ann", now_us)`."""

    def __init__(self, delay_max_us: int = DELAY_MAX_US) -> None:
        self._delay_max_us = delay_max_us
        self._counts: OrderedDict[_Key, tuple[int, int]] = OrderedDict()
        """How many failures in a row, and when the last one was; the oldest first."""
        self._homes: OrderedDict[_Home, None] = OrderedDict()

    def source(self, address: str, name: str) -> object:
        """Return who is counted together with this user at this address."""
        return self._keys(address, name)[0]

    def delay_us(self, address: str, name: str, now_us: int) -> int:
        """Return how long the next login of this user from this address has to wait."""
        found = 0
        for key in self._keys(address, name):
            count, last_us = self._counts.get(key, (0, 0))
            if count > FREE and now_us - last_us < FORGET_US:
                doublings = min(count - FREE - 1, self._delay_max_us.bit_length())
                found = max(found, min(_FIRST_DELAY_US << doublings, self._delay_max_us))
        return found

    def failed(self, address: str, name: str, now_us: int) -> None:
        self._forget(now_us)
        for key in self._keys(address, name):
            count, _ = self._counts.pop(key, (0, 0))
            self._counts[key] = count + 1, now_us
        while len(self._counts) > _COUNTS_MAX:
            self._counts.popitem(last=False)

    def succeeded(self, address: str, name: str) -> None:
        """The user is at home at this address, with no failures there."""
        home = _home(address, name)
        self._counts.pop(home, None)
        self._homes[home] = None
        self._homes.move_to_end(home)
        while len(self._homes) > _HOMES_MAX:
            self._homes.popitem(last=False)

    def _keys(self, address: str, name: str) -> tuple[_Key, ...]:
        home = _home(address, name)
        return (home,) if home in self._homes else home

    def _forget(self, now_us: int) -> None:
        while self._counts:
            _, last_us = next(iter(self._counts.values()))
            if now_us - last_us < FORGET_US:
                return
            self._counts.popitem(last=False)


def _home(address: str, name: str) -> _Home:
    """Names are kept as digests: a client chooses how long they are."""
    return _network(address), hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()


def _network(address: str) -> str:
    """Return what one client may have all of: an IPv4 address, or an IPv6 network.

    >>> [_network(each) for each in ("10.0.0.7", "::ffff:10.0.0.7", "2001:db8::1", "local")]
    ['10.0.0.7', '10.0.0.7', '2001:db8::', 'local']
    """
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        bits = 128 - _IPV6_NETWORK_BITS
        return str(IPv6Address(int(found) >> bits << bits))
    return str(found)
