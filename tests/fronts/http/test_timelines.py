"""A message's timeline over HTTP: what has happened to it, in order, and what is not known."""

import pika
import pytest

from leveret.broker.queries.row_routing import RowOptions
from leveret.broker.queries.staged_batch_notes import StageName
from leveret.broker.queues.dead_letters import dead_letter
from leveret.broker.queues.death_headers import Reason
from leveret.storage.journal import Outcome
from tests.fronts.http.views import crashed_and_started, reason, wait

AUDITED = {"x-audit-window": 3_600_000}
HEADER = b"\x00\x3c\x00\x00" + (1).to_bytes(8, "big") + b"\x00\x00"
PERSISTENT = pika.BasicProperties(delivery_mode=2, user_id="guest", message_id="m-1", app_id="shop")


def timeline(api, offset=0, queue="q", query=""):
    answer = api.get(f"/api/queues/%2F/{queue}/messages/{offset}/timeline{query}")
    assert answer.status == 200, answer.body
    return answer.json


def names(shown):
    return [event["event"] for event in shown["events"]]


def unknown(shown):
    return [each["fact"] for each in shown["unknown"]]


def wait_until_confirmed(api, queue="q"):
    """Until the account of the audit has the message's sync."""
    trail = api.broker.server.broker.vhosts["/"].queues[queue].trail
    api.broker.wait_until(lambda: not trail._waiting, "the sync is noted")


