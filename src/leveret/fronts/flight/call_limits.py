"""Who calls the Flight process, as the call says itself, and how many calls are under way at once.

Each call has a thread from its beginning, before anybody knows whether its password is good. So calls of
those who have logged in just now, and calls of all others, have slots of their own: strangers can't use up
the slots of clients. Whether a login is good is asked by `process`, for each call; nobody is let in here.
"""

from __future__ import annotations

import base64
import hashlib
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from pyarrow import flight

CALLS_MAX: Final = 512
"""Of those who have logged in: each holds up to some MiB of what it reads or writes."""
STRANGERS_MAX: Final = 64
"""Calls of which nobody knows yet whether their password is good."""
_KNOWN_S: Final = 60.0
_KNOWN_MAX: Final = 1000


class Caller(flight.ServerMiddleware):  # type: ignore[misc]
    """The name and the password that came with a call."""

    def __init__(self, user: str, password: bytes, ended: Callable[[], None]) -> None:
        self.user = user
        self.password = password
        self._ended = ended

    def call_completed(self, exception: Exception | None) -> None:
        self._ended()


class Callers(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Lets calls with a name and a password begin, up to so many at once."""

    def __init__(self, crowded: Callable[[], None]) -> None:
        """`crowded` is called when strangers have to be sent away."""
        self._crowded = crowded
        self._clients = threading.BoundedSemaphore(CALLS_MAX)
        self._strangers = threading.BoundedSemaphore(STRANGERS_MAX)
        self._known: dict[bytes, float] = {}

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> Caller:
        user, password = _credentials(headers)
        is_known = self._known.get(_digest(user, password), 0.0) > time.monotonic()
        slots, most = (self._clients, CALLS_MAX) if is_known else (self._strangers, STRANGERS_MAX)
        if not slots.acquire(blocking=False):
            if not is_known:
                self._crowded()
            raise flight.FlightUnavailableError(f"{most} calls are under way: try again later")
        return Caller(user, password, slots.release)

    def welcome(self, caller: Caller) -> None:
        """The login of this caller is good: further calls like it are no strangers' for a while."""
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known[_digest(caller.user, caller.password)] = time.monotonic() + _KNOWN_S


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
