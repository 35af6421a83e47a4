"""The Flight endpoint: a real process beside a real broker, and a bare client of it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pika
import pyarrow as pa
import pytest
from msgspec import structs
from pika.adapters.blocking_connection import BlockingChannel
from pyarrow import flight

from leveret.amqp.properties import encode
from leveret.broker.access.passwords import hash_password
from leveret.broker.definitions import PermissionRow, UserRow
from leveret.flight import actions, schemas
from leveret.flight.tickets import ReadTicket, StageDescriptor, pack_ranges, unpack_ranges
from leveret.fronts.flight import staged_rows
from leveret.fronts.flight.endpoint import FlightSettings
from leveret.storage.cursor import Cursor
from leveret.storage.journal import Entry, Kind, Outcome
from leveret.testing.broker import Broker
from tests.fronts.flight.flight_client import Bulk, refusal
from tests.processes import WAIT_S

pytestmark = pytest.mark.real

HEADER = encode({"delivery_mode": 2, "message_id": "m-1"}, 5)
names = (f"q{number}" for number in count())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("flight") / "data", flight=True) as broker:
        yield broker


@pytest.fixture(scope="module")
def channel(broker: Broker) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url + "?heartbeat=0"))
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    connection.close()


@pytest.fixture(scope="module")
def bulk(broker: Broker) -> Bulk:
    return Bulk(port_of(broker))


@pytest.fixture
def queue(channel: BlockingChannel) -> str:
    """A new queue with ten messages."""
    name = next(names)
    channel.queue_declare(name, durable=True)
    publish(channel, name, 10)
    return name


def port_of(broker: Broker) -> int:
    assert broker.endpoint is not None
    return broker.endpoint.port


def publish(channel: BlockingChannel, queue: str, count: int) -> None:
    properties = pika.BasicProperties(delivery_mode=2)
    for number in range(count):
        channel.basic_publish("", queue, b"%d" % number, properties)


def opened(bulk: Bulk, queue: str, query: str = "nightly") -> int:
    answer = bulk.ask(actions.Open("/", queue, query, 3600.0))
    assert isinstance(answer, actions.Opened)
    return answer.epoch


def settlements(cursor: Cursor) -> list[tuple[int, list[tuple[int, int]]]]:
    """What a cursor's journal says, in its order: outcomes, and of which offsets."""
    journal = cursor.journal
    entries = [Entry.of(record) for record in journal.read([(journal.first, journal.next)])]
    return [(each.outcome, list(each.ranges)) for each in entries if each.kind == Kind.SETTLED]


def bodies(table: pa.Table) -> list[bytes]:
    return table.column("body").to_pylist()


