"""What bulk readers and writers may not do to each other, to others, and to the broker's memory."""

from __future__ import annotations

import pika
import pytest

from leveret.amqp.properties import encode
from leveret.broker.access.passwords import hash_password
from leveret.broker.definitions import PermissionRow, UserRow
from leveret.broker.errors import QueryRefused
from leveret.broker.parameters import Key
from leveret.broker.queries.row_routing import RowOptions
from leveret.broker.queries.staged_batch_notes import StageName
from leveret.broker.queries.staged_batches import Stages
from leveret.flight import actions
from leveret.flight.tickets import StageDescriptor
from leveret.fronts.flight.answers import Answers
from leveret.storage.records import Message
from leveret.storage.segment import Segment
from leveret.testing.broker import Broker
from tests.fronts.flight.bulk_requests import QUEUE, Asked, declare

BODY_BYTES = 64 << 10


def give_back(broker: Broker, count: int) -> None:
    """A consumer takes so many messages, and returns them."""
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    for _ in range(count):
        assert channel.basic_get(QUEUE)[0] is not None
    channel.basic_nack(0, multiple=True, requeue=True)
    connection.close()
    broker.wait_until_depth(QUEUE, count)


@pytest.fixture
def asked(leveret_broker: Broker) -> Asked:
    declare(leveret_broker, [])
    return Asked(leveret_broker)


def add_user(broker: Broker, name: str, tags: str = "") -> None:
    """A user who may read and write everything, and configure nothing."""
    accounts = broker.server.broker.accounts
    accounts.put(UserRow(name, hash_password(b"secret", b"salt"), tags))
    accounts.permit(PermissionRow("/", name, "", ".*", ".*"))


