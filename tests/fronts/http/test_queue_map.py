"""The unsettled map of a queue over HTTP: what is in which state, and who has it."""

from contextlib import closing

import pika
import pytest

from leveret.broker.queries.row_routing import RowOptions
from leveret.broker.queries.staged_batch_notes import StageName
from leveret.broker.views import readers, unsettled
from leveret.storage.journal import Outcome
from tests.fronts.http.views import reason, wait

MAP = "/api/queues/%2F/q/map"
HEADER = b"\x00\x3c\x00\x00" + (1).to_bytes(8, "big") + b"\x00\x00"


@pytest.fixture
def queue(api, channel, leveret_clock):
    """A queue of 20 messages in every state: settled, in flight, delayed, leased, hidden and ready."""
    channel.queue_declare("q")
    for number in range(10):
        channel.basic_publish("", "q", b"%d" % number)
    core = api.broker.server.broker
    queue = core.vhosts["/"].plain_queues["q"]
    channel.basic_get("q", auto_ack=True)
    channel.basic_qos(prefetch_count=2)
    channel.basic_consume("q", lambda *_: None, consumer_tag="worker")
    api.broker.wait_until_unacked("q", 2)

    def rest():
        delayed = queue.cursor.take(1)
        queue.cursor.give_back(delayed, not_before_us=core.now_us() + 9_000_000, why=b"not yet")
        leases = queue.queries()
        query = leases.open("nightly", user=api.guest, timeout_us=60_000_000)
        leases.next(query, 0, max_messages=3)
        options = RowOptions(api.guest, mandatory=True, unroutable=None, timeout_us=60_000_000)
        row = (b"", b"q", HEADER, b"x")
        core.vhosts["/"].batches().write(StageName("lake", 4, "task"), [row] * 10, options)

    api.broker.call(rest)
    return queue


def test_the_map_has_every_offset_in_its_state(api, queue):
    shown = api.get(f"{MAP}?cells=100").json
    assert shown["totals"] == {
        "settled": 0,
        "ready": 3,
        "in_flight": 2,
        "delayed": 1,
        "leased": 3,
        "hidden": 10,
    }
    assert (shown["low"], shown["end"], shown["start"], shown["stop"]) == (1, 20, 1, 20)
    assert shown["cells"] == [
        {"start": 1, "stop": 3, "in_flight": 2},
        {"start": 3, "stop": 4, "delayed": 1},
        {"start": 4, "stop": 7, "leased": 3},
        {"start": 7, "stop": 10, "ready": 3},
        {"start": 10, "stop": 20, "hidden": 10},
    ]


def test_fewer_cells_have_the_number_of_messages_in_each_state(api, queue):
    assert api.get(f"{MAP}?cells=2&from=0&to=9999").json["cells"] == [
        {"start": 0, "stop": 10, "settled": 1, "ready": 3, "in_flight": 2, "delayed": 1, "leased": 3},
        {"start": 10, "stop": 20, "hidden": 10},
    ]


def test_the_map_names_who_has_each_message_and_since_when(api, queue, channel, leveret_clock):
    now_ms = leveret_clock() // 1000
    leveret_clock.advance(5)
    shown = api.get(MAP).json
    holder = shown["in_flight"][0].pop("holder")
    # One delivery of two messages, or two.
    assert [n for each in shown["in_flight"] for n in range(each["first"], each["last"] + 1)] == [1, 2]
    held = {name: shown["in_flight"][0][name] for name in ("returns", "since_ms", "age_ms")}
    assert held == {"returns": 0, "since_ms": now_ms, "age_ms": 5000}
    assert (holder["tag"], holder["channel"], holder["user"], holder["vhost"]) == ("worker", 1, "guest", "/")
    assert holder["addresses"] in [each["name"] for each in api.get("/api/connections").json]
    (delayed,) = shown["delayed"]
    assert delayed == {"offset": 3, "due_ms": now_ms + 9000, "returns": 1, "reason": "not yet"}
    (leased,) = shown["leased"]
    assert {**leased, "seen_ms": 0} == {
        "query": "nightly",
        "owner": "guest",
        "epoch": 1,
        "lease": 1,
        "first": 4,
        "last": 6,
        "messages": 3,
        "seen_ms": 0,
    }
    (hidden,) = shown["hidden"]
    assert (hidden["query"], hidden["batch"], hidden["first"], hidden["last"]) == ("lake", 4, 10, 19)