class TestLeases:
    def test_a_lease_is_read_again_as_it_was_until_it_is_settled(self, broker, bulk, queue):
        epoch = opened(bulk, queue)
        leased = bulk.ask(actions.Lease("/", queue, "nightly", epoch, 0, max_messages=4))
        assert leased == actions.Leased(end=1, messages=4, ready=6, settled=0)
        assert (broker.depth(queue), broker.unacked(queue)) == (6, 4)
        for _ in range(2):
            planned = bulk.ask(actions.Plan("/", queue, "nightly", epoch, 0, 1))
            (portion,) = planned.portions
            table = bulk.read(ReadTicket("/", queue, planned.log_id, portion.ranges))
            assert bodies(table) == [b"0", b"1", b"2", b"3"]
        assert bulk.ask(actions.Lease("/", queue, "nightly", epoch, 0, max_messages=2)).end == 1
        assert bulk.ask(actions.Lease("/", queue, "nightly", epoch, 1, settle_only=True)).settled == 1
        assert (broker.depth(queue), broker.unacked(queue)) == (6, 0)

    def test_a_settled_lease_can_not_be_read_again(self, bulk, queue):
        epoch = opened(bulk, queue)
        bulk.ask(actions.Lease("/", queue, "nightly", epoch, 0))
        bulk.ask(actions.Lease("/", queue, "nightly", epoch, 1))
        refused = bulk.ask(actions.Plan("/", queue, "nightly", epoch, 0, 1))
        assert (refused.code, refused.kind) == (406, "settled")
        assert "was it restored" in refused.hint

    def test_a_checkpoint_from_before_the_acks_is_refused_and_skips_nothing(self, bulk, queue):
        epoch = opened(bulk, queue)
        bulk.ask(actions.Lease("/", queue, "nightly", epoch, 0, max_messages=3))
        bulk.ask(actions.Lease("/", queue, "nightly", epoch, 1, settle_only=True))
        epoch = opened(bulk, queue)
        assert bulk.ask(actions.Lease("/", queue, "nightly", epoch, 0)).kind == "settled"

    def test_another_run_takes_over_and_the_first_is_refused(self, bulk, queue):
        first = opened(bulk, queue)
        bulk.ask(actions.Lease("/", queue, "nightly", first, 0))
        second = opened(bulk, queue)
        refused = bulk.ask(actions.Lease("/", queue, "nightly", first, 1))
        assert refused.kind == "fenced"
        assert bulk.ask(actions.Lease("/", queue, "nightly", second, 0)).end == 1

    def test_two_queries_and_a_consumer_share_a_queue(self, broker, bulk, channel, queue):
        one, two = opened(bulk, queue, "one"), opened(bulk, queue, "two")
        assert bulk.ask(actions.Lease("/", queue, "one", one, 0, max_messages=3)).messages == 3
        assert bulk.ask(actions.Lease("/", queue, "two", two, 0, max_messages=3)).messages == 3
        method, _, body = channel.basic_get(queue)
        assert body == b"6"
        channel.basic_ack(method.delivery_tag)
        assert broker.depth(queue) == 3

    def test_a_query_leaves_consumers_their_share(self, bulk, channel, queue):
        channel.basic_qos(prefetch_count=1)
        tag = channel.basic_consume(queue, lambda *_: None)
        epoch = opened(bulk, queue)
        assert bulk.ask(actions.Lease("/", queue, "nightly", epoch, 0)).messages == 5  # of nine
        channel.basic_cancel(tag)

    def test_a_limit_of_bytes_holds_but_one_message_is_always_given(self, bulk, channel):
        name = next(names)
        channel.queue_declare(name)
        for size in (10, 10, 100, 10):
            channel.basic_publish("", name, b"x" * size)
        epoch = opened(bulk, name)
        sizes = []
        for start in range(3):
            leased = bulk.ask(actions.Lease("/", name, "nightly", epoch, start, max_bytes=50))
            sizes.append(leased.messages)
        assert sizes == [2, 1, 1]

    def test_what_came_back_says_so(self, bulk, channel, queue):
        method, _, _ = channel.basic_get(queue)
        channel.basic_nack(method.delivery_tag)
        epoch = opened(bulk, queue)
        while not (bulk.ask(actions.Lease("/", queue, "nightly", epoch, 0)).end):
            time.sleep(0.01)
        (portion,) = bulk.ask(actions.Plan("/", queue, "nightly", epoch, 0, 1)).portions
        assert portion.counts == {0: 1}

    def test_a_lease_expires_and_its_messages_go_back(self, broker, bulk, queue):
        answer = bulk.ask(actions.Open("/", queue, "slow", 0.05))
        bulk.ask(actions.Lease("/", queue, "slow", answer.epoch, 0))
        broker.wait_until_depth(queue, 10)

    def test_a_lease_that_expired_before_anybody_worked_on_it_is_passed_over(self, broker, bulk, queue):
        epoch = bulk.ask(actions.Open("/", queue, "slow", 0.05)).epoch
        bulk.ask(actions.Lease("/", queue, "slow", epoch, 0, max_messages=3))
        broker.wait_until_depth(queue, 10)
        epoch = bulk.ask(actions.Open("/", queue, "slow", 3600.0)).epoch
        assert bulk.ask(actions.Lease("/", queue, "slow", epoch, 0, max_messages=4)).end == 2
        (portion,) = bulk.ask(actions.Plan("/", queue, "slow", epoch, 0, 2)).portions
        assert portion.messages == 4

    def test_nobody_has_a_queue_alone_that_a_query_holds(self, bulk, channel, queue):
        epoch = opened(bulk, queue)
        bulk.ask(actions.Lease("/", queue, "nightly", epoch, 0))
        other = channel.connection.channel()
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="in use by a query"):
            other.basic_consume(queue, lambda *_: None, exclusive=True)

    def test_a_released_query_gives_back_what_it_holds(self, broker, bulk, queue):
        epoch = opened(bulk, queue)
        bulk.ask(actions.Lease("/", queue, "nightly", epoch, 0))
        assert bulk.ask(actions.Release("/", queue, "nightly")) == actions.Done()
        assert broker.depth(queue) == 10

    def test_rejected_messages_are_settled_and_in_no_lease_any_more(self, broker, bulk, queue):
        epoch = opened(bulk, queue)
        bulk.ask(actions.Lease("/", queue, "nightly", epoch, 0, max_messages=4))
        bulk.ask(actions.Lease("/", queue, "nightly", epoch, 1, max_messages=3))
        request = actions.Reject("/", queue, "nightly", pack_ranges([(0, 1), (5, 6), (8, 99)]))
        for _ in range(2):  # the second time nothing is left to do
            assert bulk.ask(request) == actions.Done()
        planned = bulk.ask(actions.Plan("/", queue, "nightly", epoch, 1, 2))
        assert [unpack_ranges(each.ranges) for each in planned.portions] == [[(4, 5), (6, 7)]]
        progress = broker.server.broker.vhosts["/"].queues[queue].cursor.progress
        assert broker.call(lambda: (5 in progress.settled, 6 in progress.settled)) == (True, False)
        assert bulk.ask(actions.Lease("/", queue, "nightly", epoch, 2)).settled == 2
        assert broker.depth(queue) == 0  # the last three are in lease 3
        assert broker.unacked(queue) == 3

    def test_what_a_query_that_is_not_there_rejects_changes_nothing(self, broker, bulk, queue):
        assert bulk.ask(actions.Reject("/", queue, "never", pack_ranges([(0, 9)]))) == actions.Done()
        assert broker.depth(queue) == 10

    @pytest.mark.parametrize("ranges", [b"x", bytes(8), bytes(16), pack_ranges([(9, 3)])])
    def test_ranges_that_make_no_sense_are_refused(self, bulk, queue, ranges):
        opened(bulk, queue)
        refused = bulk.ask(actions.Reject("/", queue, "nightly", ranges))
        assert refused.text.startswith("the ranges of offsets")

    def test_leases_survive_a_kill_of_the_process(self, broker, bulk, queue):
        epoch = opened(bulk, queue)
        bulk.ask(actions.Lease("/", queue, "nightly", epoch, 0))
        os.kill(broker.endpoint.pid, signal.SIGKILL)
        again = Bulk(port_of(broker))
        deadline_s = time.monotonic() + WAIT_S
        while time.monotonic() < deadline_s:
            try:
                assert again.ask(actions.Lease("/", queue, "nightly", epoch, 0)).end == 1
                return
            except flight.FlightUnavailableError:
                time.sleep(0.1)
        pytest.fail("the process was not started again")

    def test_an_exclusive_consumer_shares_with_no_query(self, bulk, channel, queue):
        tag = channel.basic_consume(queue, lambda *_: None, exclusive=True)
        refused = bulk.ask(actions.Open("/", queue, "nightly", 60.0))
        assert (refused.code, refused.text) == (403, f"queue '{queue}' in vhost '/' in exclusive use")
        channel.basic_cancel(tag)

    def test_a_checkpoint_ahead_of_the_broker_is_refused(self, bulk, queue):
        epoch = opened(bulk, queue)
        assert bulk.ask(actions.Lease("/", queue, "nightly", epoch, 7)).kind == "gone"
        assert bulk.ask(actions.Plan("/", queue, "nightly", epoch, 0, 7)).kind == "gone"

    @pytest.mark.parametrize("name", ["", "a\nb", "x" * 201])
    def test_a_query_needs_a_name_that_can_be_shown(self, bulk, queue, name):
        assert bulk.ask(actions.Open("/", queue, name, 60.0)).code == 406

    def test_expired_messages_are_in_no_lease(self, broker, bulk, channel):
        name = next(names)
        channel.queue_declare(name)
        for expiration in (None, "1", None):
            channel.basic_publish("", name, b"x", pika.BasicProperties(expiration=expiration))
        time.sleep(0.01)
        epoch = opened(bulk, name)
        assert bulk.ask(actions.Lease("/", name, "nightly", epoch, 0)).messages == 2
        assert broker.unacked(name) == 2