class TestStages:
    def test_a_stage_that_expires_while_it_is_written_is_not_shown_in_part(self, asked, leveret_clock):
        assert asked.stage("s", [b"1", b"2"], before=0) == actions.Done()
        leveret_clock.advance(601)
        for bodies, before in (([b"3", b"4"], 2), ([], 2), ([], 4)):
            refused = asked.stage("s", bodies, before=before)
            assert (refused.kind, refused.code) == ("expired", 406)
        refused = asked(actions.Commit("/", "writer", 0, ["s"]))
        assert "is missing or incomplete" in refused.text
        assert asked.broker.depth(QUEUE) == 0

    @pytest.mark.parametrize(
        ("flags", "properties", "code", "sentence"),
        [
            (0x8000, b"\x09text", 502, "content header: its properties do not fill it exactly"),
            (0x1000, b"\x07", 406, "invalid message: {delivery_mode_unknown,7}"),
        ],
    )
    def test_a_row_with_wrong_properties_is_refused(self, asked, flags, properties, code, sentence):
        header = b"\0\x3c\0\0" + (1).to_bytes(8) + flags.to_bytes(2) + properties
        descriptor = StageDescriptor("/", "writer", 0, "s", timeout_s=600.0)
        rows = [(b"", QUEUE.encode(), header, b"1")]
        answers = Answers(asked.broker.server.broker)
        refused = asked.broker.call(lambda: answers.stage("guest", descriptor, rows))
        assert refused == actions.Refused(code, sentence)

    def test_rows_with_a_routing_key_that_the_user_may_not_write_are_refused(self, asked):
        add_user(asked.broker, "ann")
        header = b"\0\x3c\0\0" + (1).to_bytes(8) + b"\0\0"
        inside = asked.broker.server.broker
        answers = Answers(inside)

        def staged(key: bytes) -> object:
            inside.parameters.put(
                Key("topic-permission", "/", "ann"), {"amq.topic": {"write": "^own", "read": ""}}
            )
            descriptor = StageDescriptor("/", f"writer-{key!r}", 0, "s", timeout_s=600.0, mandatory=False)
            return answers.stage("ann", descriptor, [(b"amq.topic", key, header, b"1")])

        assert asked.broker.call(lambda: staged(b"own.rows")) == actions.Done()
        sentence = "access to topic 'rows' in exchange 'amq.topic' in vhost '/' refused for user 'ann'"
        assert asked.broker.call(lambda: staged(b"rows")) == actions.Refused(403, sentence)

    def test_a_stage_that_is_whole_is_shown(self, asked):
        for bodies, before in (([b"1", b"2"], 0), ([b"3"], 2), ([], 3)):
            assert asked.stage("s", bodies, before=before) == actions.Done()
        assert asked(actions.Commit("/", "writer", 0, ["s"])) == actions.Committed(3, False)
        assert asked.broker.depth(QUEUE) == 3
        assert asked.stage("t", [b"4"], before=7) == actions.Done(), "its batch is known: nobody needs it"

    @pytest.mark.parametrize("is_committed", [False, True])
    def test_nobody_ends_the_batches_of_another_user(self, asked, is_committed):
        add_user(asked.broker, "ann")
        add_user(asked.broker, "bob")
        if is_committed:
            asked.stage("r", [b"0"], before=0, user="ann")
            asked(actions.Commit("/", "writer", 0, ["r"]), "ann")
        assert asked.stage("s", [b"1"], before=0, user="ann", batch=1) == actions.Done()
        strange = [
            asked(actions.Commit("/", "writer", 1 << 62, []), "bob"),
            asked(actions.Commit("/", "writer", 1, ["s"]), "bob"),
            asked(actions.Abort("/", "writer", 1, []), "bob"),
            asked.stage("t", [b"2"], before=0, user="bob", batch=1),
        ]
        said = "access to sink 'writer' in vhost '/' refused for user 'bob': it belongs to another user"
        assert [(each.code, each.text) for each in strange] == [(403, said)] * 4
        assert asked(actions.Commit("/", "writer", 1, ["s"]), "ann") == actions.Committed(1, False)

    def test_whose_a_query_is_does_not_take_a_look_at_all_it_has_staged(self, asked, monkeypatch):
        for number in range(20):
            assert asked.stage("s", [b"%d" % number], before=number) == actions.Done()
        looks = []

        class Watched(list):
            def __iter__(self):
                looks.append(self)
                return super().__iter__()

        stages = asked.broker.server.broker.vhosts["/"].stages
        for name, parts in stages._stages.items():
            monkeypatch.setitem(stages._stages, name, Watched(parts))
        guest = asked.broker.server.broker.accounts.users["guest"]
        asked.broker.call(lambda: stages._check_owner("writer", guest))
        assert looks == []

    def test_an_administrator_may_go_on_with_the_query_of_another(self, asked):
        add_user(asked.broker, "ann")
        asked.stage("s", [b"1"], before=0, user="ann")
        asked(actions.Commit("/", "writer", 0, ["s"]), "ann")
        assert asked(actions.Commit("/", "writer", 0, ["s"])) == actions.Committed(0, True)
        assert asked(actions.Commit("/", "writer", 1, [])) == actions.Committed(0, False)
        assert asked(actions.Commit("/", "writer", 2, []), "ann") == actions.Committed(0, False), "still hers"

    def test_names_that_a_user_makes_up_push_out_no_others(self, asked, monkeypatch):
        monkeypatch.setattr("leveret.broker.queries.staged_batches.QUERIES_MAX", 10)
        for name in ("ann", "bob"):
            add_user(asked.broker, name)
        for number in range(5):
            asked(actions.Commit("/", f"ann-{number}", 7, []), "ann")
        for number in range(50):
            assert asked(actions.Commit("/", f"bob-{number}", 1 + number, []), "bob").known is False
        assert all(asked(actions.Commit("/", f"ann-{number}", 7, []), "ann").known for number in range(5))

    def test_rows_that_were_shown_are_a_querys_like_any_others(self, asked):
        for stage in ("counts", "does not"):
            asked.stage(stage, [b"1", b"2", b"3"], before=0)
        assert asked.held() == 0
        asked(actions.Commit("/", "writer", 0, ["counts"]))
        opened = asked.open()
        assert asked.lease(opened, 0).messages == 3
        assert asked.offsets(opened, 0, 1) == [0, 1, 2]
        assert asked.held() == 3

    def test_a_query_is_remembered_while_another_user_has_more_of_them(self, asked, monkeypatch):
        monkeypatch.setattr("leveret.broker.queries.staged_batches.QUERIES_MAX", 10)
        for name in ("ann", "bob"):
            add_user(asked.broker, name)
        asked(actions.Commit("/", "ann's", 7, []), "ann")
        for number in range(9):
            asked(actions.Commit("/", f"bob-{number}", 0, []), "bob")
        asked(actions.Commit("/", "of ann once", 0, []), "ann")
        assert asked(actions.Commit("/", "ann's", 7, []), "ann").known

    def test_a_message_that_nobody_could_get_is_not_taken(self, asked, monkeypatch):
        refused = asked.stage("s", [b"x"], before=0, header={"headers": {"trace": "x" * 140_000}})
        assert refused.code == 406
        assert "a frame has room for 131064" in refused.text
        assert (
            asked.stage("s", [b"x"], before=0, header={"headers": {"trace": "x" * 130_000}}) == actions.Done()
        )

    def test_who_is_held_back_with_the_publishers_gets_its_answer_later(self, leveret_broker):
        turns = leveret_broker.server.turns
        came: list[int] = []

        def ask(number: int) -> None:
            turns.when_caught_up(lambda: came.append(number))

        leveret_broker.set_alarm("memory", on=True)
        leveret_broker.wait_until(lambda: turns.held_back, "publishers are held back")
        leveret_broker.call(lambda: ask(1))
        assert came == []
        leveret_broker.set_alarm("memory", on=False)
        leveret_broker.wait_until(lambda: not turns.held_back, "publishers are read from")
        leveret_broker.call(lambda: ask(2))
        assert came == [1, 2]


