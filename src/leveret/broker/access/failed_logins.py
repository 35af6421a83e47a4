"""The delay of logins after failed logins, counted by address and by user.

A failure counts for its address and for the user it names. So guessing is slow for many users from one
address, and for one user from many addresses. A user who has logged in from an address before has a count
of their own there: failures from elsewhere, or of other users at this address, do not delay that user.
`logins` does the waiting. The tables are bounded, and failures are forgotten after a while.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from ipaddress import IPv6Address, ip_address
from typing import Final, TypeAlias

FREE_FAILURES: Final = 10
"""Number of failures in a row without a delay: people mistype, and services run with old passwords."""
_FIRST_DELAY_US: Final = 100_000
DELAY_MAX_US: Final = 5_000_000
"""Default limit: half of the handshake's timeout, so that a login with the right password can succeed."""
FORGET_US: Final = 10 * 60 * 1_000_000
REMEMBERED_MAX: Final = 10_000
"""Number of addresses and users with failures, and of users who have logged in from an address."""
_IPV6_NETWORK_BITS: Final = 64
"""A client with one IPv6 address usually controls its /64 network."""

_Home: TypeAlias = tuple[str, bytes]
"""An address, and the digest of the name of a user who has logged in from there."""
_Key: TypeAlias = str | bytes | _Home
"""The key of a count: an address, the digest of a user's name, or both."""


class FailedLogins:
    """`failures.failed("10.0.0.7", "ann", now_us)`; later `failures.delay_us("10.0.0.7", "ann", now_us)`."""

    def __init__(
        self,
        delay_max_us: int = DELAY_MAX_US,
        *,
        free_failures: int = FREE_FAILURES,
        forget_us: int = FORGET_US,
        remembered_max: int = REMEMBERED_MAX,
    ) -> None:
        self._delay_max_us = delay_max_us
        self._free_failures = free_failures
        self._forget_us = forget_us
        self._remembered_max = remembered_max
        self._counts: OrderedDict[_Key, tuple[int, int]] = OrderedDict()
        """Number of failures in a row and time of the last one, oldest first."""
        self._homes: OrderedDict[_Home, None] = OrderedDict()

    def source(self, address: str, name: str) -> object:
        """Return the key under which this user's failures at this address are counted."""
        return self._keys(address, name)[0]

    def delay_us(self, address: str, name: str, now_us: int) -> int:
        """Return the delay of this user's next login from this address."""
        delay_us = 0
        for key in self._keys(address, name):
            count, last_us = self._counts.get(key, (0, 0))
            if count > self._free_failures and now_us - last_us < self._forget_us:
                doublings = min(count - self._free_failures - 1, self._delay_max_us.bit_length())
                delay_us = max(delay_us, min(_FIRST_DELAY_US << doublings, self._delay_max_us))
        return delay_us

    def failed(self, address: str, name: str, now_us: int) -> None:
        self._forget(now_us)
        for key in self._keys(address, name):
            count, _ = self._counts.pop(key, (0, 0))
            self._counts[key] = count + 1, now_us
        while len(self._counts) > self._remembered_max:
            self._counts.popitem(last=False)

    def succeeded(self, address: str, name: str) -> None:
        """Record that the user has logged in from this address, and clear the failures there."""
        home = _home(address, name)
        self._counts.pop(home, None)
        self._homes[home] = None
        self._homes.move_to_end(home)
        while len(self._homes) > self._remembered_max:
            self._homes.popitem(last=False)

    def _keys(self, address: str, name: str) -> tuple[_Key, ...]:
        home = _home(address, name)
        return (home,) if home in self._homes else home

    def _forget(self, now_us: int) -> None:
        while self._counts:
            _, last_us = next(iter(self._counts.values()))
            if now_us - last_us < self._forget_us:
                return
            self._counts.popitem(last=False)


def _home(address: str, name: str) -> _Home:
    """Return address and digest of a name; a digest, because clients choose how long names are."""
    return _network(address), hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()


def _network(address: str) -> str:
    """Return the addresses that one client may control: an IPv4 address or an IPv6 network.

    >>> [_network(address) for address in ("10.0.0.7", "::ffff:10.0.0.7", "2001:db8::1", "local")]
    ['10.0.0.7', '10.0.0.7', '2001:db8::', 'local']
    """
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        bits = 128 - _IPV6_NETWORK_BITS
        return str(IPv6Address(int(parsed) >> bits << bits))
    return str(parsed)
