"""Hashes of passwords: new ones, and those of older versions."""

from __future__ import annotations

import hashlib
from base64 import b64encode

import pytest

from leveret.broker.access.accounts import GUEST
from leveret.broker.access.passwords import (
    GUEST_HASH,
    NOBODY_HASH,
    SHA256,
    Verdict,
    as_algorithm_and_hash,
    check,
    hash_password,
    is_password,
    of_algorithm_and_hash,
)
from leveret.broker.errors import PreconditionFailed

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


@pytest.mark.parametrize("algorithm", ["sha256", "sha512", "md5"])
def test_a_hash_of_rabbitmq_is_accepted_and_kept(algorithm: str) -> None:
    salted = b"salt" + hashlib.new(algorithm, b"saltsecret").digest()
    name, base64 = f"rabbit_password_hashing_{algorithm}", b64encode(salted).decode()
    hashed = of_algorithm_and_hash(name, base64)
    assert as_algorithm_and_hash(hashed) == (name, base64)
    assert check(b"secret", hashed, b"other") == Verdict(True)
    assert check(b"Secret", hashed, b"other") == Verdict(False)


def test_the_empty_password_is_of_no_hash_of_rabbitmq() -> None:
    base64 = b64encode(b"salt" + hashlib.sha256(b"salt").digest()).decode()
    assert not is_password(b"", of_algorithm_and_hash(SHA256, base64))


def test_hashes_of_leveret_go_out_and_come_in() -> None:
    for hashed in (SCRYPT, GUEST_HASH, hash_password(b"x", b"salt"), ""):
        assert of_algorithm_and_hash(*as_algorithm_and_hash(hashed)) == hashed


@pytest.mark.parametrize(
    ("algorithm", "hashed"),
    [
        ("rabbit_password_hashing_sha1", "YWJj"),
        (SHA256, "abc"),
        (SHA256, "\udcff"),
        ("leveret_password_hashing_scrypt", "$argon2id$"),
        ("leveret_password_hashing_scrypt", "scrypt$\ud800$00"),
        ("leveret_password_hashing_argon2id", f"{GUEST_HASH}\ud800"),
        ("leveret_password_hashing_argon2id", "scrypt$00$00"),
        ("leveret_password_hashing_argon2id", GUEST_HASH.replace("m=8", "m=4194304")),
        ("leveret_password_hashing_argon2id", GUEST_HASH.replace("t=1", "t=900")),
        ("leveret_password_hashing_argon2id", GUEST_HASH.replace("p=1", "p=64")),
        ("leveret_password_hashing_argon2id", GUEST_HASH.replace("argon2id", "argon2i")),
    ],
)
def test_hashes_that_no_algorithm_made_or_that_cost_too_much_are_refused(algorithm: str, hashed: str) -> None:
    with pytest.raises(PreconditionFailed):
        of_algorithm_and_hash(algorithm, hashed)


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
        "rabbit_password_hashing_sha256$",
        "rabbit_password_hashing_sha256$%%",
        "rabbit_password_hashing_sha256$YWJj",
        "\udcff",
    ],
)
def test_a_damaged_hash_is_of_no_password(damaged: str) -> None:
    assert not check(b"secret", damaged, b"salt").right
