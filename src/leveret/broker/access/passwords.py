"""Password hashes: pure functions that make and check them.

The functions are slow; `logins` runs them on another thread. New hashes are Argon2id in the standard text
form: `$argon2id$v=19$m=19456,t=2,p=1$salt$hash`. Hashes of older versions of Leveret are
`scrypt$salt$hash`, both in hexadecimal. They are still accepted, and `check` returns an Argon2id hash to
replace them.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final, NamedTuple

from argon2 import low_level
from argon2.exceptions import VerificationError

_PASSES: Final = 2
_MEMORY_KIB: Final = 19 << 10
"""With one lane, the minimum that OWASP recommends: 21 ms of one processor (measured in decision 34)."""
_CURRENT: Final = f"$argon2id$v=19$m={_MEMORY_KIB},t={_PASSES},p=1$"
_SALT_BYTES: Final = 16
_HASH_BYTES: Final = 32
_SCRYPT_COST: Final = {"n": 1 << 12, "r": 8, "p": 1}

GUEST_HASH: Final = (
    "$argon2id$v=19$m=8,t=1,p=1$bGV2ZXJldC1ndWVzdC0wMA$8JSGC5y2k+ue6Zu0QHCAl4q6cK3WdRRN5fIElAPuBOQ"
)
"""Hash of the password guest. It is cheap to check, because everybody knows the password."""
NOBODY_HASH: Final = (
    "$argon2id$v=19$m=19456,t=2,p=1$H5oTdb0c2Rri02v77vzsbg$zji1QfCHRgwyTpubuACEj6jUY9O0cdaoOY86aruUVEg"
)
"""Hash of a random password. Logins with an unknown user name are checked against it."""


class Verdict(NamedTuple):
    """Whether a password is right, and a hash to replace an outdated one."""

    right: bool
    replacement: str | None = None


def hash_password(password: bytes, salt: bytes) -> str:
    """Return a new hash. The salt may have any length, and must be different each time."""
    salt = hashlib.sha256(salt).digest()[:_SALT_BYTES]
    return low_level.hash_secret(
        password, salt, _PASSES, _MEMORY_KIB, 1, _HASH_BYTES, low_level.Type.ID
    ).decode()


def is_password(password: bytes, hashed: str) -> bool:
    """Return whether the hash is of this password; a damaged hash never is."""
    kind, _, rest = hashed.partition("$")
    if kind == "scrypt":
        return _is_scrypt(password, rest)
    try:
        return low_level.verify_secret(hashed.encode("utf-8", "replace"), password, low_level.Type.ID)
    except VerificationError:
        return False


def check(password: bytes, hashed: str, salt: bytes) -> Verdict:
    """Check a password. `salt` is for the new hash if the old one is outdated.

    The new hash is also made for a wrong password. Otherwise a faster answer would reveal which users have an
    outdated hash.
    """
    right = is_password(password, hashed)
    if hashed.startswith(_CURRENT) or hashed == GUEST_HASH:
        return Verdict(right)
    replacement = hash_password(password, salt)
    return Verdict(right, replacement if right else None)


def _is_scrypt(password: bytes, salt_and_hash: str) -> bool:
    try:
        salt, expected = map(bytes.fromhex, salt_and_hash.split("$"))
    except ValueError:
        return False
    return hmac.compare_digest(hashlib.scrypt(password, salt=salt, **_SCRYPT_COST, dklen=32), expected)