class TestLeases:
    def test_a_query_that_begins_anew_shares_nothing_with_one_that_was_released(self, asked):
        declare(asked.broker, [b"%d" % number for number in range(10)])
        old = asked.open()
        assert asked.lease(old, 0, max_messages=3).end == 1
        assert asked.lease(old, 1, max_messages=3).end == 2
        asked(actions.Release("/", QUEUE, "nightly"))
        new = asked.open()
        assert new.epoch > old.epoch
        assert new.settled == new.last == 3
        assert asked.lease(old, 2).kind == "fenced"
        assert asked.lease(new, 3, max_messages=3).end == 4
        for old_checkpoint in (1, 2):
            assert asked.lease(new, old_checkpoint).kind == "forgotten"
        assert (asked.broker.depth(QUEUE), asked.held()) == (4, 3)
        assert asked.offsets(new, 3, 4) == [3, 4, 5]

    def test_a_query_that_begins_anew_shares_nothing_with_a_released_one_after_a_restart(self, asked):
        declare(asked.broker, [b"1", b"2"])
        old = asked.open()
        asked.lease(old, 0)
        asked(actions.Release("/", QUEUE, "nightly"))
        declare(asked.broker, [b"3"])  # when it is confirmed, all before is on disk
        asked.broker.crash()
        asked.broker.start()
        new = Asked(asked.broker).open()
        assert (new.epoch > old.epoch, new.settled) == (True, 2)

    def test_a_queue_that_was_declared_again_knows_no_run_over_the_old_one(self, asked):
        declare(asked.broker, [b"1"])
        old = asked.open()
        connection = pika.BlockingConnection(pika.URLParameters(asked.broker.url))
        connection.channel().queue_delete(QUEUE)
        declare(asked.broker, [b"2"])
        new = asked.open()
        assert new.epoch == old.epoch
        assert asked.lease(new, 0, log_id=new.log_id).end == 1
        for refused in (
            asked.lease(old, 1, log_id=old.log_id),
            asked(actions.Plan("/", QUEUE, "nightly", old.epoch, 0, 1, old.log_id)),
        ):
            assert refused.kind == "gone"
            assert "it was deleted and declared again" in refused.text
        assert asked.held() == 1, "the lease of the new one is not acked"

    def test_a_queue_that_a_query_holds_is_not_deleted_for_disuse(self, leveret_broker, leveret_clock):
        declare(leveret_broker, [b"x"], {"x-expires": 50})
        asked = Asked(leveret_broker)
        opened = asked.open()
        assert asked.lease(opened, 0).end == 1
        leveret_clock.advance(0.2)
        assert asked.lease(opened, 1).settled == 1
        queues = leveret_broker.server.broker.vhosts["/"].queues
        assert QUEUE in queues
        leveret_clock.advance(0.2)
        leveret_broker.wait_until(lambda: QUEUE not in queues, "nobody uses the queue any more")


