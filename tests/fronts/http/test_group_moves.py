"""Groups moved by hand over HTTP: seeks, skips, and dead letters delivered once more."""

from leveret.storage.journal import Kind, Outcome
from tests.fronts.http.membership import Member, group_of, journal_of
from tests.fronts.http.views import BILLING, crashed_and_started, partition, reason, wait

# seeks


SEEKS = [
    ({"to": "first"}, {"orders-0": 0, "orders-1": 0}),
    ({"to": "last"}, {"orders-0": 10, "orders-1": 0}),
    ({"offset": 7, "partition": "orders-0"}, {"orders-0": 7}),
    ({"to": "last", "partition": "orders-0"}, {"orders-0": 10}),
    ({"time": 0}, {"orders-0": 0, "orders-1": 0}),
    ({"offset": 10, "partition": "orders-0"}, {"orders-0": 10}),
    ({"time": "1h", "reason": "a bad release"}, {"orders-0": 0, "orders-1": 0}),
    ({"time": 4_000_000_000.5}, {"orders-0": 10, "orders-1": 0}),
    ({"offset": 0, "partition": "orders-0"}, {"orders-0": 0}),
    ({"time": "2999-12-31T00:00:00+02:00"}, {"orders-0": 10, "orders-1": 0}),
]


def test_a_group_is_sent_somewhere_else(api, orders, join):
    member = join(prefetch=5)
    member.take(5)
    member.ack(0, 1, 2, stream="orders-0")
    wait(api, lambda progress: progress.low == 3, "three are settled")
    for body, places in SEEKS:
        answer = api.ask("POST", f"{BILLING}/seek", body=body)
        assert (answer.status, answer.json) == (200, {"partitions": places}), body
        assert partition(api)["low"] == places["orders-0"], body


def test_a_seek_by_time_finds_what_came_in_then(api, channel, leveret_clock, orders, join):
    leveret_clock.advance(60)
    at_s = leveret_clock() // 1_000_000
    channel.basic_publish("", "orders-0", b"later")
    api.ask("PUT", BILLING, body={"subject": "orders"})
    moved = api.ask("POST", f"{BILLING}/seek", body={"time": at_s}).json
    assert moved == {"partitions": {"orders-0": 10, "orders-1": 0}}
    assert join(prefetch=5).take(1) == [10]


def test_after_a_seek_what_was_in_flight_comes_again_and_late_acks_are_counted(api, orders, join):
    member = join(prefetch=4)
    member.take(4)
    old = {offset: member.tags["orders-0", offset] for offset in range(4)}
    api.ask("POST", f"{BILLING}/seek", body={"to": "first"})
    assert member.take(4) == [0, 1, 2, 3]
    for tag in old.values():
        member.channel.basic_ack(tag)
    member.take_none()
    listed = api.get("/api/groups").json[0]
    assert (listed["stale_acks"], listed["in_flight"], listed["lag"]) == (4, 4, 10)


NO_SEEKS = [
    ({}, "Give exactly one of the fields to, offset and time."),
    ({"to": "first", "offset": 3}, "Give exactly one of the fields to, offset and time."),
    ({"to": "middle"}, 'to is "middle"; it must be first or last.'),
    ({"to": ["first"]}, 'to is ["first"]; it must be first or last.'),
    ({"offset": 900, "partition": "orders-0"}, "offset 900 is beyond the end 10 of 'orders-0'"),
    ({"offset": -1, "partition": "orders-0"}, "offset -1 is below 0, where 'orders-0' begins"),
    (
        {"offset": 3},
        "group 'billing' on 'orders' in vhost '/' has 2 partitions: say which one is meant",
    ),
    ({"offset": None, "partition": "orders-0"}, "offset is missing; it must be a whole number."),
    ({"offset": "3", "partition": "orders-0"}, 'offset is "3"; it must be a whole number.'),
    ({"to": "first", "partition": 0}, "partition is 0; it must be a string."),
    (
        {"time": "yesterday"},
        'time is "yesterday"; it must be like 2026-11-15T09:00:00Z, a number of seconds since 1970, '
        "or how long ago, like 1h.",
    ),
    (
        {"time": -5},
        "time is -5; it must be like 2026-11-15T09:00:00Z, a number of seconds since 1970, "
        "or how long ago, like 1h.",
    ),
    ({"to": "first", "reason": "x" * 256}, "a reason has at most 255 bytes, not 256"),
    (
        {"to": "first", "why": "x"},
        "Field 'why' is unknown; known fields: to, offset, time, partition, reason.",
    ),
]


