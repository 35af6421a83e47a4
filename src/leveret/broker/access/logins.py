"""Logins: checks names and passwords without blocking the broker.

    logins.begin("ann", b"secret", origin=Origin("10.0.0.7"), done=lambda user: ...)

A login passes these steps: guest only from loopback, the delay after failures (`failed_logins`), the digest
of a password that was right before, and the hash. Hashing is slow, so the `Hasher` runs it on another thread.
`done` is called once, immediately or in a later turn, with the user or with None.
The rule: an answer reveals only whether name and password belong together. So names that do not exist are
hashed, delayed and counted like users.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from leveret.broker.access import passwords
from leveret.broker.access.accounts import GUEST, Accounts, User
from leveret.broker.access.failed_logins import FailedLogins
from leveret.broker.access.passwords import NOBODY_HASH, Verdict
from leveret.broker.access.tokens import Tokens
from leveret.broker.core import DefiningCore
from leveret.broker.definitions import Change

T = TypeVar("T")

Done: TypeAlias = Callable[[User | None], None]


class LoginCore(DefiningCore, Protocol):
    """The part of the broker that logins use."""

    accounts: Accounts

    def token(self) -> str:
        """Return a random name."""

    def note_failed_login(self, name: str, origin: Origin, cause: str) -> None: ...


class Origin(NamedTuple):
    """The network address from which a client logs in."""

    address: str = ""
    """The peer's address without the port."""
    loopback: bool = False
    protocol: str = ""


class Hasher(Protocol):
    """Runs slow jobs outside of the broker's thread."""

    def __call__(self, job: Callable[[], T], done: Callable[[T | None], None]) -> None:
        """Run `job`, then call `done` with its result in a turn of the broker.

        `done` is called with None if too many jobs are waiting or the job has failed.
        """


def hash_at_once(job: Callable[[], T], done: Callable[[T | None], None]) -> None:
    """Run `job` and call `done` before returning: a hasher without threads, for tests."""
    done(job())


@dataclass(slots=True, eq=False)
class _Attempt:
    name: str
    password: bytes
    digest: bytes
    origin: Origin
    source: object
    done: Done
    counts: bool = True
    """Whether the login counts towards the limits of waiting logins."""


