"""Tokens that stand for a login: how they end, and how many there are."""

import itertools

import pytest

from leveret.broker.access.accounts import Accounts
from leveret.broker.access.tokens import ALL_MAX, OF_USER_MAX, Tokens
from leveret.broker.definitions import UserRow

LIFE_S = 60


class Clock:
    now_us = 1_000_000


@pytest.fixture
def accounts():
    accounts = Accounts()
    accounts.put(UserRow("ann", "hash", "monitoring"))
    accounts.put(UserRow("bob", "hash", ""))
    return accounts


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def tokens(accounts, clock):
    numbers = itertools.count()
    return Tokens(accounts, now_us=lambda: clock.now_us, random=lambda: f"token {next(numbers)}")


def test_a_token_stands_for_its_user(accounts, tokens):
    word = tokens.issue(accounts.users["ann"], life_s=LIFE_S)
    assert tokens.user_of(word) is accounts.users["ann"]
    assert tokens.user_of(f"{word}0") is None
    assert tokens.user_of("") is None


def test_a_token_ends_after_its_time(accounts, tokens, clock):
    word = tokens.issue(accounts.users["ann"], life_s=LIFE_S)
    clock.now_us += LIFE_S * 1_000_000 - 1
    assert tokens.user_of(word) is not None
    clock.now_us += 1
    assert tokens.user_of(word) is None
    assert len(tokens) == 0


@pytest.mark.parametrize("row", [UserRow("ann", "other", "monitoring"), UserRow("ann", "hash", "management")])
def test_a_token_ends_with_a_change_of_password_or_tags_even_if_it_is_undone(accounts, tokens, row):
    user = accounts.users["ann"]
    before = user.row()
    word = tokens.issue(user, life_s=LIFE_S)
    accounts.put(before)
    assert tokens.user_of(word) is user
    accounts.put(row)
    accounts.undo_put(user, before)
    assert tokens.user_of(word) is None


def test_a_token_does_not_survive_its_user(accounts, tokens):
    word = tokens.issue(accounts.users["ann"], life_s=LIFE_S)
    accounts.remove("ann")
    accounts.put(UserRow("ann", "hash", "monitoring"))
    assert tokens.user_of(word) is None


def test_one_token_is_ended_or_all_of_a_user(accounts, tokens):
    ann, bob = accounts.users["ann"], accounts.users["bob"]
    first, second, other = (tokens.issue(user, life_s=LIFE_S) for user in (ann, ann, bob))
    tokens.end(first)
    assert [tokens.user_of(word) for word in (first, second, other)] == [None, ann, bob]
    tokens.end_all(ann)
    assert [tokens.user_of(word) for word in (second, other)] == [None, bob]


def test_a_users_oldest_token_makes_room_for_a_new_one(accounts, tokens):
    ann, bob = accounts.users["ann"], accounts.users["bob"]
    other = tokens.issue(bob, life_s=LIFE_S)
    words = [tokens.issue(ann, life_s=LIFE_S) for _ in range(OF_USER_MAX + 1)]
    assert [tokens.user_of(word) for word in words[:2]] == [None, ann]
    assert tokens.user_of(other) is bob
    assert len(tokens) == OF_USER_MAX + 1


def test_the_number_of_all_tokens_is_bounded(accounts, tokens):
    users_count = ALL_MAX // OF_USER_MAX + 1
    for number in range(users_count):
        accounts.put(UserRow(f"user {number}", "hash", ""))
        for _ in range(OF_USER_MAX):
            tokens.issue(accounts.users[f"user {number}"], life_s=LIFE_S)
    assert len(tokens) == ALL_MAX


def test_tokens_that_have_ended_are_forgotten_with_the_users_next_one(accounts, tokens, clock):
    for _ in range(3):
        tokens.issue(accounts.users["ann"], life_s=LIFE_S)
    clock.now_us += LIFE_S * 1_000_000
    tokens.issue(accounts.users["ann"], life_s=LIFE_S)
    assert len(tokens) == 1
