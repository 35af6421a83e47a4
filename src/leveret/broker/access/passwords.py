"""Password hashes: pure functions that make and check them.

The functions are slow; `logins` runs them on another thread. New hashes are Argon2id in the standard text
form: `$argon2id$v=19$m=19456,t=2,p=1$salt$hash`. Hashes of older versions of Leveret are
`scrypt$salt$hash`, both in hexadecimal. They are still accepted, and `check` returns an Argon2id hash to
replace them. Hashes of RabbitMQ are kept as they are, so that they can go back there (decision 59):
`rabbit_password_hashing_sha256$` and the base64 of a salt of 4 bytes and a hash. With the empty hash no
password is right.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
from base64 import b64decode
from typing import Final, NamedTuple

from argon2 import extract_parameters, low_level
from argon2.exceptions import InvalidHash, VerificationError

from leveret.broker.errors import PreconditionFailed

_PASSES: Final = 2
_MEMORY_KIB: Final = 19 << 10
"""With one lane, the minimum that OWASP recommends: 21 ms of one processor (measured in decision 34)."""
_CURRENT: Final = f"$argon2id$v=19$m={_MEMORY_KIB},t={_PASSES},p=1$"
_SALT_BYTES: Final = 16
_HASH_BYTES: Final = 32
_IMPORTED_MEMORY_KIB_MAX: Final = 64 << 10
_IMPORTED_PASSES_MAX: Final = 10
"""What checking an Argon2id hash from elsewhere may cost."""
_RABBITMQ: Final = "rabbit_password_hashing_"
_RABBITMQ_SALT_BYTES: Final = 4
ARGON2ID: Final = "leveret_password_hashing_argon2id"
SCRYPT: Final = "leveret_password_hashing_scrypt"
SHA256: Final = f"{_RABBITMQ}sha256"
"""The algorithm of hashes that RabbitMQ shows without naming one."""
RABBITMQ_ALGORITHMS: Final = (SHA256, f"{_RABBITMQ}sha512", f"{_RABBITMQ}md5")
_SCRYPT_COST: Final = {"n": 1 << 12, "r": 8, "p": 1}

GUEST_HASH: Final = (
    "$argon2id$v=19$m=8,t=1,p=1$bGV2ZXJldC1ndWVzdC0wMA$8JSGC5y2k+ue6Zu0QHCAl4q6cK3WdRRN5fIElAPuBOQ"
)
"""Hash of the password guest. It is cheap to check, because everybody knows the password."""
GUEST_SHA256: Final = "bHZydCTyKDzsAcHqG1rcmguGvNARc4sT5oj9RvM0rMjEQAA1"
"""RabbitMQ's hash of the password guest, for exports."""
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
    if kind in RABBITMQ_ALGORITHMS:
        return _is_rabbitmq(password, kind, rest)
    try:
        return low_level.verify_secret(hashed.encode("utf-8", "replace"), password, low_level.Type.ID)
    except VerificationError:
        return False


def check(password: bytes, hashed: str, salt: bytes) -> Verdict:
    """Check a password. `salt` is for the new hash if the old one is outdated.

    The new hash is also made for a wrong password, and for hashes that are kept. Otherwise a faster answer
    would reveal which users have an outdated hash.
    """
    right = is_password(password, hashed)
    if hashed.startswith(_CURRENT) or hashed == GUEST_HASH:
        return Verdict(right)
    replacement = hash_password(password, salt)
    return Verdict(right, replacement if right and not hashed.startswith(_RABBITMQ) else None)


def as_algorithm_and_hash(hashed: str) -> tuple[str, str]:
    """Return a stored hash as RabbitMQ's API shows it: the name of its algorithm, and the hash.

    >>> as_algorithm_and_hash("rabbit_password_hashing_md5$YWJjZA==")
    ('rabbit_password_hashing_md5', 'YWJjZA==')
    """
    kind, _, rest = hashed.partition("$")
    if kind in RABBITMQ_ALGORITHMS:
        return kind, rest
    return (SHA256 if not hashed else SCRYPT if kind == "scrypt" else ARGON2ID), hashed


def of_algorithm_and_hash(algorithm: str, hashed: str) -> str:
    """Return the stored form of a hash that came from RabbitMQ, from Leveret, or from a file.

    >>> of_algorithm_and_hash("rabbit_password_hashing_md5", "YWJjZA==")
    'rabbit_password_hashing_md5$YWJjZA=='
    """
    known = (*RABBITMQ_ALGORITHMS, ARGON2ID, SCRYPT)
    if algorithm not in known:
        raise PreconditionFailed(f"hashing_algorithm '{algorithm}' is unknown; known: {', '.join(known)}")
    if not hashed:
        return ""
    if algorithm in RABBITMQ_ALGORITHMS:
        if _decoded(hashed) is None:
            raise PreconditionFailed(f"not_base64: password_hash '{hashed}'")
        return f"{algorithm}${hashed}"
    is_known = _is_affordable_argon2id(hashed) if algorithm == ARGON2ID else hashed.startswith("scrypt$")
    if not is_known or not hashed.isascii():
        raise PreconditionFailed(f"password_hash is not a hash of {algorithm}")
    return hashed


def _decoded(base64: str) -> bytes | None:
    try:
        return b64decode(base64, validate=True)
    except (binascii.Error, ValueError):
        return None


def _is_affordable_argon2id(hashed: str) -> bool:
    try:
        cost = extract_parameters(hashed)
    except InvalidHash:
        return False
    return (
        cost.type is low_level.Type.ID
        and cost.memory_cost <= _IMPORTED_MEMORY_KIB_MAX
        and cost.time_cost <= _IMPORTED_PASSES_MAX
        and cost.parallelism == 1
    )


def _is_rabbitmq(password: bytes, algorithm: str, base64: str) -> bool:
    """Return whether a hash of RabbitMQ is of this password: 4 bytes of salt, then hash(salt + password).

    As in RabbitMQ, the empty password is never right.
    """
    salt_and_hash = _decoded(base64)
    if not password or salt_and_hash is None:
        return False
    salt, expected = salt_and_hash[:_RABBITMQ_SALT_BYTES], salt_and_hash[_RABBITMQ_SALT_BYTES:]
    hasher = hashlib.new(algorithm.removeprefix(_RABBITMQ), salt + password, usedforsecurity=False)
    return hmac.compare_digest(hasher.digest(), expected)


def _is_scrypt(password: bytes, salt_and_hash: str) -> bool:
    try:
        salt, expected = map(bytes.fromhex, salt_and_hash.split("$"))
    except ValueError:
        return False
    return hmac.compare_digest(hashlib.scrypt(password, salt=salt, **_SCRYPT_COST, dklen=32), expected)
