"""What readers of streams and topics are answered: without a Flight process, on a broker that may crash."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import msgspec
import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.broker.access.passwords import hash_password
from leveret.broker.definitions import PermissionRow, UserRow
from leveret.broker.groups.registry import Groups
from leveret.broker.queries import partition_quotas
from leveret.broker.queries.staged_batches import Stages
from leveret.flight import actions
from leveret.flight.actions import At
from leveret.flight.tickets import unpack_ranges
from leveret.storage.cursor import Cursor
from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.fronts.flight.bulk_requests import Asking
from tests.processes import WAIT_S

pytestmark = pytest.mark.real

S = ("/", "s0", False)
FIVE = [b"%d" % number for number in range(5)]


@pytest.fixture
def ask() -> Iterator[Asking]:
    """With a stream `s0` that keeps messages for a minute."""
    with Broker(clock=VirtualClock()) as broker:
        asking = Asking(broker)
        asking.declare(1, x_max_age="60s")
        yield asking


def retire(ask: Asking) -> None:
    ask.broker.clock.advance(3600)
    ask.broker.wait_until(lambda: not ask.stream().ready, "all that may go is gone")


def followed(ask: Asking, query: str = "q", at: At = At("first")) -> int:  # noqa: B008  (frozen)
    return ask(actions.Follow(*S, query=query, at=at)).epoch


def advanced(ask: Asking, epoch: int, offset: int, query: str = "q", **more: Any) -> Any:
    return ask(actions.Advance(*S, query=query, epoch=epoch, offsets={"s0": offset}, **more))


def test_a_run_that_asks_twice_is_still_one_run_and_an_earlier_one_stays_over(ask):
    ask.publish(*FIVE)
    asking = actions.Follow(*S, query="q", at=At("first"), run="a")
    first = ask(asking)
    assert ask(asking).epoch == first.epoch
    second = ask(msgspec.structs.replace(asking, run="b"))
    assert second.epoch > first.epoch
    assert ask(asking).epoch == first.epoch
    assert advanced(ask, first.epoch, 0).kind == "fenced"
    assert advanced(ask, second.epoch, 0).stretches[0].stop == 5


def test_where_a_query_begins_is_known_together_with_the_query(ask, monkeypatch):
    """A broker that is killed in between would begin at the first message."""
    ask.publish(*FIVE)
    asking = actions.Follow(*S, query="q", at=At("first", offsets={"s0": 3}))
    create = Groups.create

    def killed_after(groups: Groups, *said: Any, **more: Any) -> Any:
        create(groups, *said, **more)
        ask.broker.server.broker.store.sync()
        raise AssertionError("killed")

    monkeypatch.setattr(Groups, "create", killed_after)
    with pytest.raises(AssertionError, match="killed"):
        ask(asking)
    monkeypatch.setattr(Groups, "create", create)
    ask.crash()
    assert [place.offset for place in ask(asking).places] == [3]


def test_a_gap_in_the_numbers_after_a_crash_is_no_loss(ask):
    ask.publish(*FIVE)
    epoch = followed(ask)
    advanced(ask, epoch, 5)
    retire(ask)
    ask.crash()
    ask.publish(b"x", b"y")
    (stretch,) = advanced(ask, epoch, 5).stretches
    assert stretch.stop - 2 > stretch.start == 5
    assert stretch.gone_below == 5
    (part,) = ask(actions.Cover(*S, query="q", epoch=epoch, spans={"s0": (5, stretch.stop)})).parts
    assert unpack_ranges(part.ranges) == [(stretch.stop - 2, stretch.stop)]


def test_what_is_too_old_is_lost_also_where_somebody_else_keeps_its_file(ask):
    ask.publish(*FIVE)
    followed(ask)
    connection = pika.BlockingConnection(pika.URLParameters(ask.broker.url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume("s0", lambda *_: None, arguments={"x-group": "slow"})
    retire(ask)
    assert ask.stream().log.first == 0
    (place,) = ask(actions.Locate(*S, at=At("first"))).places
    assert (place.offset, place.gone_below) == (5, 5)
    assert ask(actions.Follow(*S, query="late", at=At("offset", 2))).kind == "gone"
    connection.close()


def test_aborted_rows_that_retention_takes_are_no_loss(ask):
    epoch = followed(ask)
    ask.stage(0, [b"a", b"b"])
    ask(actions.Abort("/", "writer", 0, []))
    ask.broker.clock.advance(3600)
    ask.broker.wait_until(lambda: ask.stream().log.first == 2, "the file is gone")
    ask.publish(b"x")
    (stretch,) = advanced(ask, epoch, 0).stretches
    assert (stretch.start, stretch.stop, stretch.gone_below) == (0, 3, 0)


def test_rows_that_are_undecided_when_retention_comes_are_the_groups_when_they_are_committed(ask):
    epoch = followed(ask)
    ask.stage(0, [b"a", b"b"])
    store = ask.broker.server.broker.store
    ask.broker.clock.advance(1800)
    ask.broker.call(lambda: (store.checkpoint(), store.retire(ask.stream().log)))
    ask(actions.Commit("/", "writer", 0, ["task"]))
    (stretch,) = advanced(ask, epoch, 0).stretches
    assert (stretch.start, stretch.stop, stretch.gone_below) == (0, 2, 0)
    (part,) = ask(actions.Cover(*S, query="q", epoch=epoch, spans={"s0": (0, 2)})).parts
    assert unpack_ranges(part.ranges) == [(0, 2)]


def test_an_abort_settles_for_groups_what_they_have_not_skipped_or_lost(ask):
    followed(ask)
    group = ask.broker.server.broker.vhosts["/"].groups.get("s0", "q")
    ask.stage(0, [b"a", b"b", b"c"])
    partition = group.partitions["s0"]
    ask.broker.call(lambda: partition.skip(1, who=b"me", why=b"a test"))
    assert group.lag == 2
    assert ask(actions.Abort("/", "writer", 0, [])) == actions.Done()
    assert (group.lag, ask.stream().hidden, ask.stream().ready) == (0, 0, 0)
    ask.crash()
    group = ask.broker.server.broker.vhosts["/"].groups.get("s0", "q")
    assert (group.lag, ask.stream().ready) == (0, 0)


def join(ask: Asking, name: str, **arguments: Any) -> None:
    given = {"x-queue-type": "stream"} | {key.replace("_", "-"): arguments[key] for key in arguments}

    def bind(channel: Any) -> None:
        channel.queue_declare(name, durable=True, arguments=given)
        channel.queue_bind(name, "s", "1")

    ask.on_channel(bind)


def seek_back(ask: Asking) -> None:
    partition = ask.broker.server.broker.vhosts["/"].groups.get("s", "q").partitions["s0"]
    ask.broker.call(lambda: partition.seek(0, who=b"me", why=b"a test"))


def bind(ask: Asking) -> None:
    vhost = ask.broker.server.broker.vhosts["/"]
    ask.broker.call(lambda: vhost.bind(vhost.exchanges["s"], vhost.queues["joins"], "1", {}))


@pytest.mark.parametrize(("key", "begin"), [("s0", seek_back), ("joins", bind)])
def test_a_crash_brings_no_aborted_rows_to_a_group_that_begins(ask, monkeypatch, key, begin):
    """The disk's thread comes by, if it may, between the beginning and what is left out."""
    stream = {"x-queue-type": "stream"}
    ask.on_channel(lambda channel: channel.queue_declare("joins", durable=True, arguments=stream))
    ask.publish(*FIVE, key=key)
    ask.stage(0, [b"a", b"b"], key=key)
    ask(actions.Abort("/", "writer", 0, []))
    ask(actions.Follow("/", "s", True, query="q", at=At("first")))
    store = ask.broker.server.broker.store

    def sync_if_it_may() -> None:
        if store.lock.acquire(blocking=False):
            store.lock.release()
            store.sync()

    def killed(_: Cursor, other: Cursor) -> None:
        with ThreadPoolExecutor(1) as disk:
            disk.submit(sync_if_it_may).result(WAIT_S)
        raise AssertionError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(Cursor, "leave_out_settled", killed)
        with pytest.raises(AssertionError, match="killed"):
            begin(ask)
    ask.crash()
    if begin is bind:  # that is gone with the crash
        bind(ask)
    assert ask.lag(subject="s") == len(FIVE)