class TestReads:
    def test_a_snapshot_consumes_nothing(self, broker, bulk, queue):
        planned = bulk.ask(actions.Snapshot("/", queue, 2, 5))
        (portion,) = planned.portions
        table = bulk.read(ReadTicket("/", queue, planned.log_id, portion.ranges, with_headers=True))
        assert bodies(table) == [b"2", b"3", b"4"]
        assert table.schema.equals(schemas.READ_WITH_HEADERS)
        assert broker.depth(queue) == 10

    def test_messages_that_are_gone_are_an_error_unless_that_is_accepted(self, broker, bulk, channel, queue):
        planned = bulk.ask(actions.Snapshot("/", queue))
        channel.queue_purge(queue)
        publish(channel, queue, 1)
        broker.call(broker.server.broker.store.checkpoint)
        ticket = ReadTicket("/", queue, planned.log_id, pack_ranges([(0, 11)]))
        with pytest.raises(flight.FlightServerError) as caught:
            bulk.read(ticket)
        assert refusal(caught.value).text == f"10 messages of queue '{queue}' in vhost '/' are gone"
        assert len(bulk.read(structs.replace(ticket, exact=False))) == 1

    def test_messages_whose_file_is_lost_are_gone_and_the_others_are_read(self, broker, bulk, channel, queue):
        planned = bulk.ask(actions.Snapshot("/", queue))
        store = broker.server.broker.store
        broker.call(store.checkpoint)
        log = broker.server.broker.vhosts["/"].queues[queue].log
        for segment in log.segments:
            (broker.directory / segment.path).unlink()
        publish(channel, queue, 5)
        ticket = ReadTicket("/", queue, planned.log_id, pack_ranges([(0, 15)]))
        with pytest.raises(flight.FlightServerError) as caught:
            bulk.read(ticket)
        assert refusal(caught.value).text == f"10 messages of queue '{queue}' in vhost '/' are gone"
        assert bodies(bulk.read(structs.replace(ticket, exact=False))) == [b"%d" % each for each in range(5)]

    def test_offsets_that_were_never_given_are_refused(self, bulk, queue):
        log_id = bulk.ask(actions.Snapshot("/", queue)).log_id
        with pytest.raises(flight.FlightServerError) as caught:
            bulk.read(ReadTicket("/", queue, log_id, pack_ranges([(5, 99)])))
        assert refusal(caught.value).kind == "gone"

    def test_a_queue_of_the_same_name_is_another(self, bulk, channel, queue):
        planned = bulk.ask(actions.Snapshot("/", queue))
        channel.queue_delete(queue)
        channel.queue_declare(queue)
        with pytest.raises(flight.FlightServerError) as caught:
            bulk.read(ReadTicket("/", queue, planned.log_id, pack_ranges([(0, 1)])))
        assert refusal(caught.value).kind == "gone"


