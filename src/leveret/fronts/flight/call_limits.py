"""Limits how many calls to the Flight process run at once, and reads name and password of each.

Each call has a thread from its beginning, before its password is checked. So calls with a login that was
accepted lately have their own slots, which calls without one can't use up. `process` checks the login of
every call; this module only counts.
"""

from __future__ import annotations

import base64
import hashlib
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from pyarrow import flight

from leveret.fronts.flight.connection_limits import Limits

_VERIFIED_S: Final = 60.0
_LOGINS_MAX: Final = 1000


class Caller(flight.ServerMiddleware):  # type: ignore[misc]
    """Name and password of a call."""

    def __init__(self, user: str, password: bytes, ended: Callable[[], None]) -> None:
        self.user = user
        self.password = password
        self._ended = ended

    def call_completed(self, exception: Exception | None) -> None:
        self._ended()


class Callers(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Admits calls with a name and a password while a slot is free."""

    def __init__(self, refused: Callable[[], None], limits: Limits) -> None:
        """`refused` is called when a call with an unverified login finds no slot."""
        self._refused = refused
        self._limits = limits
        self._verified_slots = threading.BoundedSemaphore(limits.calls_max)
        self._unverified_slots = threading.BoundedSemaphore(limits.unverified_calls_max)
        self._verified: dict[bytes, float] = {}
        """Time until which a login counts as verified, by the hash of name and password."""

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> Caller:
        user, password = _credentials(headers)
        is_verified = self._verified.get(_digest(user, password), 0.0) > time.monotonic()
        if is_verified:
            slots, most = self._verified_slots, self._limits.calls_max
        else:
            slots, most = self._unverified_slots, self._limits.unverified_calls_max
        if not slots.acquire(blocking=False):
            if not is_verified:
                self._refused()
            raise flight.FlightUnavailableError(f"{most} calls are under way: try again later")
        return Caller(user, password, slots.release)

    def login_accepted(self, caller: Caller) -> None:
        """Count the caller's login as verified for a while."""
        if len(self._verified) >= _LOGINS_MAX:
            self._verified.clear()
        self._verified[_digest(caller.user, caller.password)] = time.monotonic() + _VERIFIED_S


def _digest(user: str, password: bytes) -> bytes:
    return hashlib.sha256(user.encode("utf-8", "surrogateescape") + b":" + password).digest()


def _credentials(headers: dict[str, list[str]]) -> tuple[str, bytes]:
    for name, values in headers.items():
        if name.lower() == "authorization" and values[0].startswith("Basic "):
            try:
                user, _, password = base64.b64decode(values[0][6:]).partition(b":")
            except ValueError:
                break
            return user.decode("utf-8", "replace"), password
    raise flight.FlightUnauthenticatedError("a name and a password are needed: authorization: Basic ...")
