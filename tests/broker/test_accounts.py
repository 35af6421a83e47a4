"""Users, passwords and permissions."""

from __future__ import annotations

import pytest

from leveret.broker import accounts as module
from leveret.broker.accounts import GUEST, GUEST_HASH, Accounts, hash_password, is_password
from leveret.broker.definitions import PermissionRow, UserRow


@pytest.fixture
def accounts() -> Accounts:
    accounts = Accounts()
    accounts.put(UserRow("ann", hash_password(b"secret", b"salt"), "administrator,monitoring"))
    accounts.permit(PermissionRow("/", "ann", "^own-", ".*", ""))
    return accounts


def test_the_right_password_and_no_other(accounts: Accounts) -> None:
    user = accounts.login("ann", b"secret")
    assert user is not None
    assert (user.name, user.tags) == ("ann", {"administrator", "monitoring"})
    assert accounts.login("ann", b"Secret") is None
    assert accounts.login("ann", b"") is None
    assert accounts.login("bob", b"secret") is None


def test_a_password_that_was_right_once_is_not_hashed_again(
    accounts: Accounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts.login("ann", b"secret")

    def slow(password: bytes, hashed: str) -> bool:
        raise AssertionError("hashed again")

    monkeypatch.setattr(module, "is_password", slow)
    assert accounts.login("ann", b"secret") is not None


def test_a_changed_password_holds_at_once(accounts: Accounts) -> None:
    accounts.login("ann", b"secret")
    accounts.put(UserRow("ann", hash_password(b"new", b"salt"), ""))
    assert accounts.login("ann", b"secret") is None
    user = accounts.login("ann", b"new")
    assert user is not None
    assert user.tags == frozenset()
    assert user.may("write", "/", "x"), "permissions are kept"


def test_permissions_are_patterns_by_virtual_host(accounts: Accounts) -> None:
    user = accounts.users["ann"]
    assert user.may("configure", "/", "own-queue")
    assert not user.may("configure", "/", "not-own-queue")
    assert user.may("write", "/", "anything")
    assert not user.may("write", "other", "anything")


def test_the_empty_pattern_matches_the_empty_name_only(accounts: Accounts) -> None:
    user = accounts.users["ann"]
    assert not user.may("read", "/", "q")
    assert user.may("read", "/", "")


def test_permissions_for_nobody_are_let_go(accounts: Accounts) -> None:
    accounts.permit(PermissionRow("/", "nobody", ".*", ".*", ".*"))
    assert "nobody" not in accounts.users


def test_the_hash_that_everybody_knows_is_of_guest() -> None:
    assert is_password(GUEST.encode(), GUEST_HASH)
    assert not is_password(b"other", GUEST_HASH)


def test_equal_passwords_have_different_hashes() -> None:
    assert hash_password(b"x", b"1") != hash_password(b"x", b"2")
    assert b"secret".hex() not in hash_password(b"secret", b"1")