class TestRejectsOfStreams:
    @pytest.fixture
    def stream(self, channel) -> str:
        name = next(names)
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
        publish(channel, name, 10)
        return name

    def test_rejected_messages_are_settled_as_that_and_read_again_with_their_batch(
        self, broker, bulk, stream
    ):
        subject = ("/", stream, False)
        epoch = bulk.ask(actions.Follow(*subject, query="nightly", at=actions.At("first"))).epoch
        rejected = {stream: pack_ranges([(0, 2), (5, 6), (8, 99)]), "elsewhere": pack_ranges([(0, 1)])}
        for _ in range(2):  # the second time nothing is left to do
            answer = bulk.ask(actions.RejectRead(*subject, query="nightly", ranges=rejected))
            assert answer == actions.Done()
        covered = bulk.ask(actions.Cover(*subject, query="nightly", epoch=epoch, spans={stream: (0, 10)}))
        assert unpack_ranges(covered.parts[0].ranges) == [(0, 10)]
        offsets = {stream: 9}
        bulk.ask(actions.Advance(*subject, query="nightly", epoch=epoch, offsets=offsets, settle_only=True))
        cursor = broker.server.broker.vhosts["/"].groups.get(stream, "nightly").partitions[stream].cursor
        assert broker.call(lambda: settlements(cursor)) == [
            (Outcome.SENT_TO_REJECTS, [(0, 2), (5, 6), (8, 10)]),
            (Outcome.ACKED, [(2, 5), (6, 8)]),
        ]

    @pytest.mark.parametrize("end", [1 << 44, (1 << 64) - 1])
    def test_offsets_that_there_never_were_are_not_even_thought_of(self, bulk, stream, queue, end):
        subject = ("/", stream, False)
        bulk.ask(actions.Follow(*subject, query="nightly", at=actions.At("first")))
        far = pack_ranges([(5, end), (1 << 40, end)])
        asked = actions.RejectRead(*subject, query="nightly", ranges={stream: far})
        assert bulk.ask(asked) == actions.Done()
        opened(bulk, queue)
        assert bulk.ask(actions.Reject("/", queue, "nightly", ranges=far)) == actions.Done()

    def test_a_group_with_members_and_one_that_is_not_there_reject_nothing(
        self, broker, bulk, channel, stream
    ):
        member = channel.connection.channel()
        member.basic_qos(prefetch_count=1)
        member.basic_consume(stream, lambda *_: None, arguments={"x-group": "members"})
        for name in ("members", "never"):
            ranges = {stream: pack_ranges([(0, 10)])}
            answer = bulk.ask(actions.RejectRead("/", stream, False, query=name, ranges=ranges))
            assert answer == actions.Done()
        group = broker.server.broker.vhosts["/"].groups.get(stream, "members")
        assert broker.call(lambda: group.lag) == 10
        member.close()

    def test_ranges_that_make_no_sense_are_refused_and_nothing_is_settled(self, broker, bulk, stream):
        subject = ("/", stream, False)
        bulk.ask(actions.Follow(*subject, query="nightly", at=actions.At("first")))
        request = actions.RejectRead(*subject, query="nightly", ranges={stream: b"x"})
        assert bulk.ask(request).text == "the ranges of offsets can't be decoded"
        group = broker.server.broker.vhosts["/"].groups.get(stream, "nightly")
        assert broker.call(lambda: group.lag) == 10

    def test_what_is_no_stream_can_not_be_rejected_like_this(self, bulk, queue):
        refused = bulk.ask(actions.RejectRead("/", queue, False, query="nightly", ranges={}))
        assert refused.kind == "kind"