def test_a_seek_that_makes_no_sense_moves_nothing(api, orders, join):
    member = join(prefetch=5)
    member.take(5)
    member.ack(0, 2, stream="orders-0")
    wait(api, lambda progress: len(progress.settled.settled_above) == 1, "two are settled")
    before = partition(api)
    for body, sentence in NO_SEEKS:
        answer = api.ask("POST", f"{BILLING}/seek", body=body)
        assert (answer.status, reason(answer)) == (400, sentence), body
        assert partition(api) == before


def test_who_moved_it_and_why_is_in_the_journal(api, orders):
    ann = api.add_user("ann", "management", "/")
    api.ask("PUT", BILLING, ann, body={"subject": "orders"})
    api.ask("POST", f"{BILLING}/seek", ann, body={"to": "last", "reason": "grün"})
    api.ask("POST", f"{BILLING}/seek", ann, body={"to": "first"})
    api.ask("POST", f"{BILLING}/skip", ann, body={"partition": "orders-0", "offset": 4, "reason": "poison"})
    entries = journal_of(api.broker, "orders", "billing", "orders-0")
    sought = [(entry.ranges, entry.who, entry.why) for entry in entries if entry.kind is Kind.SOUGHT]
    assert sought == [([(0, 10)], b"ann", "grün".encode()), ([(0, 0)], b"ann", b"")]
    skipped = [entry for entry in entries if entry.outcome == Outcome.SKIPPED]
    assert [(entry.ranges, entry.who, entry.why) for entry in skipped] == [([(4, 5)], b"ann", b"poison")]


# skips


def test_a_skipped_message_is_delivered_no_more_whoever_has_it(api, orders, join):
    member = join(prefetch=3)
    member.take(3)
    skip = {"partition": "orders-0", "offset": 0, "reason": "it loops for ever"}
    answer = api.ask("POST", f"{BILLING}/skip", body=skip)
    assert (answer.status, answer.json) == (200, {"partition": "orders-0", "offset": 0, "watermark": 1})
    assert member.take(1) == [3], "there is room for another one"
    member.ack(0, stream="orders-0")
    member.take_none()
    assert api.get("/api/groups").json[0]["stale_acks"] == 1
    assert api.ask("POST", f"{BILLING}/skip", body={**skip, "offset": 9}).status == 200
    again = api.ask("POST", f"{BILLING}/skip", body=skip)
    assert (again.status, reason(again)) == (400, "offset 0 of 'orders-0' is settled already")
    assert partition(api)["lag"] == 8


def test_one_that_is_delayed_can_be_skipped_too(api, orders, join):
    member = join(prefetch=1, delays="1h")
    member.take(1)
    member.nack(0, stream="orders-0")
    wait(api, lambda progress: len(progress.delayed) == 1, "it is delayed")
    api.ask("POST", f"{BILLING}/skip", body={"partition": "orders-0", "offset": 0, "reason": "x"})
    found = partition(api)
    assert (found["delayed"]["count"], found["low"]) == (0, 1)


NO_SKIPS = [
    (
        {"partition": "orders-0", "offset": 0},
        "a skip needs a reason, which is noted with the name of the user",
    ),
    (
        {"partition": "orders-0", "offset": 0, "reason": " "},
        "a skip needs a reason, which is noted with the name of the user",
    ),
    (
        {"partition": "orders-0", "offset": 10, "reason": "x"},
        "offset 10 is the end of 'orders-0': there is nothing to skip",
    ),
    (
        {"partition": "orders-0", "offset": 11, "reason": "x"},
        "offset 11 is beyond the end 10 of 'orders-0'",
    ),
    ({"partition": "orders-0", "reason": "x"}, "offset is missing; it must be a whole number."),
    (
        {"offset": 0, "reason": "x"},
        "group 'billing' on 'orders' in vhost '/' has 2 partitions: say which one is meant",
    ),
    ({"partition": "orders-0", "offset": 0, "reason": 7}, "reason is 7; it must be a string."),
    (
        {"partition": "orders-0", "offset": 0, "reason": "ü" * 128},
        "a reason has at most 255 bytes, not 256",
    ),
]


