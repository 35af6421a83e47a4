"""`leveret queues map` and `leveret messages timeline`."""

import pika
import pytest

from tests.cli.api_commands import http, leveret, publish  # noqa: F401  (fixtures)


@pytest.fixture
def queue(http):  # noqa: F811
    """Ten messages: one settled, one in flight, one returned, one delayed."""
    connection = pika.BlockingConnection(pika.URLParameters(http.broker.url))
    channel = connection.channel()
    channel.queue_declare("q", durable=True, arguments={"x-audit-window": 60_000})
    channel.confirm_delivery()
    for number in range(10):
        properties = pika.BasicProperties(delivery_mode=2, message_id=f"m-{number % 5}")
        channel.basic_publish("", "q", b"x", properties)
    channel.basic_get("q", auto_ack=True)
    channel.basic_get("q")
    core = http.broker.server.broker
    cursor = core.vhosts["/"].plain_queues["q"].cursor

    def delay():
        cursor.give_back(cursor.take(1), not_before_us=core.now_us() + 60_000_000, why=b"\x1b[31mred")

    http.broker.call(delay)
    yield
    connection.close()


def test_the_map_is_a_chart_and_tables(leveret, queue):  # noqa: F811
    shown = leveret("queues", "map", "q")
    assert shown.code == 0, shown.err
    assert "q: 1 in flight, 1 delayed, 7 ready" in shown.out
    assert ">~·······  1 to 9" in shown.out or ">~.......  1 to 9" in shown.out
    assert "basic.get" in shown.out
    assert "?[31mred" in shown.out
    assert "\x1b" not in shown.out


def test_the_map_as_json_is_that_of_the_api(leveret, http, queue):  # noqa: F811
    shown = leveret("queues", "map", "q", "--json").result
    asked = http.get("/api/queues/%2F/q/map?cells=64&limit=10").json
    assert {**shown, "now_ms": 0, "in_flight": []} == {**asked, "now_ms": 0, "in_flight": []}


def test_the_map_of_a_stream_names_its_groups(leveret, http):  # noqa: F811
    leveret("topic", "create", "orders", "--partitions", 1)
    leveret("groups", "create", "billing", "--subject", "orders")
    publish(http.broker.url, "orders-0", 3)
    shown = leveret("queues", "map", "orders-0")
    assert "3 ready" in shown.out
    assert "read by 1 group: billing" in shown.out
    assert (
        "orders-0, group billing: 3 ready" in leveret("queues", "map", "orders-0", "--group", "billing").out
    )
    assert leveret("queues", "map", "orders-0", "--group", "nope").code == 1


def test_a_timeline_tells_what_has_happened(leveret, queue):  # noqa: F811
    shown = leveret("messages", "timeline", "q", 2)
    assert shown.code == 0, shown.err
    for words in ("published", "confirmed", "delivered", "requeued", "now: delayed", "returned once"):
        assert words in shown.out
    assert "not known: publisher" in shown.out
    assert "\x1b" not in shown.out


def test_a_timeline_is_found_by_the_message_id(leveret, queue):  # noqa: F811
    found = leveret("messages", "timeline", "q", "--id", "m-2", "--json").result["timelines"]
    assert [each["offset"] for each in found] == [2, 7]
    none = leveret("messages", "timeline", "q", "--id", "nope")
    assert (none.code, "has the id 'nope'" in none.err) == (1, True)


def test_an_offset_or_an_id_is_needed(leveret, queue):  # noqa: F811
    assert leveret("messages", "timeline", "q").code == 2
    assert leveret("messages", "timeline", "q", 1, "--id", "m").code == 2
    beyond = leveret("messages", "timeline", "q", 10)
    assert (beyond.code, "ends at 10" in beyond.err) == (1, True)
