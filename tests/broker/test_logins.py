"""Who is let in, when passwords are hashed, and what waits meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leveret.broker.access import passwords
from leveret.broker.access.accounts import User
from leveret.broker.access.administration import delete_users
from leveret.broker.access.failed_logins import DELAY_MAX_US, FREE_FAILURES
from leveret.broker.access.logins import Origin
from leveret.broker.access.passwords import NOBODY_HASH, hash_password
from leveret.broker.definitions import PermissionRow, UserRow
from leveret.broker.limits import Limits
from leveret.fronts.amqp.wire import State
from tests.amqp.session import (
    PROTOCOL_HEADER,
    Core,
    Session,
    channel_open,
    names_in,
    opened,
    start_ok,
    tune_ok,
)
from tests.broker.hashing import HeldHasher
from tests.broker.test_passwords import SCRYPT

HOME = Origin("10.0.0.7")
ELSEWHERE = Origin("10.0.0.8")
HERE = Origin("127.0.0.1", loopback=True)


@pytest.fixture
def hasher() -> HeldHasher:
    return HeldHasher()


@pytest.fixture
def core(hasher: HeldHasher) -> Iterator[Core]:
    limits = Limits(logins_waiting_max=60, logins_waiting_by_source_max=40)
    core = Core(limits=limits, hasher=hasher)
    core.broker.accounts.put(UserRow("ann", hash_password(b"secret", b"salt"), "monitoring"))
    core.broker.accounts.permit(PermissionRow("/", "ann", ".*", ".*", ".*"))
    yield core
    core.close()


class Attempt:
    """`Attempt(core, "ann", b"secret").answers` is empty until it is known, then `["ann"]` or `[None]`."""

    def __init__(self, core: Core, name: str, password: bytes, origin: Origin = HOME) -> None:
        self.answers: list[str | None] = []
        core.broker.logins.begin(name, password, origin=origin, done=self._done)

    def _done(self, user: User | None) -> None:
        self.answers.append(None if user is None else user.name)


def log_in(
    core: Core, hasher: HeldHasher, name: str, password: bytes, origin: Origin = HOME
) -> list[str | None]:
    attempt = Attempt(core, name, password, origin)
    hasher.finish_all()
    return attempt.answers


def fail_often(core: Core, hasher: HeldHasher, name: str, origin: Origin) -> None:
    for number in range(FREE_FAILURES + 10):
        Attempt(core, name, b"wrong-%d" % number, origin)
        hasher.finish_all()
        core.pass_time(10)
        hasher.finish_all()


# passwords


def test_the_right_password_and_no_other(core: Core, hasher: HeldHasher) -> None:
    assert log_in(core, hasher, "ann", b"secret") == ["ann"]
    for name, password in (
        ("ann", b"Secret"),
        ("ann", b""),
        ("bob", b"secret"),
        ("", b""),
        ("\udcff", b"\xff"),
    ):
        assert log_in(core, hasher, name, password) == [None]


def test_users_who_do_not_exist_are_hashed_like_all_others(
    core: Core, hasher: HeldHasher, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(passwords, "is_password", lambda password, hashed: seen.append(hashed))
    assert log_in(core, hasher, "nobody", b"secret") == [None]
    assert seen == [NOBODY_HASH]


def test_guest_is_refused_from_elsewhere_without_a_hash(core: Core, hasher: HeldHasher) -> None:
    assert Attempt(core, "guest", b"guest", HOME).answers == [None]
    assert hasher.jobs == []
    assert log_in(core, hasher, "guest", b"guest", HERE) == ["guest"]
    assert Attempt(core, "guest", b"guest", HOME).answers == [None]


def test_a_password_that_was_right_once_is_not_hashed_again(core: Core, hasher: HeldHasher) -> None:
    log_in(core, hasher, "ann", b"secret")
    assert Attempt(core, "ann", b"secret").answers == ["ann"]
    assert hasher.jobs == []
    assert Attempt(core, "ann", b"wrong").answers == []


def test_a_changed_password_holds_at_once(core: Core, hasher: HeldHasher) -> None:
    log_in(core, hasher, "ann", b"secret")
    core.broker.accounts.put(UserRow("ann", hash_password(b"new", b"salt")))
    assert log_in(core, hasher, "ann", b"secret") == [None]
    assert log_in(core, hasher, "ann", b"new") == ["ann"]


def test_other_tags_cost_no_new_hash(core: Core, hasher: HeldHasher) -> None:
    log_in(core, hasher, "ann", b"secret")
    core.broker.accounts.put(UserRow("ann", core.broker.accounts.users["ann"].password_hash, ""))
    assert Attempt(core, "ann", b"secret").answers == ["ann"]


def test_many_logins_with_one_password_wait_for_one_hash(core: Core, hasher: HeldHasher) -> None:
    attempts = [Attempt(core, "ann", b"secret") for _ in range(30)]
    assert len(hasher.jobs) == 1
    hasher.finish()
    assert [each.answers for each in attempts] == [["ann"]] * 30


def test_a_password_that_changes_while_it_is_hashed_is_checked_again(core: Core, hasher: HeldHasher) -> None:
    old, new = Attempt(core, "ann", b"secret"), Attempt(core, "ann", b"new")
    core.broker.accounts.put(UserRow("ann", hash_password(b"new", b"salt")))
    hasher.finish()
    hasher.finish()
    assert (old.answers, new.answers) == ([], [])
    hasher.finish_all()
    assert (old.answers, new.answers) == ([None], ["ann"])


def test_a_user_who_is_deleted_while_the_password_is_hashed_is_not_let_in(
    core: Core, hasher: HeldHasher
) -> None:
    attempt = Attempt(core, "ann", b"secret")
    delete_users(core.broker, ["ann"])
    hasher.finish_all()
    assert attempt.answers == [None]


def test_a_hash_that_fails_lets_nobody_in_and_is_tried_again_next_time(
    core: Core, hasher: HeldHasher
) -> None:
    attempt = Attempt(core, "ann", b"secret")
    hasher.fail()
    assert attempt.answers == [None]
    assert log_in(core, hasher, "ann", b"secret") == ["ann"]


# old hashes


def test_an_old_hash_is_written_down_anew_at_the_next_login(core: Core, hasher: HeldHasher) -> None:
    core.broker.accounts.put(UserRow("old", SCRYPT, "administrator,monitoring"))
    core.broker.accounts.permit(PermissionRow("/", "old", "a", "b", "c"))
    assert log_in(core, hasher, "old", b"wrong") == [None]
    assert core.broker.accounts.users["old"].password_hash == SCRYPT
    user = core.broker.accounts.users["old"]
    assert log_in(core, hasher, "old", b"guest") == ["old"]
    (row,) = [each for each in core.definitions.load() if isinstance(each, UserRow) and each.name == "old"]
    assert row.password_hash.startswith("$argon2id$")
    assert row.tags == "administrator,monitoring"
    assert core.broker.accounts.users["old"] is user, "connections of the user stay as they are"
    assert user.password_hash == row.password_hash
    assert Attempt(core, "old", b"guest").answers == ["old"]


def test_a_new_hash_is_not_written_down_again(core: Core, hasher: HeldHasher) -> None:
    before = core.broker.definitions.number
    log_in(core, hasher, "ann", b"secret")
    log_in(core, hasher, "guest", b"guest", HERE)
    assert core.broker.definitions.number == before


# delays


def test_after_failures_a_login_waits_before_it_is_hashed(core: Core, hasher: HeldHasher) -> None:
    fail_often(core, hasher, "bob", HOME)
    attempt = Attempt(core, "ann", b"secret")
    assert (attempt.answers, hasher.jobs) == ([], [])
    core.pass_time(DELAY_MAX_US / 1e6 - 0.001)
    assert hasher.jobs == []
    core.pass_time(0.001)
    hasher.finish()
    assert attempt.answers == ["ann"]


def test_a_password_that_was_right_before_waits_too_or_it_would_tell_that_it_is_right(
    core: Core, hasher: HeldHasher
) -> None:
    log_in(core, hasher, "ann", b"secret", ELSEWHERE)
    fail_often(core, hasher, "bob", HOME)
    right, wrong = Attempt(core, "ann", b"secret"), Attempt(core, "ann", b"wrong")
    assert (right.answers, wrong.answers) == ([], [])
    core.pass_time(DELAY_MAX_US / 1e6)
    hasher.finish_all()
    assert (right.answers, wrong.answers) == (["ann"], [None])


def test_users_who_do_not_exist_are_delayed_like_all_others(core: Core, hasher: HeldHasher) -> None:
    for number in range(FREE_FAILURES + 1):
        log_in(core, hasher, "nobody", b"x", Origin(f"10.0.1.{number}"))
    assert Attempt(core, "nobody", b"x").answers == []
    assert hasher.jobs == []


def test_a_user_is_let_in_at_home_at_once_while_others_guess_the_password(
    core: Core, hasher: HeldHasher
) -> None:
    log_in(core, hasher, "ann", b"secret", HOME)
    fail_often(core, hasher, "ann", ELSEWHERE)
    fail_often(core, hasher, "bob", HOME)
    assert Attempt(core, "ann", b"secret", HOME).answers == ["ann"]


def test_a_user_is_let_in_from_a_new_address_while_others_guess_the_password(
    core: Core, hasher: HeldHasher
) -> None:
    fail_often(core, hasher, "ann", ELSEWHERE)
    attempt = Attempt(core, "ann", b"secret", HOME)
    assert attempt.answers == []
    core.pass_time(DELAY_MAX_US / 1e6)
    hasher.finish_all()
    assert attempt.answers == ["ann"]


def test_failures_are_forgotten_after_ten_minutes(core: Core, hasher: HeldHasher) -> None:
    fail_often(core, hasher, "ann", HOME)
    core.pass_time(600)
    assert log_in(core, hasher, "ann", b"secret") == ["ann"]


# limits


def test_an_address_has_a_bounded_number_of_logins_waiting(core: Core, hasher: HeldHasher) -> None:
    waiting = [Attempt(core, "ann", b"wrong-%d" % number) for number in range(40)]
    assert Attempt(core, "ann", b"secret").answers == [None]
    assert len(hasher.jobs) == 40
    attempt = Attempt(core, "ann", b"secret", ELSEWHERE)
    hasher.finish_all()
    assert attempt.answers == ["ann"]
    assert [each.answers for each in waiting] == [[None]] * 40


def test_many_clients_of_one_user_that_connect_at_once_wait_for_one_hash(
    core: Core, hasher: HeldHasher
) -> None:
    clients = [Attempt(core, "ann", b"secret") for _ in range(200)]
    assert len(hasher.jobs) == 1
    hasher.finish_all()
    assert [each.answers for each in clients] == [["ann"]] * 200
    assert (core.broker.logins._waiting_count, len(core.broker.logins._waiting)) == (0, 0)


def test_who_hangs_up_while_a_login_is_delayed_gets_no_other_place_for_it(
    core: Core, hasher: HeldHasher
) -> None:
    fail_often(core, hasher, "bob", HOME)
    for _ in range(40):
        Attempt(core, "ann", b"wrong")
    assert Attempt(core, "ann", b"secret").answers == [None]
    core.pass_time(DELAY_MAX_US / 1e6)
    assert len(hasher.jobs) == 1
    hasher.finish_all()
    assert Attempt(core, "ann", b"secret").answers == []


def test_all_addresses_together_have_a_bounded_number_of_logins_waiting(
    core: Core, hasher: HeldHasher
) -> None:
    for number in range(60):
        Attempt(core, "ann", b"wrong-%d" % number, Origin(f"10.0.1.{number}"))
    assert Attempt(core, "ann", b"secret").answers == [None]
    hasher.finish_all()
    core.pass_time(600)
    assert log_in(core, hasher, "ann", b"secret") == ["ann"]
    assert (core.broker.logins._waiting_count, len(core.broker.logins._waiting)) == (0, 0)


# connections


def connecting(core: Core, *, name: str = "ann", password: str = "secret") -> Session:
    session = core.session(prefix=PROTOCOL_HEADER)
    session.connection.origin = HOME
    assert session.feed(start_ok(name, password)) == b""
    return session


def test_a_connection_waits_for_the_hash_and_others_are_served_meanwhile(
    core: Core, hasher: HeldHasher
) -> None:
    waiting = connecting(core)
    assert waiting.state is State.AUTHENTICATING
    other = core.session(prefix=PROTOCOL_HEADER)
    other.feed(start_ok())
    assert len(hasher.jobs) == 2
    hasher.jobs.reverse()
    hasher.finish()
    assert names_in(other.taken()) == ["connection.tune"]
    assert names_in(other.feed(tune_ok() + opened() + channel_open(1))) == [
        "connection.open-ok",
        "channel.open-ok",
    ]
    assert waiting.state is State.AUTHENTICATING
    hasher.finish()
    assert names_in(waiting.taken()) == ["connection.tune"]
    assert waiting.connection.session.user.name == "ann"


def test_what_is_sent_behind_the_password_waits_and_is_answered_in_order(
    core: Core, hasher: HeldHasher
) -> None:
    session = core.session()
    assert names_in(session.feed(PROTOCOL_HEADER + start_ok() + tune_ok())) == ["connection.start"]
    assert session.feed(opened() + channel_open(1)) == b""
    hasher.finish()
    assert names_in(session.feed(b"")) == ["connection.tune", "connection.open-ok", "channel.open-ok"]


def test_a_wrong_password_is_refused_in_words_and_what_is_behind_it_is_dropped(
    core: Core, hasher: HeldHasher
) -> None:
    session = connecting(core, password="wrong")
    session.feed(tune_ok() + opened())
    hasher.finish()
    assert names_in(session.feed(b"")) == ["connection.close 403"]
    assert session.state is State.CLOSING


def test_a_client_that_would_not_understand_a_refusal_is_dropped(core: Core, hasher: HeldHasher) -> None:
    session = core.session(prefix=PROTOCOL_HEADER)
    session.feed(start_ok("ann", "wrong", capabilities={}))
    hasher.finish()
    assert (session.taken(), session.state) == (b"", State.CLOSED)
    assert core.leftovers() == []


@pytest.mark.parametrize("password", ["secret", "wrong"])
def test_a_connection_that_is_lost_while_its_password_is_hashed_leaves_nothing(
    core: Core, hasher: HeldHasher, password: str
) -> None:
    session = connecting(core, password=password)
    session.feed(tune_ok() + opened())
    session.lose()
    hasher.finish()
    assert (session.taken(), session.state) == (b"", State.CLOSED)
    assert core.leftovers() == []


def test_a_broker_that_stops_drops_connections_whose_password_is_hashed(
    core: Core, hasher: HeldHasher
) -> None:
    session = connecting(core)
    session.connection.force_close("shutdown")
    assert session.state is State.CLOSED
    hasher.finish()
    assert session.state is State.CLOSED


def test_a_connection_that_failed_often_waits_for_its_delay(core: Core, hasher: HeldHasher) -> None:
    fail_often(core, hasher, "ann", HOME)
    session = connecting(core)
    assert (session.state, hasher.jobs) == (State.AUTHENTICATING, [])
    core.pass_time(DELAY_MAX_US / 1e6)
    hasher.finish()
    assert names_in(session.taken()) == ["connection.tune"]