class TestStages:
    def test_rows_are_seen_when_their_batch_is_committed_and_once(self, broker, bulk, queue):
        descriptor = StageDescriptor("/", f"w-{queue}", 0, "task-1", 3600.0)
        bulk.write(descriptor, [(b"", queue.encode(), HEADER, b"row-%d" % n) for n in range(5000)])
        again = structs.replace(descriptor, stage="task-1-again")
        bulk.write(again, [(b"", queue.encode(), HEADER, b"other")])
        assert (broker.depth(queue), broker.unacked(queue)) == (10, 0)
        assert bulk.ask(actions.Snapshot("/", queue)).portions[0].messages == 10
        commit = actions.Commit("/", f"w-{queue}", 0, ["task-1"])
        assert bulk.ask(commit) == actions.Committed(5000, known=False)
        assert bulk.ask(commit) == actions.Committed(0, known=True)
        assert (broker.depth(queue), broker.unacked(queue)) == (5010, 0)
        bulk.write(descriptor, [(b"", queue.encode(), HEADER, b"again")])
        assert broker.depth(queue) == 5010

    def test_an_aborted_batch_leaves_nothing(self, broker, bulk, queue):
        descriptor = StageDescriptor("/", f"w-{queue}", 3, "task", 3600.0)
        bulk.write(descriptor, [(b"", queue.encode(), HEADER, b"row")])
        assert bulk.ask(actions.Abort("/", f"w-{queue}", 3, [])) == actions.Done()
        assert bulk.ask(actions.Commit("/", f"w-{queue}", 3, ["task"])).kind == "expired"
        assert broker.depth(queue) == 10

    def test_an_abandoned_stage_expires(self, broker, bulk, queue):
        descriptor = StageDescriptor("/", f"w-{queue}", 0, "task", 0.05)
        bulk.write(descriptor, [(b"", queue.encode(), HEADER, b"row")])
        broker.wait_until(
            lambda: not broker.server.broker.vhosts["/"].queues[queue].hidden, "the stage has expired"
        )
        assert bulk.ask(actions.Commit("/", f"w-{queue}", 0, ["task"])).kind == "expired"

    def test_a_row_that_no_queue_takes_fails_its_stage(self, bulk, queue):
        descriptor = StageDescriptor("/", f"w-{queue}", 0, "task", 60.0)
        with pytest.raises(flight.FlightServerError) as caught:
            bulk.write(descriptor, [(b"", queue.encode(), HEADER, b"1"), (b"", b"nowhere", HEADER, b"2")])
        refused = refusal(caught.value)
        assert refused.kind == "unroutable"
        assert "'nowhere'" in refused.text
        assert "unroutableExchange" in refused.hint

    def test_such_a_row_goes_to_a_side_exchange_or_nowhere_by_choice(self, broker, bulk, channel, queue):
        channel.exchange_declare("side", "fanout", durable=True)
        channel.queue_declare("aside", durable=True)
        channel.queue_bind("aside", "side")
        rows = [(b"", b"nowhere", HEADER, b"lost?")]
        query = f"w-{queue}"
        bulk.write(StageDescriptor("/", query, 0, "task", 60.0, unroutable="side"), rows)
        bulk.write(StageDescriptor("/", query, 0, "careless", 60.0, mandatory=False), rows)
        bulk.ask(actions.Commit("/", query, 0, ["task", "careless"]))
        assert broker.depth("aside") == 1

    def test_a_full_queue_refuses_a_stage(self, bulk, channel):
        name = next(names)
        arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
        channel.queue_declare(name, arguments=arguments)
        rows = [(b"", name.encode(), HEADER, b"x")] * 2
        with pytest.raises(flight.FlightServerError) as caught:
            bulk.write(StageDescriptor("/", f"w-{name}", 0, "task", 60.0), rows)
        assert refusal(caught.value).kind == "full"

    @pytest.mark.parametrize("header", [b"", b"\x00\x3c\x00\x00", HEADER, HEADER[:11], b"x" + HEADER[1:]])
    def test_a_header_that_is_not_that_of_its_body_is_refused(self, bulk, queue, header):
        descriptor = StageDescriptor("/", f"w-{queue}", 0, "task", 60.0)
        with pytest.raises(flight.FlightServerError, match="does not belong to its body"):
            bulk.write_as_they_are(descriptor, [(b"", queue.encode(), header, b"longer")])

    @pytest.mark.parametrize(
        ("row", "text"),
        [
            ((b"x" * 256, b"", HEADER, b""), "a row's exchange has 256 bytes, more than 255"),
            ((b"", b"x" * 256, HEADER, b""), "a row's routing_key has 256 bytes, more than 255"),
            ((b"", b"", b"x" * (17 << 20), b""), "a row's header has 17825792 bytes, more than 16777216"),
            ((b"", b"q", HEADER, b"x" * 101), "message size 101 is larger than configured max size 100"),
        ],
        ids=["exchange", "key", "header", "body"],
    )
    def test_what_no_message_could_be_does_not_come_as_far_as_the_broker(self, row, text):
        rows = pa.record_batch([pa.array([each], pa.binary()) for each in row], schema=schemas.WRITE)
        with pytest.raises(staged_rows.RowsRefused) as caught:
            staged_rows.check(rows, 100)
        assert caught.value.refused == actions.Refused(406, text)

    def test_a_request_has_a_size(self, bulk):
        (result,) = bulk.client.do_action(flight.Action(actions.ACTION, bytes(57 << 20)), bulk.options)
        text = "a request has 59768832 bytes, and at most 4194304 are read"
        assert actions.decode_answer(result.body.to_pybytes()) == actions.Refused(406, text)

    def test_who_is_held_back_hears_of_names_that_are_no_utf8(self, broker, bulk, queue):
        turns = broker.server.turns

        def write() -> actions.Refused:
            rows = [(b"\xff", b"", encode({}, 1), b"x")]
            with pytest.raises(flight.FlightServerError) as caught:
                bulk.write_as_they_are(StageDescriptor("/", f"w-{queue}", 0, "task", 60.0), rows)
            return refusal(caught.value)

        broker.set_alarm("memory", on=True)
        broker.wait_until(lambda: turns.held_back, "publishers are held back")
        try:
            with ThreadPoolExecutor(1) as writer:
                written = writer.submit(write)
                broker.wait_until(lambda: turns._waiting, "the answer waits")
                broker.set_alarm("memory", on=False)
                assert written.result(WAIT_S).text == "no exchange '?' in vhost '/'"
        finally:
            broker.set_alarm("memory", on=False)

    def test_names_that_amqp_has_no_room_for_are_refused(self, bulk, queue):
        descriptor = StageDescriptor("/", f"w-{queue}", 0, "task", 60.0, mandatory=False)
        with pytest.raises(flight.FlightServerError, match="a row's exchange has 300 bytes, more than 255"):
            bulk.write(descriptor, [(b"x" * 300, b"", HEADER, b"x"), (b"", b"x" * 300, HEADER, b"x")])

    def test_copies_and_senders_count_as_with_any_publish(self, broker, bulk, queue):
        copied = encode({"headers": {"CC": [queue]}, "user_id": "guest"}, 1)
        forged = encode({"user_id": "somebody"}, 1)
        descriptor = StageDescriptor("/", f"w-{queue}", 0, "task", 60.0)
        bulk.write(descriptor, [(b"", b"nowhere", copied, b"x")])
        another = structs.replace(descriptor, stage="another task")
        with pytest.raises(flight.FlightServerError, match="authenticated user was 'guest'"):
            bulk.write(another, [(b"", queue.encode(), forged, b"x")])
        bulk.ask(actions.Commit("/", f"w-{queue}", 0, ["task"]))
        assert broker.depth(queue) == 11