class TestRoom:
    """A queue that refuses what is too much: rows count when they are to be seen."""

    LIMITS = pytest.mark.parametrize("limit", [{"x-max-length": 10}, {"x-max-length-bytes": 20}])
    TWO = b"xx"

    @pytest.fixture
    def asked(self, leveret_broker):
        return Asked(leveret_broker)

    def declared(self, asked, limit, count=0):
        declare(asked.broker, [self.TWO] * count, {"x-overflow": "reject-publish"} | limit)

    def committed(self, asked, *stages, batch=0):
        return asked(actions.Commit("/", "writer", batch, list(stages)))

    @LIMITS
    def test_what_a_driver_left_that_died_is_not_in_the_way_of_the_batch(self, asked, limit):
        self.declared(asked, limit)
        for stage in ("of the one that died", "task"):
            assert asked.stage(stage, [self.TWO] * 8, before=0) == actions.Done()
        assert self.committed(asked, "task").messages == 8
        assert asked.broker.depth(QUEUE) == 8

    @LIMITS
    def test_a_batch_that_is_too_much_is_not_committed_and_may_be_when_there_is_room(self, asked, limit):
        self.declared(asked, limit, count=3)
        for stage in ("one", "two"):
            assert asked.stage(stage, [self.TWO] * 4, before=0) == actions.Done()
        refused = self.committed(asked, "one", "two")
        assert refused.kind == "full"
        assert refused.text == "queue 'q' in vhost '/' is full and refuses new messages"
        assert asked.broker.depth(QUEUE) == 3
        asked.lease(asked.open(), 0, max_messages=1)
        assert self.committed(asked, "one", "two").messages == 8
        assert asked.broker.depth(QUEUE) == 10

    @LIMITS
    def test_two_batches_that_are_committed_in_one_moment_count_both(self, asked, limit):
        self.declared(asked, limit)
        for batch in (0, 1):
            asked.stage("task", [self.TWO] * 6, before=0, batch=batch)
        stages = asked.broker.server.broker.vhosts["/"].batches()
        user = asked.broker.server.broker.accounts.users["guest"]

        def both():
            assert stages.commit("writer", 0, ["task"], user=user) == 6
            with pytest.raises(QueryRefused, match="is full"):
                stages.commit("writer", 1, ["task"], user=user)

        asked.broker.call(both)

    def test_a_commit_is_not_refused_for_a_queue_that_it_does_not_write_to(self, asked):
        self.declared(asked, {"x-max-length": 10})
        asked.stage("task", [self.TWO] * 8, before=0)
        broker = asked.broker.server.broker
        queue, stages = broker.vhosts["/"].queues[QUEUE], broker.vhosts["/"].batches()
        guest = broker.accounts.users["guest"]

        def both():
            assert stages.commit("writer", 0, ["task"], user=guest) == 8
            queue.append([Message(b"", QUEUE.encode(), encode({}, 2), self.TWO)] * 5)
            return stages.commit("another", 0, [], user=guest)

        assert asked.broker.call(both) == 0

    def test_consumers_that_are_waiting_make_room_first(self, asked):
        self.declared(asked, {"x-max-length": 10})
        asked.stage("task", [self.TWO] * 6, before=0)
        broker = asked.broker.server.broker
        queue, stages = broker.vhosts["/"].queues[QUEUE], broker.vhosts["/"].batches()
        connection = pika.BlockingConnection(pika.URLParameters(asked.broker.url))
        connection.channel().basic_consume(QUEUE, lambda *_: None)

        def both():
            queue.append([Message(b"", QUEUE.encode(), encode({}, 2), self.TWO)] * 5)
            return stages.commit("writer", 0, ["task"], user=broker.accounts.users["guest"])

        assert asked.broker.call(both) == 6
        connection.close()

    def test_queues_of_a_batch_are_looked_at_together(self, asked, monkeypatch):
        """One by one it took their number times as long, and twice that for a commit."""
        looked = []

        def watched(stages, parts):
            looked.append(parts)
            return places(stages, parts)

        places = Stages._places
        monkeypatch.setattr(Stages, "_places", watched)
        connection = pika.BlockingConnection(pika.URLParameters(asked.broker.url))
        channel = connection.channel()
        channel.exchange_declare("all", "fanout", durable=True)
        for number in range(20):
            limits = {"x-max-length": 100, "x-overflow": "reject-publish"}
            channel.queue_declare(f"q{number}", durable=True, arguments=limits)
            channel.queue_bind(f"q{number}", "all")
        connection.close()
        row = (b"all", b"", encode({"delivery_mode": 2}, 1), b"x")
        broker = asked.broker.server.broker
        stages, user = broker.vhosts["/"].batches(), broker.accounts.users["guest"]
        terms = RowOptions(user, True, None, 1_000_000)

        def written_and_committed():
            broker.begin_turn()
            stages.write(StageName("writer", 0, "task"), [row], terms)
            stages.write(StageName("writer", 0, "task"), [row], terms, before=1)
            assert stages.commit("writer", 0, ["task"], user=user) == 2

        asked.broker.call(written_and_committed)
        assert len(looked) < 20, "less often than there are queues"

    def test_a_task_that_writes_too_much_hears_of_it_before_its_end(self, asked):
        self.declared(asked, {"x-max-length": 10})
        assert asked.stage("task", [self.TWO] * 6, before=0) == actions.Done()
        assert asked.stage("task", [self.TWO] * 6, before=6).kind == "full"


