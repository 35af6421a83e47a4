"""Bearer tokens: random words that stand for a login with name and password, for a limited time.

Owns which tokens there are, and when they end: after their time, with the user, with a change of the user's
password or tags, and when too many newer ones exist. Who gets a token is left to `logins` and the HTTP API.
The rules: a token is kept as its digest only, in memory only; so no file, log or report can reveal one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from leveret.broker.access.accounts import Accounts, User

OF_USER_MAX: Final = 100
"""Tokens of one user; a further one ends the user's oldest."""
ALL_MAX: Final = 10_000
"""Tokens of all users; a further one ends the oldest."""


@dataclass(frozen=True, slots=True)
class _Token:
    user: User
    logins_version: int
    """The user's `logins_version` when the token was made."""
    ends_us: int


class Tokens:
    """`word = tokens.issue(user, life_s=3600)`; later `tokens.user_of(word)`."""

    def __init__(self, accounts: Accounts, *, now_us: Callable[[], int], random: Callable[[], str]) -> None:
        self._accounts = accounts
        self._now_us = now_us
        self._random = random
        self._tokens: dict[bytes, _Token] = {}
        """By digest, oldest first. How long a lookup takes tells nothing about a token: one more right
        character changes all of its digest."""
        self._by_user: dict[str, dict[bytes, None]] = {}
        """Digests of the tokens of each user, oldest first."""

    def __len__(self) -> int:
        return len(self._tokens)

    def issue(self, user: User, *, life_s: float) -> str:
        """Return a new token of this user."""
        own = self._by_user.get(user.name, {})
        for digest in [digest for digest in own if not self._holds(self._tokens[digest])]:
            self._drop(digest)
        if len(own) >= OF_USER_MAX:
            self._drop(next(iter(own)))
        elif len(self._tokens) >= ALL_MAX:
            self._drop(next(iter(self._tokens)))
        word = self._random()
        digest = _digest(word)
        ends_us = self._now_us() + int(life_s * 1_000_000)
        self._tokens[digest] = _Token(user, user.logins_version, ends_us)
        self._by_user.setdefault(user.name, {})[digest] = None
        return word

    def user_of(self, word: str) -> User | None:
        """Return the user of a token, or None if the token is unknown or has ended."""
        digest = _digest(word)
        token = self._tokens.get(digest)
        if token is None:
            return None
        if not self._holds(token):
            self._drop(digest)
            return None
        return token.user

    def end(self, word: str) -> None:
        self._drop(_digest(word))

    def end_all(self, user: User) -> None:
        for digest in list(self._by_user.get(user.name, ())):
            self._drop(digest)

    def _drop(self, digest: bytes) -> None:
        token = self._tokens.pop(digest, None)
        if token is None:
            return
        own = self._by_user[token.user.name]
        del own[digest]
        if not own:
            del self._by_user[token.user.name]

    def _holds(self, token: _Token) -> bool:
        user = token.user
        return (
            self._now_us() < token.ends_us
            and self._accounts.users.get(user.name) is user
            and user.logins_version == token.logins_version
        )


def _digest(word: str) -> bytes:
    return hashlib.sha256(word.encode("utf-8", "surrogatepass")).digest()