def test_a_checkpoint_that_does_not_name_a_partition_reads_it_from_its_beginning_whoever_has_had_it(ask):
    """The checkpoint is an older one than the last: it rules, there as in the partitions that it names."""
    ask.publish(*FIVE)
    epoch = ask(actions.Follow("/", "s", True, query="q", at=At("first"))).epoch
    join(ask, "joins")
    ask.publish(*FIVE, key="joins")
    for offsets in ({"s0": 2}, {"s0": 2, "joins": 5}, {"s0": 2}):
        found = ask(actions.Advance("/", "s", True, query="q", epoch=epoch, offsets=offsets)).stretches
        starts = {"s0": 0, "joins": 0} | offsets
        assert {each.stream: (each.start, each.stop) for each in found} == {
            name: (start, 5) for name, start in starts.items()
        }


def test_what_retention_took_of_a_partition_is_said_also_to_an_older_checkpoint(ask):
    epoch = ask(actions.Follow("/", "s", True, query="q", at=At("first"))).epoch
    join(ask, "joins", x_max_age="60s")
    ask.publish(*FIVE, key="joins")
    ask.broker.clock.advance(3600)
    ask.broker.wait_until(lambda: not ask.stream("joins").ready, "retention has taken them")
    ask.publish(*FIVE, key="joins")
    for offsets in ({"s0": 0}, {"s0": 0, "joins": 8}, {"s0": 0}):  # it went on, without failOnDataLoss
        found = ask(actions.Advance("/", "s", True, query="q", epoch=epoch, offsets=offsets)).stretches
    (joined,) = [each for each in found if each.stream == "joins"]
    assert (joined.start, joined.gone_below) == (0, 5)


