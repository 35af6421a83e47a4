"""Queries, sinks and groups belong to the users who made them, and their epochs are the broker's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from leveret.broker.access import administration, ownership
from leveret.broker.access.passwords import hash_password
from leveret.broker.groups.registry import GroupNote
from leveret.broker.groups.settings import Settings
from leveret.broker.queries.lease_notes import QueryNote
from leveret.flight import actions
from leveret.flight.actions import At
from leveret.flight.tickets import pack_ranges
from leveret.testing.broker import Broker
from tests.fronts.flight.bulk_requests import HOUR_S, QUEUE, Asking

pytestmark = pytest.mark.real

S = ("/", "s0", False)
EPOCH_MAX = 2**64 - 1
THREE = [b"1", b"2", b"3"]
NIGHTLY = ("/", QUEUE, "nightly")


@pytest.fixture
def ask() -> Iterator[Asking]:
    """A queue and the stream `s0` with three messages each; ann, bob and eve may read and write all."""
    with Broker() as broker:
        asking = Asking(broker)
        asking.declare(1)
        asking.publish(*THREE)
        asking.on_channel(lambda channel: channel.queue_declare(QUEUE, durable=True))
        asking.publish(*THREE, key=QUEUE)
        for name in ("ann", "bob", "eve"):
            add_user(broker, name)
        yield asking


def add_user(
    broker: Broker, name: str, *, configure: str = "", write: str = ".*", read: str = ".*", tags: str = ""
) -> None:
    """Durably, as over HTTP; a user that is there gets these rights."""
    inside = broker.server.broker

    def add() -> None:
        broker.server.turns.begin()
        administration.put_user(
            inside, name, password_hash=hash_password(b"secret", b"of this test"), tags=[tags] if tags else []
        )
        administration.permit(inside, "/", name, configure=configure, write=write, read=read)

    broker.call(add)


def on_channel(ask: Asking, user: str) -> Any:
    credentials = pika.PlainCredentials(user, "secret")
    place = pika.ConnectionParameters("127.0.0.1", ask.broker.port, credentials=credentials)
    channel = pika.BlockingConnection(place).channel()
    channel.basic_qos(prefetch_count=10)
    return channel


def join(ask: Asking, user: str, **arguments: Any) -> None:
    """Join group `billing` on `s0`, and leave it."""
    channel = on_channel(ask, user)
    try:
        channel.basic_consume("s0", lambda *_: None, arguments={"x-group": "billing", **arguments})
    finally:
        channel.connection.close()


def group(ask: Asking, name: str = "q") -> Any:
    return ask.broker.server.broker.vhosts["/"].groups.get("s0", name)


def refused(kind: str, name: str, user: str = "bob") -> tuple[int, str]:
    return (
        403,
        f"access to {kind} '{name}' in vhost '/' refused for user '{user}': it belongs to another user",
    )


def said(answer: Any) -> tuple[int, str]:
    assert isinstance(answer, actions.Refused), answer
    return (answer.code, answer.text)


def opened(ask: Asking, user: str = "ann") -> Any:
    return ask(actions.Open(*NIGHTLY, HOUR_S), user)


def followed(ask: Asking, user: str = "ann", run: str = "") -> Any:
    return ask(actions.Follow(*S, query="q", at=At("first"), run=run), user)


def advanced(ask: Asking, epoch: int, user: str = "ann") -> Any:
    return ask(actions.Advance(*S, query="q", epoch=epoch, offsets={"s0": 0}), user)


class TestQueriesOverQueues:
    def test_no_other_reader_leases_settles_rejects_or_ends(self, ask):
        run = opened(ask).epoch
        assert ask(actions.Lease(*NIGHTLY, run, 0), "ann").messages == 3
        for request in (
            actions.Open(*NIGHTLY, HOUR_S),
            actions.Lease(*NIGHTLY, run, 1),
            actions.Plan(*NIGHTLY, run, 0, 1),
            actions.Reject(*NIGHTLY, pack_ranges([(0, 3)])),
            actions.Release(*NIGHTLY),
        ):
            assert said(ask(request, "bob")) == refused("query", "nightly")
        assert ask(actions.Lease(*NIGHTLY, run, 0), "ann").messages == 3
        assert ask(actions.Lease(*NIGHTLY, run, 1, settle_only=True), "ann").settled == 1

    @pytest.mark.parametrize("rights", [{"configure": "^nightly$"}, {"tags": "administrator"}])
    def test_a_right_on_the_name_or_the_tag_of_an_administrator_takes_over(self, ask, rights):
        before = opened(ask).epoch
        add_user(ask.broker, "bob", **rights)
        assert opened(ask, "bob").epoch == before + 1
        assert ask(actions.Lease(*NIGHTLY, before, 0), "ann").kind == "fenced"
        assert opened(ask).epoch == before + 2, "it is still hers"

    def test_the_owner_survives_a_crash(self, ask):
        opened(ask)
        ask.crash()
        assert said(opened(ask, "bob")) == refused("query", "nightly")
        assert opened(ask).epoch == 2

    def test_a_query_that_is_nobodys_becomes_that_of_the_first_who_opens_it(self, ask, monkeypatch):
        with monkeypatch.context() as earlier:
            earlier.setattr(ownership, "owner_name", lambda user: ownership.NOBODY)
            run = opened(ask).epoch
        ask.crash()
        for user in ("ann", "bob"):
            assert ask(actions.Lease(*NIGHTLY, run, 0), user).settled == 0
        opened(ask, "bob")
        assert said(opened(ask)) == refused("query", "nightly", "ann")

    def test_what_a_deleted_user_had_is_left_to_those_with_a_right(self, ask):
        opened(ask)
        ask.broker.call(lambda: administration.delete_users(ask.broker.server.broker, ["ann"]))
        assert said(opened(ask, "bob")) == refused("query", "nightly")
        assert opened(ask, "guest").epoch == 2
        add_user(ask.broker, "bob", configure="nightly")
        assert opened(ask, "bob").epoch == 3


class TestQueriesOverStreams:
    def test_no_other_reader_follows_advances_covers_or_rejects(self, ask):
        run = followed(ask).epoch
        for request in (
            actions.Follow(*S, query="q", at=At("first")),
            actions.Advance(*S, query="q", epoch=run, offsets={"s0": 3}),
            actions.Cover(*S, query="q", epoch=run, spans={"s0": (0, 3)}),
            actions.RejectRead(*S, query="q", ranges={"s0": pack_ranges([(0, 3)])}),
        ):
            assert said(ask(request, "bob")) == refused("group", "q")
        assert group(ask).lag == 3
        assert advanced(ask, run).stretches

    @pytest.mark.parametrize("is_restarted", [False, True])
    @pytest.mark.parametrize("invented", [EPOCH_MAX, 1, 0, -1])
    def test_an_epoch_that_the_broker_has_not_given_is_refused(self, ask, invented, is_restarted):
        run = followed(ask).epoch
        if is_restarted:
            ask.crash()
        answer = advanced(ask, invented)
        assert answer.kind == "fenced"
        assert f"run {invented} of query 'q' over 's0' in vhost '/' is over, or never began" in answer.text
        assert advanced(ask, run).stretches
        assert followed(ask).epoch > run

    def test_epochs_grow_over_a_crash_also_when_the_clock_goes_back(self, ask, monkeypatch):
        run = followed(ask).epoch
        ask.crash()
        monkeypatch.setattr(ask.broker.server.broker, "now_us", lambda: 5)
        assert followed(ask).epoch == run + 1

    def test_a_run_from_before_epochs_were_written_down_goes_on(self, ask, monkeypatch):
        run = followed(ask).epoch
        group(ask).epoch = 0
        for invented in (EPOCH_MAX, 0, -1):
            assert advanced(ask, invented).kind == "fenced"
        assert advanced(ask, run).stretches
        assert advanced(ask, run - 1).kind == "fenced"
        ask.crash()
        assert advanced(ask, run).stretches

    def test_nobody_settles_what_members_of_a_group_have_not_done(self, ask):
        join(ask, "ann")
        for epoch in (0, 1, EPOCH_MAX):
            request = actions.Advance(*S, query="billing", epoch=epoch, offsets={"s0": 3})
            assert "is not a query's" in ask(request, "ann").text
        assert group(ask, "billing").lag == 3


class TestGroups:
    def test_another_user_joins_with_the_right_to_read_the_name(self, ask):
        join(ask, "ann")
        join(ask, "bob")
        add_user(ask.broker, "bob", read="^s0$")
        with pytest.raises(ChannelClosedByBroker) as error:
            join(ask, "bob")
        code, text = refused("group", "billing")
        assert (error.value.reply_code, error.value.reply_text) == (code, f"ACCESS_REFUSED - {text}")
        add_user(ask.broker, "ann", read="^s0$")
        join(ask, "ann")

    def test_a_member_of_another_user_changes_no_settings(self, ask):
        join(ask, "ann", **{"x-group-max-span": 5})
        join(ask, "bob", **{"x-group-max-span": 5})
        with pytest.raises(ChannelClosedByBroker, match="access to group 'billing'"):
            join(ask, "bob", **{"x-group-max-span": 1})
        assert group(ask, "billing").settings.max_span == 5
        add_user(ask.broker, "bob", configure="^billing$")
        join(ask, "bob", **{"x-group-max-span": 1})
        assert group(ask, "billing").settings.max_span == 1

    def test_the_owner_survives_a_crash(self, ask):
        join(ask, "ann")
        ask.crash()
        with pytest.raises(ChannelClosedByBroker, match="it belongs to another user"):
            join(ask, "bob", **{"x-group-max-span": 1})
        join(ask, "ann", **{"x-group-max-span": 1})

    def test_a_group_that_is_nobodys_becomes_that_of_the_first_who_joins_it(self, ask, monkeypatch):
        with monkeypatch.context() as earlier:
            earlier.setattr(ownership, "owner_name", lambda user: ownership.NOBODY)
            join(ask, "ann")
        ask.crash()
        join(ask, "bob", **{"x-group-max-span": 1})
        ask.crash()
        assert group(ask, "billing").owner == "bob"
        with pytest.raises(ChannelClosedByBroker, match="it belongs to another user"):
            join(ask, "ann", **{"x-group-max-span": 7})


class TestSinks:
    def test_who_may_write_nothing_takes_no_name(self, ask):
        for nothing in ("", "^$"):
            add_user(ask.broker, "bob", write=nothing)
            code, text = said(ask(actions.Commit("/", "lake", 1 << 62, []), "bob"))
            assert (code, text) == (403, "access to sink 'lake' in vhost '/' refused for user 'bob'")
        assert ask(actions.Commit("/", "lake", 0, []), "ann") == actions.Committed(0, False)

    def test_rows_are_not_thrown_away_because_another_user_has_used_the_name_up(self, ask):
        ask(actions.Commit("/", "lake", 1 << 62, []), "bob")
        assert said(ask(actions.Commit("/", "lake", 0, []), "ann")) == refused("sink", "lake", "ann")
        add_user(ask.broker, "ann", configure="^lake$")
        answer = ask(actions.Commit("/", "lake", 0, []), "ann")
        assert (answer.code, answer.kind) == (406, "taken")
        assert "another user has committed batch 4611686018427387904 of query 'lake'" in answer.text

    def test_another_user_goes_on_with_the_last_batch_and_the_owner_stays(self, ask):
        ask(actions.Commit("/", "lake", 0, []), "ann")
        add_user(ask.broker, "bob", configure="^lake$")
        assert ask(actions.Commit("/", "lake", 0, []), "bob") == actions.Committed(0, True)
        assert ask(actions.Commit("/", "lake", 1, []), "bob") == actions.Committed(0, False)
        ask.crash()
        assert ask(actions.Commit("/", "lake", 1, []), "ann") == actions.Committed(0, True)
        assert said(ask(actions.Commit("/", "lake", 1, []), "eve")) == refused("sink", "lake", "eve")


class TestNotes:
    """Notes of earlier versions have no owner, and earlier versions leave out what they do not know."""

    def test_notes_of_earlier_versions_are_nobodys(self):
        query = msgspec.msgpack.encode(["query", "nightly", 2, 1, 1, 0, [], 0])
        assert msgspec.msgpack.decode(query, type=QueryNote).owner == ownership.NOBODY
        settings = msgspec.to_builtins(Settings.default())
        group = msgspec.msgpack.decode(
            msgspec.msgpack.encode(["group", 1, "s", "g", settings]), type=GroupNote
        )
        assert (group.owner, group.epoch) == (ownership.NOBODY, 0)

    def test_an_earlier_version_reads_the_notes_of_this_one(self):
        class EarlierQuery(msgspec.Struct, frozen=True, tag="query", array_like=True):
            name: str
            epoch: int
            settled: int
            last: int
            timeout_us: int
            void: list[int] = []
            began: int = 0

        class EarlierGroup(msgspec.Struct, frozen=True, tag="group", array_like=True):
            number: int
            subject: str
            name: str
            settings: Settings

        query = QueryNote("nightly", 2, 1, 1, 0, [], 0, "ann")
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(query), type=EarlierQuery).epoch == 2
        group = GroupNote(1, "s", "g", Settings.default(), "ann", 7)
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(group), type=EarlierGroup).name == "g"


def test_a_users_name_that_is_not_text_is_written_down_as_one_that_is():
    user = ownership.User("\udcff", "")
    assert ownership.owner_name(user) == "\\xff"
    ownership.check_operate(user, "/", ownership.QUERY, "q", owner="\\xff")
