"""How long logins wait after failures, and who is counted together."""

from __future__ import annotations

import pytest

from leveret.broker.access.failed_logins import DELAY_MAX_US, FORGET_US, FREE_FAILURES, FailedLogins
from leveret.server import socket as server_socket


@pytest.fixture
def failures() -> FailedLogins:
    return FailedLogins()


def fail(failures: FailedLogins, address: str, name: str, count: int, now_us: int = 0) -> None:
    for _ in range(count):
        failures.failed(address, name, now_us)


def test_the_first_failures_cost_no_delay_and_each_further_one_doubles_it(failures: FailedLogins) -> None:
    fail(failures, "10.0.0.7", "ann", FREE_FAILURES)
    assert failures.delay_us("10.0.0.7", "ann", 0) == 0
    delays = []
    for _ in range(8):
        failures.failed("10.0.0.7", "ann", 0)
        delays.append(failures.delay_us("10.0.0.7", "ann", 0) // 1000)
    assert delays == [100, 200, 400, 800, 1600, 3200, 5000, 5000]


def test_no_number_of_failures_makes_the_delay_longer_than_half_a_handshake(failures: FailedLogins) -> None:
    fail(failures, "10.0.0.7", "ann", 5_000)
    assert failures.delay_us("10.0.0.7", "ann", 0) == DELAY_MAX_US
    assert DELAY_MAX_US == server_socket.HANDSHAKE_S / 2 * 1_000_000


def test_failures_of_an_address_count_for_all_users_who_are_strangers_there(failures: FailedLogins) -> None:
    for number in range(FREE_FAILURES + 1):
        failures.failed("10.0.0.7", f"user-{number}", 0)
    assert failures.delay_us("10.0.0.7", "ann", 0) > 0
    assert failures.delay_us("10.0.0.8", "ann", 0) == 0


def test_failures_of_a_user_count_at_all_addresses_where_the_user_is_a_stranger(
    failures: FailedLogins,
) -> None:
    for number in range(FREE_FAILURES + 1):
        failures.failed(f"10.0.0.{number}", "ann", 0)
    assert failures.delay_us("10.0.1.1", "ann", 0) > 0
    assert failures.delay_us("10.0.1.1", "bob", 0) == 0


def test_whoever_has_logged_in_from_an_address_is_delayed_there_by_nobody_else(
    failures: FailedLogins,
) -> None:
    failures.succeeded("10.0.0.7", "ann")
    for number in range(50):
        failures.failed(f"10.0.0.{number}", "eve", 0)
        if number != 7:
            failures.failed(f"10.0.0.{number}", "ann", 0)
    assert failures.delay_us("10.0.0.7", "ann", 0) == 0
    assert failures.delay_us("10.0.0.9", "ann", 0) > 0
    assert failures.source("10.0.0.7", "ann") != failures.source("10.0.0.7", "eve")


def test_guesses_at_a_user_from_the_users_own_address_are_delayed_until_the_user_logs_in(
    failures: FailedLogins,
) -> None:
    failures.succeeded("10.0.0.7", "ann")
    fail(failures, "10.0.0.7", "ann", FREE_FAILURES + 1)
    assert failures.delay_us("10.0.0.7", "ann", 0) > 0
    assert failures.delay_us("10.0.0.7", "bob", 0) == 0
    failures.succeeded("10.0.0.7", "ann")
    assert failures.delay_us("10.0.0.7", "ann", 0) == 0


def test_a_login_of_ones_own_does_not_make_guessing_at_others_quick_again(failures: FailedLogins) -> None:
    fail(failures, "10.0.0.7", "ann", FREE_FAILURES + 1)
    failures.succeeded("10.0.0.7", "eve")
    assert failures.delay_us("10.0.0.7", "ann", 0) > 0


def test_failures_are_forgotten_after_a_while(failures: FailedLogins) -> None:
    fail(failures, "10.0.0.7", "ann", 50, now_us=1)
    assert failures.delay_us("10.0.0.7", "ann", FORGET_US) > 0
    assert failures.delay_us("10.0.0.7", "ann", FORGET_US + 1) == 0
    failures.failed("10.0.0.7", "ann", FORGET_US + 1)
    assert failures.delay_us("10.0.0.7", "ann", FORGET_US + 1) == 0


def test_how_many_failures_are_free_and_how_long_they_count_can_be_set() -> None:
    failures = FailedLogins(free_failures=2, forget_us=1_000)
    fail(failures, "10.0.0.7", "ann", 2)
    assert failures.delay_us("10.0.0.7", "ann", 0) == 0
    fail(failures, "10.0.0.7", "ann", 1)
    assert failures.delay_us("10.0.0.7", "ann", 999) > 0
    assert failures.delay_us("10.0.0.7", "ann", 1_000) == 0


def test_what_is_remembered_is_bounded() -> None:
    failures = FailedLogins(remembered_max=100)
    fail(failures, "10.0.0.7", "ann", FREE_FAILURES + 1)
    for number in range(1000):
        failures.failed("10.0.0.7", f"user-{number}", 0)
        failures.succeeded("10.0.0.8", f"user-{number}")
    assert (len(failures._counts), len(failures._homes)) == (100, 100)
    assert failures.delay_us("10.0.0.7", "zoe", 0) > 0, "whoever goes on failing is not forgotten"


def test_what_is_forgotten_takes_no_memory(failures: FailedLogins) -> None:
    for number in range(100):
        failures.failed("10.0.0.7", f"user-{number}", 0)
    failures.failed("10.0.0.8", "ann", FORGET_US)
    assert len(failures._counts) == 2


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.7", "10.0.0.7", True),
        ("fe80::1%eth0", "fe80::2", True),
        ("10.0.0.7", "10.0.0.8", False),
        ("", "", True),
        ("unknown", "unknown", True),
    ],
)
def test_addresses_that_one_client_may_have_are_counted_together(
    failures: FailedLogins, one: str, other: str, together: bool
) -> None:
    fail(failures, one, "ann", FREE_FAILURES + 1)
    assert (failures.delay_us(other, "bob", 0) > 0) is together


def test_any_name_is_counted(failures: FailedLogins) -> None:
    for name in ("", "\udcff", "\ud800", "x" * 100_000):
        fail(failures, "10.0.0.7", name, FREE_FAILURES + 1)
        assert failures.delay_us("10.0.9.9", name, 0) > 0