def test_a_null_in_a_row_is_refused_and_costs_nobody_else_anything(broker, bulk, queue):
    pid = broker.endpoint.pid
    for nulls in ((None, queue.encode(), HEADER, b"x"), (b"", None, HEADER, b"x"), (b"", b"k", None, b"x")):
        with pytest.raises(flight.FlightServerError, match="rows must not have nulls"):
            bulk.write_as_they_are(StageDescriptor("/", f"w-{queue}", 0, "task", 60.0), [nulls])
    assert isinstance(bulk.ask(actions.Snapshot("/", queue)), actions.Planned)
    assert broker.endpoint.pid == pid


class TestRights:
    @pytest.fixture
    def reader(self, broker: Broker) -> Bulk:
        """A user who may read queues that begin with r, and write nothing."""

        def add() -> None:
            accounts = broker.server.broker.accounts
            accounts.put(UserRow("rita", hash_password(b"secret", b"salt")))
            accounts.permit(PermissionRow("/", "rita", "^$", "^$", "^r"))

        broker.call(add)
        return Bulk(port_of(broker), "rita", "secret")

    @pytest.mark.parametrize(("user", "password"), [("guest", "wrong"), ("nobody", "guest"), ("", "")])
    def test_who_is_not_known_is_not_let_in(self, broker, user, password):
        with pytest.raises(flight.FlightUnauthenticatedError, match="was refused"):
            Bulk(port_of(broker), user, password).ask(actions.Snapshot("/", "q"))

    def test_without_a_name_nothing_is_answered(self, broker):
        client = flight.FlightClient(f"grpc+tcp://127.0.0.1:{port_of(broker)}")
        with pytest.raises(flight.FlightUnauthenticatedError, match="a name and a password"):
            list(client.do_action(flight.Action(actions.ACTION, b"")))

    def test_reading_needs_the_right_to_read(self, reader, queue):
        sentence = f"access to queue '{queue}' in vhost '/' refused for user 'rita'"
        for request in (
            actions.Open("/", queue, "nightly", 60.0),
            actions.Snapshot("/", queue),
            actions.Release("/", queue, "nightly"),
            actions.Reject("/", queue, "nightly", b""),
        ):
            assert reader.ask(request) == actions.Refused(403, sentence)
        with pytest.raises(flight.FlightServerError, match="refused for user 'rita'"):
            reader.read(ReadTicket("/", queue, 1, pack_ranges([(0, 1)])))

    def test_writing_needs_the_right_to_write(self, reader, queue):
        with pytest.raises(
            flight.FlightServerError, match=r"access to exchange 'amq\.default' in vhost '/' refused"
        ):
            reader.write(StageDescriptor("/", "w", 0, "t", 60.0), [(b"", queue.encode(), HEADER, b"x")])

    def test_a_virtual_host_that_is_not_there_is_named(self, bulk):
        assert bulk.ask(actions.Snapshot("other", "q")).text == "vhost 'other' not found"

    def test_a_queue_of_one_connection_is_nobody_elses(self, bulk, channel):
        name = next(names)
        channel.queue_declare(name, exclusive=True)
        assert bulk.ask(actions.Snapshot("/", name)).code == 405

    def test_what_makes_no_sense_is_refused_and_the_endpoint_goes_on(self, bulk, queue):
        with pytest.raises(flight.FlightError, match="the request can't be decoded"):
            list(bulk.client.do_action(flight.Action(actions.ACTION, b"\x00"), bulk.options))
        with pytest.raises(flight.FlightError, match="action 'x' is unknown"):
            list(bulk.client.do_action(flight.Action("x", b""), bulk.options))
        with pytest.raises(flight.FlightError, match="the request can't be decoded"):
            bulk.client.do_get(flight.Ticket(b"nonsense"), bulk.options).read_all()
        assert bulk.ask(actions.Snapshot("/", queue)).portions[0].messages == 10


def test_a_client_is_told_where_the_endpoint_is(broker, channel):
    told = channel.connection._impl.server_properties
    assert (told["flight_port"], told["flight_tls"]) == (port_of(broker), False)


def test_the_endpoint_speaks_tls(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes "
        f"-keyout {key} -out {certificate} -days 2 -subj /CN=localhost "
        "-addext subjectAltName=IP:127.0.0.1,DNS:localhost".split(),
        check=True,
        capture_output=True,
    )
    data = tmp_path / "data"
    settings = FlightSettings(str(data), tls_certificate=str(certificate), tls_key=str(key))
    with Broker(data, flight=settings) as broker:
        bulk = Bulk(port_of(broker), tls_root_certs=certificate.read_bytes())
        assert bulk.ask(actions.Snapshot("/", "q")).code == 404
        with pytest.raises(flight.FlightUnavailableError):
            Bulk(port_of(broker)).ask(actions.Snapshot("/", "q"))