class Logins:
    """The logins in progress, and the failures that delay later logins."""

    def __init__(self, broker: LoginCore, hasher: Hasher) -> None:
        self._broker = broker
        self._hasher = hasher
        limits = broker.limits
        self._failures = FailedLogins(
            1000 * limits.login_delay_max_ms,
            free_failures=limits.login_failures_free,
            forget_us=1_000_000 * limits.login_failures_kept_s,
            remembered_max=limits.logins_remembered_max,
        )
        self.tokens = Tokens(broker.accounts, now_us=broker.now_us, random=broker.token)
        self.counts: dict[str, tuple[int, int]] = {}
        """Number of logins that succeeded and that failed, by protocol."""
        self._waiting: Counter[object] = Counter()
        """Logins that wait for a delay or a hash, by source."""
        self._waiting_count = 0
        self._checking: dict[tuple[str, bytes, str], list[_Attempt]] = {}
        """Logins that wait for a hash, by name, digest and stored hash: equal logins share one hash."""

    def begin(self, name: str, password: bytes, *, origin: Origin, done: Done) -> None:
        done = partial(self._count, origin.protocol, done)
        if not self._may_come_from(name, origin):
            done(None)
            return
        source = self._failures.source(origin.address, name)
        digest = hashlib.sha256(password).digest()
        attempt = _Attempt(name, password, digest, origin, source, done)
        now_us = self._broker.now_us()
        delay_us = self._failures.delay_us(origin.address, name, now_us)
        if not delay_us and self._needs_no_hash(attempt):
            attempt.counts = False
            self._check(attempt)
            return
        limits = self._broker.limits
        if (
            self._waiting[source] >= limits.logins_waiting_by_source_max
            or self._waiting_count >= limits.logins_waiting_max
        ):
            self._broker.note_failed_login(name, origin, "too many logins wait, so it was not checked")
            done(None)
            return
        self._waiting[source] += 1
        self._waiting_count += 1
        if delay_us:
            self._broker.timers.set(attempt, now_us + delay_us, partial(self._check, attempt))
        else:
            self._check(attempt)

    def accept_certified(self, name: str, *, origin: Origin, done: Done) -> None:
        """Log in the user whom a verified certificate names, without a password."""
        if not self._may_come_from(name, origin):
            done(None)
            return
        user = self._broker.accounts.users.get(name)
        if user is None:
            self._broker.note_failed_login(name, origin, "no user has the name in the certificate")
        self._count(origin.protocol, done, user)

    def accept_token(self, word: str, *, origin: Origin, done: Done) -> None:
        """Log in the user who was given this token."""
        user = self.tokens.user_of(word)
        if user is None:
            self._broker.note_failed_login("", origin, "the token is unknown or has ended")
        elif not self._may_come_from(user.name, origin):
            user = None
        self._count(origin.protocol, done, user)

    def _may_come_from(self, name: str, origin: Origin) -> bool:
        if name != GUEST or origin.loopback:
            return True
        self._broker.note_failed_login(name, origin, "this user may log in from loopback only")
        return False

    def _count(self, protocol: str, done: Done, user: User | None) -> None:
        succeeded, failed = self.counts.get(protocol, (0, 0))
        self.counts[protocol] = (succeeded + (user is not None), failed + (user is None))
        done(user)

    def hash_password(self, password: bytes, done: Callable[[str | None], None]) -> None:
        """Hash a new password and call `done` with the hash, or with None if the hasher is overloaded."""
        self._hasher(partial(passwords.hash_password, password, self._salt()), done)

    def _needs_no_hash(self, attempt: _Attempt) -> bool:
        """Return whether the password is known to be right, or an equal login already waits for the hash.

        After a start, hundreds of clients of one user may connect at the same moment.
        """
        user = self._broker.accounts.users.get(attempt.name)
        if user is not None and hmac.compare_digest(user.known_digest, attempt.digest):
            return True
        return self._key(attempt, user) in self._checking

    def _key(self, attempt: _Attempt, user: User | None) -> tuple[str, bytes, str]:
        return attempt.name, attempt.digest, NOBODY_HASH if user is None else user.password_hash

    def _check(self, attempt: _Attempt) -> None:
        user = self._broker.accounts.users.get(attempt.name)
        if user is not None and hmac.compare_digest(user.known_digest, attempt.digest):
            self._end(attempt, user)
            return
        key = self._key(attempt, user)
        hashed = key[2]
        if key in self._checking:
            self._checking[key].append(attempt)
            return
        self._checking[key] = [attempt]
        job = partial(passwords.check, attempt.password, hashed, self._salt())
        self._hasher(job, partial(self._checked, key))

    def _checked(self, key: tuple[str, bytes, str], verdict: Verdict | None) -> None:
        name, digest, hashed = key
        attempts = self._checking.pop(key)
        user = self._broker.accounts.users.get(name)
        if (NOBODY_HASH if user is None else user.password_hash) != hashed:
            # The password was changed meanwhile, so check against the new one.
            for attempt in attempts:
                self._check(attempt)
            return
        cause = "no such user" if user is None else "wrong password"
        if verdict is None:
            user, cause = None, "the password could not be checked"
        elif not verdict.right:
            user = None
        elif user is not None:
            if verdict.replacement is not None:
                self._replace_hash(user, verdict.replacement)
            user.known_digest = digest
        for attempt in attempts:
            self._end(attempt, user, cause)

    def _end(self, attempt: _Attempt, user: User | None, cause: str = "") -> None:
        self._stop_waiting(attempt)
        address, name = attempt.origin.address, attempt.name
        if user is None:
            self._broker.note_failed_login(name, attempt.origin, cause)
            self._failures.failed(address, name, self._broker.now_us())
        else:
            self._failures.succeeded(address, name)
        attempt.done(user)

    def _stop_waiting(self, attempt: _Attempt) -> None:
        if not attempt.counts:
            return
        self._waiting_count -= 1
        self._waiting[attempt.source] -= 1
        if not self._waiting[attempt.source]:
            del self._waiting[attempt.source]

    def _replace_hash(self, user: User, hashed: str) -> None:
        """Store an Argon2id hash of the user's password, unless definitions can't be written at present."""
        if self._broker.definitions.refusal is not None:
            return
        before, user.password_hash = user.password_hash, hashed

        def undo() -> None:
            if user.password_hash == hashed:
                user.password_hash = before

        self._broker.define(Change(user.row()), undo=undo)

    def _salt(self) -> bytes:
        return self._broker.token().encode()