@pytest.fixture
def letters(api, channel):
    """A queue with an audit window whose dead letters go to the queue `dead`."""
    channel.queue_declare("dead", durable=True)
    arguments = {**AUDITED, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue_declare("q", durable=True, arguments=arguments)


def test_the_life_of_a_message_is_told_in_order(api, channel, letters, leveret_clock):
    channel.basic_publish("", "q", b"x", PERSISTENT)
    wait_until_confirmed(api)
    leveret_clock.advance(1)
    channel.basic_nack(channel.basic_get("q")[0].delivery_tag, requeue=True)
    api.broker.wait_until_depth("q", 1)
    leveret_clock.advance(1)
    channel.basic_get("q")
    shown = timeline(api)
    assert names(shown) == ["published", "confirmed", "delivered", "requeued", "delivered"]
    published, _, delivered, requeued, _ = shown["events"]
    assert (published["user"], published["app"], published["routing_key"]) == ("guest", "shop", "q")
    assert (delivered["time_ms"], requeued["counted"]) == (published["time_ms"] + 1000, True)
    assert delivered["consumer"].endswith("(1) ")
    (now,) = shown["now"]
    assert (now["state"], now["returns"], now["holder"]["tag"]) == ("in_flight", 1, "")
    assert now["since_ms"] == published["time_ms"] + 2000
    assert (shown["known_since_ms"], unknown(shown), shown["copies"]) == (None, [], [])
    assert shown["message"]["properties"]["message_id"] == "m-1"


def test_a_dead_letter_and_its_origin_are_linked_in_both_directions(api, channel, letters):
    for _ in range(2):
        channel.basic_publish("", "dead", b"another", PERSISTENT)
    channel.basic_publish("", "q", b"x", PERSISTENT)
    channel.basic_reject(channel.basic_get("q")[0].delivery_tag, requeue=False)
    api.broker.wait_until_depth("dead", 3)
    shown = timeline(api)
    settled = shown["events"][-1]
    assert (settled["event"], settled["outcome"], settled["reason"]) == (
        "settled",
        "dead_lettered",
        "rejected",
    )
    assert shown["copies"] == [{"vhost": "/", "queue": "dead", "offset": 2}]
    copy = timeline(api, 2, "dead")
    assert copy["origin"] == {"queue": "q", "offset": None, "group": None, "reason": "rejected"}


def test_dead_letters_that_are_alike_and_died_together_are_not_linked(api, channel, letters):
    for _ in range(2):
        channel.basic_publish("", "q", b"x", PERSISTENT)
    queue = api.broker.server.broker.vhosts["/"].plain_queues["q"]

    def die():
        ranges = queue.cursor.take(2)
        dead_letter(queue.deliverer, ranges, Reason.REJECTED, in_flight=True)

    api.broker.call(die)
    api.broker.wait_until_depth("dead", 2)
    shown = timeline(api)
    assert (shown["copies"], "copies" in unknown(shown)) == ([], True)


def test_without_an_audit_window_the_answer_says_what_is_not_kept(api, channel):
    channel.queue_declare("q", durable=True)
    channel.basic_publish("", "q", b"x", pika.BasicProperties(delivery_mode=2))
    channel.basic_get("q", auto_ack=True)
    for _ in range(3):
        api.broker.call(api.broker.server.broker.store.checkpoint)
    shown = timeline(api)
    assert shown["now"][0]["state"] == "settled"
    facts = unknown(shown)
    assert {"publisher", "confirmed"} <= set(facts) or {"message", "published", "confirmed"} <= set(facts)
    assert all(each["why"] and each["hint"] for each in shown["unknown"])


def test_an_audited_life_outlives_a_crash(api, channel, letters):
    channel.basic_publish("", "q", b"x", PERSISTENT)
    wait_until_confirmed(api)
    channel.basic_ack(channel.basic_get("q")[0].delivery_tag)
    api.broker.wait_until_unacked("q", 0)
    # Its confirm comes after the ack is on disk.
    channel.basic_publish("", "dead", b"x", PERSISTENT)
    again = crashed_and_started(api)
    shown = timeline(again)
    assert names(shown) == ["published", "confirmed", "delivered", "settled"]
    assert shown["events"][-1]["outcome"] == "acked"
    again.run(again.listener.stop())


def test_a_stream_shows_what_each_group_did(api, channel, orders, join):
    member = join(prefetch=2, delays="1m", max_reconsume=3)
    member.take(2)
    member.nack(1, stream="orders-0")
    wait(api, lambda progress: len(progress.delayed) == 1, "one is delayed")
    shown = timeline(api, 1, "orders-0")
    assert [each["group"] for each in shown["now"]] == [None, "billing"]
    assert (shown["now"][1]["state"], shown["now"][1]["returns"]) == ("delayed", 1)
    delivered, requeued = [event for event in shown["events"] if event.get("group") == "billing"]
    assert delivered["consumer"].endswith(member.tag)
    assert requeued["delayed_until_ms"] == requeued["time_ms"] + 60_000 == shown["now"][1]["due_ms"]
    only = timeline(api, 0, "orders-0", "?group=billing")
    assert only["now"][1]["holder"]["tag"] == member.tag


def test_a_dead_letter_of_a_group_names_its_origin_exactly(api, channel, orders, join):
    member = join(prefetch=2, max_reconsume=0)
    member.take(2)
    member.nack(1, stream="orders-0", requeue=False)
    wait(api, lambda progress: 1 in progress.settled, "one is dead-lettered")
    shown = timeline(api, 1, "orders-0")
    (copy,) = shown["copies"]
    assert copy == {"vhost": "/", "queue": "%DLQ%billing", "offset": copy["offset"]}
    letter = timeline(api, copy["offset"], "%25DLQ%25billing")
    assert (letter["origin"]["queue"], letter["origin"]["offset"]) == ("orders-0", 1)
    assert letter["origin"]["group"] == "billing"


def test_a_lease_names_query_epoch_and_number(api, channel):
    channel.queue_declare("q", arguments=AUDITED, durable=True)
    channel.basic_publish("", "q", b"x", PERSISTENT)
    queue = api.broker.server.broker.vhosts["/"].plain_queues["q"]

    def lease():
        leases = queue.queries()
        leases.next(leases.open("nightly", user=api.guest, timeout_us=60_000_000), 0)

    api.broker.call(lease)
    shown = timeline(api)
    assert shown["now"][0]["lease"] == {"query": "nightly", "epoch": 1, "lease": 1}
    assert [event["query"] for event in shown["events"] if event["event"] == "leased"] == ["nightly"]


def test_a_row_of_a_batch_that_is_not_committed_shows_its_batch_alone(api, channel):
    channel.queue_declare("q")
    options = RowOptions(api.guest, mandatory=True, unroutable=None, timeout_us=60_000_000)
    row = (b"", b"q", HEADER, b"x")
    batches = api.broker.server.broker.vhosts["/"].batches
    api.broker.call(lambda: batches().write(StageName("lake", 4, "task"), [row], options))
    shown = timeline(api)
    assert (shown["message"], shown["now"][0]["state"]) == (None, "hidden")
    (written,) = [event for event in shown["events"] if event["event"] == "written_hidden"]
    assert (written["query"], written["batch"]) == ("lake", "4")


def test_messages_are_found_by_their_id(api, channel):
    channel.queue_declare("q")
    for message_id in ("a", "b", "a"):
        channel.basic_publish("", "q", b"x", pika.BasicProperties(message_id=message_id))
    path = "/api/queues/%2F/q/messages/timeline"
    shown = api.get(f"{path}?message_id=a").json
    assert [each["offset"] for each in shown["timelines"]] == [0, 2]
    assert (shown["scanned"], shown["next"]) == (3, None)
    assert api.get(f"{path}?message_id=c").json["timelines"] == []
    assert (api.get(path).status, "message_id is missing" in reason(api.get(path))) == (400, True)


def test_reasons_and_names_of_any_bytes_are_text(api, channel):
    queue = api.add_queue("q", 1)

    def returned():
        taken = queue.cursor.take(1, who=b"<script>\xff\x1b")
        queue.cursor.give_back(taken, why=b"<b>\x00\xfe")

    api.broker.call(returned)
    _, delivered, requeued = timeline(api)["events"]
    assert delivered["consumer"] == "Not UTF-8, base64 is: PHNjcmlwdD7/Gw=="
    assert requeued["reason"] == "Not UTF-8, base64 is: PGI+AP4="


def test_every_outcome_has_a_name(api, channel):
    outcomes = [outcome for outcome in Outcome if outcome is not Outcome.RETENTION]
    queue = api.add_queue("q", len(outcomes))
    for offset, outcome in enumerate(outcomes):
        api.broker.call(
            lambda offset=offset, outcome=outcome: queue.cursor.drop([(offset, offset + 1)], outcome)
        )
        assert timeline(api, offset)["events"][-1]["outcome"] == outcome.name.lower()


def test_offsets_that_are_none_are_refused(api, channel):
    api.add_queue("q", 3)
    path = "/api/queues/%2F/q/messages"
    assert api.get(f"{path}/3/timeline").status == 404
    assert api.get(f"{path}/99999999999999999999/timeline").status == 400
    assert api.get(f"{path}/-1/timeline").status == 400
    assert api.get(f"{path}/x/timeline").status == 400
    stranger = api.add_user("stranger", "management", "/", read="x")
    assert api.get(f"{path}/0/timeline", stranger).status == 401