class TestDeletion:
    def refused(self, broker: Broker, **only: bool) -> str:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
            connection.channel().queue_delete(QUEUE, **only)
        connection.close()
        return caught.value.reply_text

    def test_a_queue_that_a_query_holds_messages_of_is_in_use(self, asked):
        declare(asked.broker, [b"x"])
        assert asked.lease(asked.open(), 0).messages == 1
        assert self.refused(asked.broker, if_unused=True).endswith("queue 'q' in vhost '/' in use")

    def test_a_queue_with_rows_of_a_batch_is_in_use_and_not_empty(self, asked):
        asked.stage("task", [b"x"], before=0)
        assert self.refused(asked.broker, if_unused=True).endswith("queue 'q' in vhost '/' in use")
        assert self.refused(asked.broker, if_empty=True).endswith("queue 'q' in vhost '/' not empty")


@pytest.fixture
def loads(monkeypatch):
    """The blocks that were read, with their bodies."""
    found = []
    load = Segment.load

    def watched(self, block):
        if block.length >= BODY_BYTES:
            found.append(block)
        return load(self, block)

    monkeypatch.setattr(Segment, "load", watched)
    return found


class TestMemory:
    """Nobody reads a million bodies to lend them."""

    def restarted(self, tmp_path, arguments=None, **said):
        """A broker that finds 200 messages of 64 KiB on its disk: at least seven blocks."""
        with Broker(tmp_path) as broker:
            declare(broker, [b"x" * BODY_BYTES] * 200, arguments, **said)
        return Broker(tmp_path)

    @pytest.mark.real
    def test_a_lease_of_a_plain_queue_reads_no_bodies(self, tmp_path, loads):
        with self.restarted(tmp_path) as broker:
            asked = Asked(broker)
            assert asked.lease(asked.open(), 0).messages == 200
            assert len(loads) <= 1, "the first message may be one that expires"

    @pytest.mark.real
    def test_one_that_is_limited_by_bytes_reads_none_either(self, tmp_path, loads):
        with self.restarted(tmp_path) as broker:
            asked = Asked(broker)
            opened = asked.open()
            assert asked.lease(opened, 0, max_bytes=5 * BODY_BYTES).messages == 5
            assert asked.lease(opened, 1, max_bytes=5 * BODY_BYTES - 1).messages == 4
            assert asked.lease(opened, 2, max_bytes=1).messages == 1
            assert asked.offsets(opened, 2, 3) == [9]
            assert len(loads) <= 1

    @pytest.mark.real
    def test_a_commit_reads_no_bodies_to_see_if_they_fit(self, tmp_path, loads):
        with Broker(tmp_path) as broker:
            declare(broker, [], {"x-max-length-bytes": 1 << 30, "x-overflow": "reject-publish"})
            asked = Asked(broker)
            for before in range(0, 200, 50):
                asked.stage("task", [b"x" * BODY_BYTES] * 50, before=before)
        with Broker(tmp_path) as broker:
            assert Asked(broker)(actions.Commit("/", "writer", 0, ["task"])).messages == 200
            assert len(loads) <= 1, "the first message may be one that expires"

    def test_a_lease_of_a_queue_with_priorities_is_bounded(self, leveret_broker, monkeypatch):
        monkeypatch.setattr("leveret.broker.queues.message_sizes.COUNT_MAX", 10)
        declare(leveret_broker, [b"x"] * 25, {"x-max-priority": 5})
        asked = Asked(leveret_broker)
        opened = asked.open()
        assert [asked.lease(opened, number).messages for number in range(4)] == [10, 10, 5, 0]

    @pytest.mark.real
    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ({"x-message-ttl": 3_600_000}, {}),
            ({"x-max-length-bytes": 1 << 30}, {}),
            ({}, {"expiration": "3600000"}),
        ],
        ids=["ttl", "bytes", "expiration"],
    )
    def test_where_messages_must_be_looked_at_a_lease_is_small(self, tmp_path, monkeypatch, arguments, said):
        monkeypatch.setattr("leveret.broker.queues.deliverer.LOOKED_AT_BYTES", 10 * BODY_BYTES)
        with self.restarted(tmp_path, arguments, **said) as broker:
            asked = Asked(broker)
            opened = asked.open()
            for number in range(20):
                assert asked.lease(opened, number).messages == 10
            assert asked.offsets(opened, 19, 20) == list(range(190, 200))
            assert asked.lease(opened, 20).messages == 0

    @pytest.mark.real
    def test_where_messages_have_come_back_that_may_be_worn_out_a_lease_is_small(self, tmp_path, monkeypatch):
        monkeypatch.setattr("leveret.broker.queues.deliverer.LOOKED_AT_BYTES", 10 * BODY_BYTES)
        with self.restarted(tmp_path, {"x-delivery-limit": 5}) as broker:
            asked = Asked(broker)
            opened = asked.open()
            assert asked.lease(opened, 0, max_messages=100).messages == 100
            give_back(broker, 100)
            for number in range(1, 11):
                assert asked.lease(opened, number).messages == 10
            assert asked.offsets(opened, 10, 11) == list(range(190, 200))
            assert asked.lease(opened, 11).messages == 0