def test_a_skip_that_makes_no_sense_changes_nothing(api, orders):
    api.ask("PUT", BILLING, body={"subject": "orders"})
    before = partition(api)
    for body, sentence in NO_SKIPS:
        answer = api.ask("POST", f"{BILLING}/skip", body=body)
        assert (answer.status, reason(answer)) == (400, sentence), body
        assert partition(api) == before


# dead letters


def bury(api, join, *offsets, prefetch=10):
    """These messages of orders-0 are dead letters; the others are acked."""
    member = join(prefetch=prefetch)
    taken = member.take(prefetch)
    for offset in taken:
        if offset in offsets:
            member.nack(offset, stream="orders-0", requeue=False)
        else:
            member.ack(offset, stream="orders-0")
    api.broker.wait_until_depth("%DLQ%billing", len(offsets))
    wait(api, lambda progress: progress.low == 10, "all is settled")
    return member


def test_dead_letters_are_delivered_once_more_to_their_group_alone(api, orders, join):
    other = join(group="audit")
    other.take(10)
    member = bury(api, join, 2, 3, 7)
    answer = api.ask("POST", f"{BILLING}/redrive")
    assert (answer.status, answer.json) == (200, {"redriven": 3, "gone": 0, "left": 0})
    assert member.take(3) == [2, 3, 7]
    other.take_none()
    assert partition(api)["watermark"] == 10, "progress does not move back"
    member.ack(2, 3, 7, stream="orders-0")
    wait(api, lambda progress: progress.low == 10, "all is settled again")
    assert api.ask("POST", f"{BILLING}/redrive").json == {"redriven": 0, "gone": 0, "left": 0}


def test_no_copy_is_made_and_the_journal_says_who_did_it(api, orders, join):
    bury(api, join, 4)
    before = api.broker.call(
        lambda: group_of(api.broker, "orders", "billing").partitions["orders-0"].log.next
    )
    api.ask("POST", f"{BILLING}/redrive")
    assert partition(api)["end"] == before
    entries = journal_of(api.broker, "orders", "billing", "orders-0")
    recalled = [(each.ranges, each.who, each.why) for each in entries if each.kind is Kind.RECALLED]
    assert recalled == [([(4, 5)], b"guest", b"redriven")]


def test_a_redrive_may_have_a_limit(api, orders, join):
    member = bury(api, join, 1, 5, 6)
    assert api.ask("POST", f"{BILLING}/redrive", body={"limit": 2}).json == {
        "redriven": 2,
        "gone": 0,
        "left": 1,
    }
    assert member.take(2) == [1, 5]
    for limit in (0, -1):
        answer = api.ask("POST", f"{BILLING}/redrive", body={"limit": limit})
        assert (answer.status, reason(answer)) == (
            400,
            f"limit is {limit}; it must be a whole number of at least 1",
        )
    assert api.broker.depth("%DLQ%billing") == 1


def test_what_the_stream_no_longer_has_stays_a_dead_letter(api, orders, join):
    member = bury(api, join, 1, 8)

    def expire():
        stream = group_of(api.broker, "orders", "billing").partitions["orders-0"].stream
        stream.cursor.drop([(0, 5)], Outcome.RETENTION)

    api.broker.call(expire)
    assert api.ask("POST", f"{BILLING}/redrive").json == {"redriven": 1, "gone": 1, "left": 1}
    assert member.take(1) == [8]


