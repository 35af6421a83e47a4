"""Hashes of passwords: new ones, and those of older versions."""

from __future__ import annotations

import hashlib

import pytest

from leveret.broker.access.accounts import GUEST
from leveret.broker.access.passwords import (
    GUEST_HASH,
    NOBODY_HASH,
    Verdict,
    check,
    hash_password,
    is_password,
)

SCRYPT = (
    "scrypt$6c6576657265742d67756573742d3030$93055f36612d556e67c52874023b0da4f57024a88bc62a67cf3caaba26b552be"
)
"""Of the password guest, as version 0.1 made it."""


def test_a_new_hash_is_argon2id_with_the_costs_that_owasp_recommends() -> None:
    hashed = hash_password(b"secret", b"salt")
    assert hashed.startswith("$argon2id$v=19$m=19456,t=2,p=1$")
    assert is_password(b"secret", hashed)
    assert not is_password(b"Secret", hashed)
    assert not is_password(b"", hashed)


def test_equal_passwords_have_different_hashes() -> None:
    assert hash_password(b"x", b"1") != hash_password(b"x", b"2")


def test_the_hash_that_everybody_knows_is_of_guest() -> None:
    assert is_password(GUEST.encode(), GUEST_HASH)
    assert not is_password(b"other", GUEST_HASH)
    assert check(b"guest", GUEST_HASH, b"salt") == Verdict(True)


def test_what_unknown_users_are_checked_against_costs_as_much_as_a_new_hash() -> None:
    costs = hash_password(b"x", b"salt").split("$")[:4]
    assert NOBODY_HASH.split("$")[:4] == costs
    assert check(b"", NOBODY_HASH, b"salt") == Verdict(False)


def test_an_old_hash_is_accepted_and_replaced() -> None:
    right, replacement = check(b"guest", SCRYPT, b"salt")
    assert right
    assert replacement is not None
    assert replacement.startswith("$argon2id$")
    assert is_password(b"guest", replacement)
    assert check(b"guest", replacement, b"salt") == Verdict(True)


def test_a_wrong_password_replaces_nothing() -> None:
    assert check(b"wrong", SCRYPT, b"salt") == Verdict(False)


def test_a_hash_with_other_costs_is_replaced() -> None:
    assert check(b"guest", GUEST_HASH.replace("m=8", "m=16"), b"salt") == Verdict(False)
    cheap = "$argon2id$v=19$m=64,t=1,p=1$c2FsdHNhbHQ$TnDEl2tJgYtaYZt0/5f59Jf56vkIG4EtQACv6SLO2cI"
    assert is_password(b"secret", cheap)
    assert check(b"secret", cheap, b"salt").replacement is not None


@pytest.mark.parametrize(
    "damaged",
    [
        "",
        "secret",
        hashlib.sha256(b"secret").hexdigest(),
        "scrypt$",
        "scrypt$zz$00",
        "scrypt$00",
        "$argon2id$",
        "$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHQ$",
        "$2b$12$abc",
        "\udcff",
    ],
)
def test_a_damaged_hash_is_of_no_password(damaged: str) -> None:
    assert not check(b"secret", damaged, b"salt").right
