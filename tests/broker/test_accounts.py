"""Users and permissions."""

from __future__ import annotations

import pytest

from leveret.broker.access.accounts import Accounts
from leveret.broker.definitions import PermissionRow, UserRow


@pytest.fixture
def accounts() -> Accounts:
    accounts = Accounts()
    accounts.put(UserRow("ann", "a hash", "administrator,monitoring"))
    accounts.permit(PermissionRow("/", "ann", "^own-", ".*", ""))
    return accounts


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


def test_what_is_changed_of_a_user_leaves_permissions_as_they_are(accounts: Accounts) -> None:
    accounts.put(UserRow("ann", "another hash", "monitoring"))
    user = accounts.users["ann"]
    assert (user.password_hash, user.tags) == ("another hash", {"monitoring"})
    assert user.may("write", "/", "x")