def test_a_letter_is_not_taken_for_another_message_at_its_place(api, channel, orders, join):
    """The stream was deleted, and one of the same name has other messages."""
    member = join("orders-0", "billing", prefetch=10)
    member.take(10)
    for offset in range(10):
        member.nack(offset, stream="orders-0", requeue=False)
    api.broker.wait_until_depth("%DLQ%billing", 10)
    channel.queue_delete("orders-0")
    channel.queue_declare("orders-0", durable=True, arguments={"x-queue-type": "stream"})
    for number in range(10):
        channel.basic_publish("", "orders-0", b"%d" % (number if number > 7 else -1))
    again = join("orders-0", "billing", prefetch=10)
    again.take(10)
    again.ack(*range(10), stream="orders-0")
    wait(api, lambda progress: progress.low == 10, "all is settled", subject="orders-0")
    path = f"{BILLING}/redrive?subject=orders-0"
    assert api.ask("POST", path).json == {"redriven": 2, "gone": 8, "left": 8}
    assert again.take(2) == [8, 9]


def test_letters_of_another_subject_are_left_to_that(api, orders, join):
    api.ask("PUT", "/api/topics/%2F/returns", body={"partitions": 1})
    bury(api, join, 3)
    api.ask("PUT", BILLING, body={"subject": "returns"})
    assert api.ask("POST", f"{BILLING}/redrive?subject=returns").json == {
        "redriven": 0,
        "gone": 0,
        "left": 1,
    }
    assert api.ask("POST", f"{BILLING}/redrive?subject=orders").json["redriven"] == 1


def test_a_group_on_a_partition_alone_does_not_get_the_letters_of_one_on_the_topic(api, orders, join):
    member = bury(api, join, 3)
    alone = join("orders-0")
    alone.take(10)
    alone.ack(*range(10), stream="orders-0")
    wait(api, lambda progress: progress.low == 10, "all is settled", subject="orders-0")
    path = f"{BILLING}/redrive?subject="
    assert api.ask("POST", f"{path}orders-0").json == {"redriven": 0, "gone": 0, "left": 1}
    assert api.ask("POST", f"{path}orders").json == {"redriven": 1, "gone": 0, "left": 0}
    assert member.take(1) == [3]
    alone.take_none()


def test_other_messages_in_the_queue_are_left_alone(api, channel, orders, join):
    bury(api, join, 3)
    channel.basic_publish("", "%DLQ%billing", b"not a dead letter")
    assert api.ask("POST", f"{BILLING}/redrive").json == {"redriven": 1, "gone": 0, "left": 1}


def test_many_letters_go_in_pieces(api, channel, join):
    api.ask("PUT", "/api/topics/%2F/orders", body={"partitions": 1})
    for number in range(700):
        channel.basic_publish("", "orders-0", b"%d" % number)
    member = join(prefetch=700)
    member.take(700)
    member.channel.basic_nack(0, multiple=True, requeue=False)
    api.broker.wait_until_depth("%DLQ%billing", 700)
    assert api.ask("POST", f"{BILLING}/redrive").json == {"redriven": 700, "gone": 0, "left": 0}
    assert member.take(700) == list(range(700))


def test_a_crash_before_the_letters_are_settled_loses_nothing(api, orders, join, monkeypatch):
    bury(api, join, 2, 6)

    def crash(self):
        raise RuntimeError("the power is gone")

    monkeypatch.setattr("leveret.broker.groups.moving.Redrive.settle", crash)
    assert api.ask("POST", f"{BILLING}/redrive").status == 500
    again = crashed_and_started(api)
    member = Member(again.broker.url, "orders", "billing", prefetch=10)
    assert member.take(2) == [2, 6]
    assert again.broker.depth("%DLQ%billing") == 2
    member.close()
    again.run(again.listener.stop())


def test_redrive_needs_the_right_to_read_the_letters(api, orders, join):
    bury(api, join, 2)
    ann = api.add_user("ann", "management", "/", read="^orders", configure="^billing$")
    assert api.ask("POST", f"{BILLING}/redrive", ann).status == 401
    bob = api.add_user("bob", "management", "/", read="^(orders|%DLQ%billing$)", configure="^billing$")
    assert api.ask("POST", f"{BILLING}/redrive", bob).json["redriven"] == 1