def test_a_partition_joins_a_topic_whose_name_a_queue_has_too(ask):
    epoch = ask(actions.Follow("/", "s", True, query="q", at=At("first"))).epoch
    ask.on_channel(lambda channel: channel.queue_declare("s", durable=True))
    join(ask, "joins")
    ask.publish(*FIVE, key="joins")
    found = ask(actions.Advance("/", "s", True, query="q", epoch=epoch, offsets={"s0": 0})).stretches
    assert {each.stream: each.stop for each in found} == {"s0": 0, "joins": 5}


def test_what_may_be_read_is_found_without_a_look_at_each_batch_that_is_staged(ask, monkeypatch):
    for number in range(20):
        ask.stage(0, [b"a"], stage=f"task {number}")
        ask.publish(b"x")

    def slow(*_: Any) -> Any:
        raise AssertionError("all of them")

    with monkeypatch.context() as patched:
        patched.setattr(Stages, "hidden", slow)
        assert ask.broker.call(lambda: ask.stream().readable()) == 0
    ask.crash()
    assert ask.broker.call(lambda: ask.stream().readable()) == 0
    ask(actions.Abort("/", "writer", 0, []))
    assert ask.broker.call(lambda: ask.stream().readable()) == ask.stream().log.next


def test_a_stage_that_expires_lets_readers_go_on(ask):
    received = []
    ask.stage(0, [b"a"])
    ask.publish(b"x")
    connection = pika.BlockingConnection(pika.URLParameters(ask.broker.url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=5)
    arguments = {"x-stream-offset": "first"}
    channel.basic_consume("s0", lambda *found: received.append(found[3]), arguments=arguments)
    connection.process_data_events(0)
    assert received == []
    ask.broker.clock.advance(3601)
    while not received:
        connection.process_data_events(10)
    assert received == [b"x"]
    connection.close()


@pytest.mark.parametrize("where", ["last", "1s", datetime(2100, 1, 1, tzinfo=UTC)])
def test_who_begins_behind_all_there_is_gets_the_rows_that_are_committed_later(ask, where):
    received = []
    ask.stage(0, [b"a", b"b"])
    ask.broker.clock.advance(10)
    connection = pika.BlockingConnection(pika.URLParameters(ask.broker.url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=5)
    channel.basic_consume(
        "s0", lambda *found: received.append(found[3]), arguments={"x-stream-offset": where}
    )
    ask(actions.Commit("/", "writer", 0, ["task"]))
    ask.publish(b"c")
    while b"c" not in received:
        connection.process_data_events(10)
    assert received == [b"a", b"b", b"c"]
    connection.close()


def test_who_begins_with_what_comes_next_gets_the_rows_that_are_committed_later(ask):
    received = []
    ask.publish(b"x")
    ask.stage(0, [b"a", b"b"])
    ask.publish(b"y")
    epoch = followed(ask, at=At("next"))
    assert [place.offset for place in ask(actions.Locate(*S, at=At("next"))).places] == [1]
    connection = pika.BlockingConnection(pika.URLParameters(ask.broker.url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=5)
    channel.basic_consume("s0", lambda *found: received.append(found[3]))
    connection.process_data_events(0)
    assert ask(actions.Commit("/", "writer", 0, ["task"])) == actions.Committed(2, False)
    while len(received) < 3:
        connection.process_data_events(10)
    assert received == [b"a", b"b", b"y"]
    (stretch,) = advanced(ask, epoch, 1).stretches
    assert (stretch.start, stretch.stop) == (1, 4)
    connection.close()


def test_an_older_run_is_refused_also_after_a_crash(ask):
    ask.publish(*FIVE[:3])
    first, second = followed(ask), followed(ask)
    assert advanced(ask, first, 0).kind == "fenced"
    ask.crash()
    assert advanced(ask, second, 3).ready == 0
    assert advanced(ask, first, 0).kind == "fenced"
    assert followed(ask) > second
    assert advanced(ask, second, 3).kind == "fenced"


def test_progress_never_moves_back(ask):
    ask.publish(*FIVE)
    epoch = followed(ask)
    advanced(ask, epoch, 4, settle_only=True)
    advanced(ask, epoch, 2, settle_only=True)
    group = ask.broker.server.broker.vhosts["/"].groups.get("s0", "q")
    assert group.lag == 1


def test_a_query_reads_what_its_user_may_read(ask):
    def add() -> None:
        accounts = ask.broker.server.broker.accounts
        accounts.put(UserRow("rita", hash_password(b"secret", b"salt")))
        accounts.permit(PermissionRow("/", "rita", "^$", "^$", "^r"))

    ask.broker.call(add)
    refused = ask(actions.Locate(*S, at=At("first")), "rita")
    assert (refused.code, refused.text) == (403, "access to queue 's0' in vhost '/' refused for user 'rita'")
    assert ask(actions.Locate("other", "s0", False, At("first"))).code == 404


@pytest.mark.parametrize(
    "request_",
    [
        actions.Advance(*S, query="q", epoch=1, offsets={"s0": -1}),
        actions.Advance(*S, query="q", epoch=1, offsets={}, max_messages=0),
        actions.Cover(*S, query="q", epoch=1, spans={"s0": (-5, 3)}),
        actions.Locate(*S, at=At("noon")),
    ],
)
def test_what_makes_no_sense_is_no_request(request_):
    with pytest.raises(msgspec.ValidationError):
        actions.decode_request(actions.encode(request_))


def test_spans_and_stops_may_be_empty_or_beyond_what_is_there(ask):
    ask.publish(*FIVE)
    epoch = followed(ask)
    (stretch,) = advanced(ask, epoch, 5, stops={"s0": 2}).stretches
    assert (stretch.start, stretch.stop) == (5, 5)
    (part,) = ask(actions.Cover(*S, query="q", epoch=epoch, spans={"s0": (4, 2)})).parts
    assert part.messages == 0
    assert ask(actions.Cover(*S, query="q", epoch=epoch, spans={"s0": (0, 99)})).kind == "gone"
    assert ask(actions.Cover(*S, query="q", epoch=epoch, spans={"s9": (0, 1)})).kind == "gone"


def test_a_stream_has_no_leases(ask):
    for request in (
        actions.Open("/", "s0", "q", 60.0),
        actions.Lease("/", "s0", "q", 1, 0),
        actions.Plan("/", "s0", "q", 1, 0, 1),
        actions.Release("/", "s0", "q"),
        actions.Snapshot("/", "s0"),
    ):
        refused = ask(request)
        assert refused.text == "queue 's0' in vhost '/' is a stream: it has no leases and is read by offset"
        assert refused.hint == "Use option stream."


counts = st.lists(st.integers(0, 20), max_size=6)


@given(counts, st.integers(0, 60), st.integers(0, 9))
def test_shares_are_fair(available, limit, turn):
    found = partition_quotas.by_count(available, limit, turn=turn)
    assert sum(found) == min(limit, sum(available))
    for mine, had in zip(found, available, strict=True):
        assert mine <= had
        assert mine == had or all(other <= mine + 1 for other in found)


@given(st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=5), st.integers(1, 60), st.integers(0, 9))
def test_shares_in_bytes_keep_the_limit_but_for_a_first_message(sizes, limit, turn):
    found = partition_quotas.by_bytes([iter(each) for each in sizes], limit, turn=turn)
    used = sum(sum(each[:mine]) for each, mine in zip(sizes, found, strict=True))
    assert used <= limit or sum(found) == 1
    if any(sizes):
        assert sum(found) >= 1
    for mine, each in zip(found, sizes, strict=True):
        assert mine == len(each) or used + each[mine] > limit