def test_a_message_got_by_basic_get_has_a_holder_without_a_tag(api, channel):
    channel.queue_declare("q")
    channel.basic_publish("", "q", b"x")
    channel.basic_get("q")
    (held,) = api.get(MAP).json["in_flight"]
    assert (held["first"], held["holder"]["tag"]) == (0, "")


def test_a_message_whose_ack_waits_for_a_commit_has_its_holder_still(api, channel):
    channel.queue_declare("q")
    channel.basic_publish("", "q", b"x")
    with closing(pika.BlockingConnection(pika.URLParameters(api.broker.url))) as connection:
        other = connection.channel()
        other.tx_select()
        other.basic_ack(other.basic_get("q")[0].delivery_tag)
        # The answer comes after the ack was read.
        other.queue_declare("q", passive=True)
        (held,) = api.get(MAP).json["in_flight"]
        assert held["first"] == 0
        (now,) = api.get("/api/queues/%2F/q/messages/0/timeline").json["now"]
        assert now["holder"] == held["holder"]


def test_a_stream_is_shown_as_one_of_its_groups_reads_it(api, orders, join):
    member = join(prefetch=3)
    member.take(3)
    member.ack(1, stream="orders-0")
    wait(api, lambda progress: 1 in progress.settled, "one is settled")
    path = "/api/queues/%2F/orders-0/map"
    shown = api.get(f"{path}?group=billing&cells=100").json
    assert (shown["group"], shown["groups"]) == ("billing", ["billing"])
    assert shown["totals"]["settled"] == 1
    assert [each["holder"]["tag"] for each in shown["in_flight"]] == [member.tag] * len(shown["in_flight"])
    assert api.get(path).json["totals"]["ready"] == 10
    assert api.get(f"{path}?group=nope").status == 404


def test_names_that_are_not_utf_8_are_shown_as_text(api, channel):
    api.add_queue("<b>\udcff", 1)
    shown = api.get("/api/queues/%2F/%3Cb%3E%FF/map").json
    assert shown["queue"] == "Not UTF-8, base64 is: PGI+/w=="


def test_numbers_that_are_none_and_missing_queues_are_refused(api, channel):
    channel.queue_declare("q")
    for query in ("cells=-1", "from=x", "to=1e9", "limit=٣"):
        answer = api.ask(
            "GET", f"{MAP}?{query.encode().decode('latin-1').encode('ascii', 'ignore').decode()}x"
        )
        assert (answer.status, "whole number" in reason(answer)) == (400, True)
    assert api.get("/api/queues/%2F/nope/map").status == 404
    assert api.get("/api/queues/nope/q/map").status == 404
    assert api.get(f"{MAP}?cells=0&limit=0").json["cells"] == []


def test_a_user_without_the_virtual_host_sees_no_map(api, channel):
    channel.queue_declare("q")
    api.add_vhost("other")
    stranger = api.add_user("stranger", "management", "other")
    assert api.get(MAP, stranger).status == 401


def test_the_map_of_a_queue_deleted_between_two_steps_is_not_found(api, channel, monkeypatch):
    monkeypatch.setattr(unsettled, "_CELLS_AT_ONCE", 1)
    queue = api.add_queue("q", 9)

    def deleted_meanwhile():
        core = api.broker.server.broker
        steps = unsettled.unsettled_map(core, readers.reader_of(core, "/", "q"))
        next(steps)
        core.vhosts["/"].delete_queue(queue)
        with pytest.raises(readers.NotFound):
            next(steps)

    api.broker.call(deleted_meanwhile)


def test_a_map_of_many_holes_is_made_in_steps(api):
    """Every second message of 20,000 is settled."""
    queue = api.add_queue("q", 20_000)
    settled = [(offset, offset + 1) for offset in range(1, 20_000, 2)]
    api.broker.call(lambda: queue.cursor.drop(settled, Outcome.PURGED))
    shown = api.get(MAP).json
    assert shown["holes"] == shown["totals"]["settled"] == shown["totals"]["ready"] == 10_000
    assert len(shown["cells"]) == unsettled.CELLS
