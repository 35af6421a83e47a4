"""Groups over HTTP: what is seen of them, made, changed, deleted; who may do it, what outlives a crash."""

import pytest

from leveret.fronts.http.durability_wait import Durability
from leveret.fronts.http.errors import Problem
from tests.fronts.http.membership import group_of
from tests.fronts.http.views import BILLING, crashed_and_started, partition, reason, wait

# what is seen


def test_a_group_is_a_line_in_the_list(api, orders, join):
    member = join(prefetch=4, max_span=500)
    member.take(4)
    member.ack(1, stream="orders-0")
    member.take(1)
    member.nack(2, stream="orders-0")
    wait(api, lambda progress: len(progress.delayed) == 1, "one is delayed")
    assert api.get("/api/groups").json == [
        {
            "vhost": "/",
            "subject": "orders",
            "name": "billing",
            "owner": "guest",
            "mode": "concurrent",
            "paused": False,
            "partitions": 2,
            "members": 1,
            "lag": 9,
            "in_flight": 4,
            "delayed": 1,
            "stale_acks": 0,
            "dead_letters": 0,
        }
    ]
    assert api.get("/api/groups/%2F").json == api.get("/api/groups").json


def test_a_partition_shows_how_far_it_has_come_and_what_keeps_it(api, leveret_clock, orders, join):
    member = join(prefetch=5, delays="1m", max_reconsume=3)
    member.take(5)
    member.ack(1, 3, stream="orders-0")
    member.nack(2, stream="orders-0")
    wait(api, lambda progress: len(progress.delayed) == 1, "one is delayed")
    member.take(3)
    now_ms = leveret_clock() // 1000
    (group,) = api.get(BILLING).json
    (seen,) = group["members"]
    assert group["now_ms"] == now_ms
    assert group["settings"]["delays"] == [60_000]
    assert seen.pop("id").endswith(f"(1) {member.tag}")
    assert seen == {
        "since_ms": now_ms,
        "prefetch": 5,
        "in_flight": 5,
        "partitions": [],
        "leaving": False,
    }
    held = {"member": group["partitions"][0]["stuck"]["member"], "since_ms": now_ms}
    in_flight = group["partitions"][0].pop("in_flight")
    assert in_flight["count"] == 5
    assert all({**each, "range": None} == {"range": None, **held} for each in in_flight["oldest"])
    ranges = [range(*each["range"]) for each in in_flight["oldest"]]
    assert [offset for each in ranges for offset in each] == [0, 4, 5, 6, 7]
    assert group["partitions"][0] == {
        "stream": "orders-0",
        "owner": None,
        "first": 0,
        "end": 10,
        "low": 0,
        "watermark": 0,
        "highest": 7,
        "lag": 8,
        "settled_above": 2,
        "retired_below": 0,
        "sent_back": 1,
        "holes": {"count": 2, "lowest": [[0, 1], [2, 3]]},
        "delayed": {
            "count": 1,
            "next_due_ms": now_ms + 60_000,
            "soonest": [
                {"offset": 2, "due_ms": now_ms + 60_000, "attempts": 1, "error": "sent back by its member"}
            ],
        },
        "stuck": {"offset": 0, **held, "attempts": 1, "error": None},
    }
    assert group["partitions"][1]["lag"] == 0


def test_the_stuck_one_is_named_with_who_has_it_since_when_and_what_went_wrong(
    api, leveret_clock, orders, join
):
    first, second = join(prefetch=1, delays="1s"), join(prefetch=1)
    first.take(1)
    second.take(1)
    first.nack(0, stream="orders-0")
    wait(api, lambda progress: len(progress.delayed) == 1, "it is delayed")
    leveret_clock.advance(1)
    second.ack(1, stream="orders-0")
    holder, other = (first, second) if first.take(1) == [0] else (second, first)
    stuck = partition(api)["stuck"]
    assert stuck["member"].endswith(holder.tag)
    assert not stuck["member"].endswith(other.tag)
    assert (stuck["offset"], stuck["attempts"]) == (0, 2)
    assert (stuck["since_ms"], stuck["error"]) == (leveret_clock() // 1000, "sent back by its member")


def test_what_a_transaction_is_about_to_settle_is_still_its_members(api, orders, join):
    member = join(prefetch=3)
    member.take(3)
    member.channel.tx_select()
    member.ack(0, 1, 2, stream="orders-0")
    member.take_none()
    found = partition(api)
    assert found["stuck"]["member"].endswith(member.tag)
    held = [range(*each["range"]) for each in found["in_flight"]["oldest"]]
    assert [offset for each in held for offset in each] == [0, 1, 2]
    member.channel.tx_commit()
    assert partition(api)["stuck"]["offset"] == 3


def test_who_has_the_stuck_one_is_found_however_much_is_in_flight(api, orders, join, monkeypatch):
    monkeypatch.setattr("leveret.broker.views.groups._RUNS_MAX", 0)
    member = join(prefetch=3)
    member.take(3)
    stuck = partition(api, query="?limit=0")["stuck"]
    assert stuck["member"].endswith(member.tag)


def test_a_picture_counts_every_offset_once(api, orders, join):
    member = join(prefetch=5)
    member.take(5)
    member.ack(1, 3, stream="orders-0")
    member.nack(2, stream="orders-0")
    member.take(3)
    assert partition(api, query="?cells=5")["window"] == {
        "start": 0,
        "stop": 8,
        "size": 2,
        "cells": [[1, 1, 0, 0], [1, 0, 1, 0], [0, 2, 0, 0], [0, 2, 0, 0]],
    }
    assert partition(api, query="?cells=3")["window"]["cells"] == [
        [1, 1, 1, 0],
        [1, 2, 0, 0],
        [0, 2, 0, 0],
    ]
    fine = partition(api, query="?cells=64")["window"]
    assert (fine["size"], len(fine["cells"]), fine["cells"][-1]) == (1, 10, [0, 0, 0, 1])
    assert partition(api, "orders-1", query="?cells=9")["window"]["cells"] == []
    assert "window" not in partition(api)


def test_lists_have_a_limit_and_counts_have_none(api, channel, join):
    api.ask("PUT", "/api/topics/%2F/orders", body={"partitions": 1})
    for _ in range(60):
        channel.basic_publish("", "orders-0", b"x")
    member = join(prefetch=100)
    member.take(60)
    member.ack(*range(1, 60, 2), stream="orders-0")
    for offset in range(40, 60, 2):
        member.nack(offset, stream="orders-0")
    wait(api, lambda progress: len(progress.delayed) == 10, "ten are delayed")
    for limit in (0, 3):
        found = partition(api, query=f"?limit={limit}")
        lists = found["holes"]["lowest"], found["in_flight"]["oldest"], found["delayed"]["soonest"]
        assert [len(each) for each in lists] == [limit] * 3
        counts = (found["holes"]["count"], found["in_flight"]["count"], found["delayed"]["count"])
        assert counts == (30, 20, 10)
    assert len(partition(api, query="?limit=5000000")["holes"]["lowest"]) == 30
    assert reason(api.get(f"{BILLING}?limit=many")) == "limit is 'many'; it must be a whole number."


def test_in_orderly_mode_each_partition_shows_its_owner(api, orders, join):
    members = [join(mode="orderly"), join()]
    (group,) = api.get(BILLING).json
    owners = {each["stream"]: each["owner"] for each in group["partitions"]}
    assert {each["id"]: each["partitions"] for each in group["members"]} == {
        owner: [stream] for stream, owner in owners.items()
    }
    assert sorted(each.tag for each in members) == sorted(each["id"].split()[-1] for each in group["members"])


def test_a_member_that_has_left_is_shown_while_it_holds_something(api, orders, join):
    member = join(prefetch=2)
    member.take(2)
    member.channel.basic_cancel(member.tag)
    (group,) = api.get(BILLING).json
    assert [(each["in_flight"], each["leaving"]) for each in group["members"]] == [(2, True)]
    member.ack(0, 1, stream="orders-0")
    wait(api, lambda progress: not progress.in_flight, "all is settled")
    assert api.get(BILLING).json[0]["members"] == []


def test_a_name_may_read_several_subjects(api, orders):
    api.ask("PUT", "/api/topics/%2F/returns", body={"partitions": 1})
    for subject in ("orders", "returns"):
        assert api.ask("PUT", BILLING, body={"subject": subject}).status == 201
    assert [each["subject"] for each in api.get(BILLING).json] == ["orders", "returns"]
    assert [each["subject"] for each in api.get(f"{BILLING}?subject=returns").json] == ["returns"]
    answer = api.ask("POST", f"{BILLING}/pause")
    assert (answer.status, reason(answer)) == (
        400,
        "there are groups 'billing' on 'orders', 'returns': say which one is meant",
    )
    assert api.ask("POST", f"{BILLING}/pause?subject=returns").status == 200
    listed = {each["subject"]: each["paused"] for each in api.get("/api/groups").json}
    assert listed == {"orders": False, "returns": True}


def test_dead_letters_are_counted(api, orders, join):
    member = join(prefetch=3)
    member.take(3)
    for offset in range(3):
        member.nack(offset, stream="orders-0", requeue=False)
    api.broker.wait_until_depth("%DLQ%billing", 3)
    assert api.get("/api/groups").json[0]["dead_letters"] == 3


def test_what_is_not_there_is_not_found(api, orders):
    api.ask("PUT", BILLING, body={"subject": "orders"})
    for method, path, sentence in (
        ("GET", "/api/groups/%2F/nope", "no group 'nope' in vhost '/'"),
        ("GET", f"{BILLING}?subject=nope", "no group 'billing' on 'nope' in vhost '/'"),
        ("PATCH", "/api/groups/%2F/nope", "no group 'nope' in vhost '/'"),
        ("DELETE", "/api/groups/%2F/nope", "no group 'nope' in vhost '/'"),
        ("POST", "/api/groups/%2F/nope/redrive", "no group 'nope' in vhost '/'"),
        ("GET", "/api/groups/nope", "Not Found"),
        ("GET", "/api/groups/nope/billing", "Not Found"),
    ):
        answer = api.ask(method, path, body={})
        assert (answer.status, reason(answer)) == (404, sentence), path
    answer = api.ask("POST", f"{BILLING}/seek", body={"offset": 0, "partition": "orders-7"})
    assert (answer.status, reason(answer)) == (
        404,
        "no partition 'orders-7' of group 'billing' on 'orders' in vhost '/'",
    )


def test_looking_begins_no_turn(api, orders):
    api.ask("PUT", BILLING, body={"subject": "orders"})
    before = api.changes
    for path in ("/api/groups", "/api/groups/%2F", BILLING, "/api/topics", "/api/topics/%2F/orders"):
        assert api.get(path).status == 200
    assert api.changes == before


# making and changing


def test_a_group_is_made_with_its_settings_before_anybody_joins(api, orders, join):
    wanted = {"mode": "orderly", "max_span": 10, "consume_timeout_ms": 1000, "max_reconsume": -1}
    made = api.ask(
        "PUT", BILLING, body={"subject": "orders", "start": 3, **wanted, "delays": "1s 5m", "first_level": 2}
    )
    assert made.status == 201
    settings = {**wanted, "delays": [1000, 300_000], "first_level": 2, "paused": False}
    assert made.json["settings"] == settings
    again = api.ask("PUT", BILLING, body={"subject": "orders", "max_span": 20, "start": 0})
    assert (again.status, again.json["settings"]) == (200, {**settings, "max_span": 20})
    assert partition(api)["low"] == 3
    assert join().take(1) == [3]


def test_a_new_group_starts_where_it_is_told_to(api, orders):
    starts = {"first": 0, "last": 10, 4: 4, "1h": 0, "1970-01-02T00:00:00Z": 0, "2999-01-01": 10}
    for number, (start, low) in enumerate(starts.items()):
        path = f"/api/groups/%2F/group{number}"
        assert api.ask("PUT", path, body={"subject": "orders", "start": start}).status == 201
        assert partition(api, path=path)["low"] == low, start


NO_GROUPS = [
    ({}, "subject is missing; it must name the stream or topic that the group reads."),
    ({"subject": 5}, "subject is 5; it must be a string."),
    ({"subject": "q"}, "queue 'q' in vhost '/' is no stream: groups read streams and topics"),
    (
        {"subject": "orders", "mode": "query"},
        "a group's mode is 'query'; it can be concurrent or orderly",
    ),
    ({"subject": "orders", "max_span": 0}, "max_span is 0; it must be a whole number of at least 1"),
    (
        {"subject": "orders", "delays": []},
        "delays is []; a group needs at least one delay, like 10s 30s 1m",
    ),
    (
        {"subject": "orders", "delays": [-5]},
        "delays contains -5; a delay is a time like 10s, or milliseconds",
    ),
    (
        {"subject": "orders", "start": "soon"},
        'start is "soon"; it must be first, last, an offset, a time like 2026-11-15T09:00:00Z, '
        "or how long ago, like 1h.",
    ),
    (
        {"subject": "orders", "start": -1},
        "start is -1; it must be first, last, an offset, a time like 2026-11-15T09:00:00Z, "
        "or how long ago, like 1h.",
    ),
    (
        {"subject": "orders", "span": 5},
        "Field 'span' is unknown; known fields: subject, start, mode, max_span, consume_timeout_ms, "
        "max_reconsume, delays, first_level, paused.",
    ),
]


def test_a_group_that_makes_no_sense_is_not_made(api, channel, orders):
    channel.queue_declare("q")
    for body, sentence in NO_GROUPS:
        answer = api.ask("PUT", BILLING, body=body)
        assert (answer.status, reason(answer)) == (400, sentence), body
        assert api.get("/api/groups").json == []


def test_what_a_group_would_read_must_be_there(api):
    answer = api.ask("PUT", BILLING, body={"subject": "nope"})
    assert (answer.status, reason(answer)) == (404, "no stream or topic 'nope' in vhost '/'")


def test_settings_are_changed_at_once_also_for_what_is_in_flight(api, leveret_clock, orders, join):
    member = join(prefetch=1, consume_timeout=60_000, delays="1h")
    member.take(1)
    changed = api.ask("PATCH", BILLING, body={"consume_timeout_ms": 1000})
    assert (changed.status, changed.json["settings"]["consume_timeout_ms"]) == (200, 1000)
    leveret_clock.advance(1)
    wait(api, lambda progress: list(progress.delayed.ranges()) == [(0, 1)], "it was sent back")
    (delayed,) = partition(api)["delayed"]["soonest"]
    assert delayed["error"] == "no answer within 1000 ms"


NO_SETTINGS = [
    ({"max_span": -1}, "max_span is -1; it must be a whole number of at least 1"),
    (
        {"max_span": 5, "delays": ""},
        "delays is ''; a group needs at least one delay, like 10s 30s 1m",
    ),
    ({"paused": "yes"}, "paused is 'yes'; it must be true or false"),
    (
        {"speed": 5},
        "a group has no setting 'speed'; its settings are consume_timeout_ms, delays, first_level, "
        "max_reconsume, max_span, mode, paused",
    ),
]


def test_settings_that_make_no_sense_change_nothing(api, orders):
    before = api.ask("PUT", BILLING, body={"subject": "orders"}).json
    for body, sentence in NO_SETTINGS:
        answer = api.ask("PATCH", BILLING, body=body)
        assert (answer.status, reason(answer)) == (400, sentence), body
        (after,) = api.get(BILLING).json
        assert after["settings"] == before["settings"]


def test_the_mode_is_not_changed_under_members(api, orders, join):
    member = join()
    answer = api.ask("PATCH", BILLING, body={"mode": "orderly"})
    assert answer.status == 400
    assert "the mode can be changed only while it has no members" in reason(answer)
    member.close()
    api.broker.wait_until(lambda: not group_of(api.broker, "orders", "billing").members, "it has left")
    assert api.ask("PATCH", BILLING, body={"mode": "orderly"}).json["mode"] == "orderly"


def test_a_paused_group_gets_nothing_until_it_is_resumed(api, orders, join):
    assert api.ask("PUT", BILLING, body={"subject": "orders"}).status == 201
    assert api.ask("POST", f"{BILLING}/pause").json["paused"] is True
    member = join(prefetch=3)
    member.take_none()
    assert api.ask("POST", f"{BILLING}/resume").json["paused"] is False
    assert member.take(3) == [0, 1, 2]
    assert api.ask("POST", f"{BILLING}/pause", body={"now": True}).status == 400


def test_a_deleted_group_is_gone_with_its_progress_and_its_members_are_told(api, orders, join):
    member = join(prefetch=2)
    member.take(2)
    assert api.ask("DELETE", BILLING).status == 204
    member.wait_until_cancelled()
    assert api.get("/api/groups").json == []
    assert api.ask("DELETE", BILLING).status == 404
    again = join(prefetch=2)
    assert again.take(2) == [0, 1]


# queries, rights, the disk


def test_a_query_is_shown_and_not_moved(api, orders):
    groups = api.broker.server.broker.vhosts["/"].groups
    api.broker.call(lambda: groups.open("orders", "nightly", {}, user=api.guest, query=True))
    nightly = "/api/groups/%2F/nightly"
    assert partition(api, path=nightly)["lag"] == 10
    for method, path, body in (
        ("POST", "/seek", {"to": "last"}),
        ("POST", "/skip", {"partition": "orders-0", "offset": 0, "reason": "x"}),
        ("POST", "/pause", {}),
        ("POST", "/redrive", {}),
        ("PATCH", "", {"max_span": 5}),
    ):
        answer = api.ask(method, nightly + path, body=body)
        assert answer.status == 400
        assert reason(answer).startswith("group 'nightly' on 'orders' in vhost '/' belongs to a query")
    assert partition(api, path=nightly)["lag"] == 10
    assert api.ask("DELETE", nightly).status == 204


CHANGES = [
    ("PUT", "/api/groups/%2F/new", {"subject": "orders"}),
    ("PATCH", BILLING, {"max_span": 5}),
    ("DELETE", BILLING, None),
    ("POST", f"{BILLING}/seek", {"to": "last"}),
    ("POST", f"{BILLING}/skip", {"partition": "orders-0", "offset": 0, "reason": "x"}),
    ("POST", f"{BILLING}/pause", None),
    ("POST", f"{BILLING}/resume", None),
    ("POST", f"{BILLING}/redrive", None),
]


def test_whoever_changes_a_group_may_read_all_that_it_reads(api, orders):
    api.ask("PUT", BILLING, body={"subject": "orders"})
    before = api.get("/api/groups").json, partition(api)
    refused = {"error": "not_authorised", "reason": "Access refused."}
    rights = {"ann": "^orders$", "bob": "^orders-0$", "eve": ""}
    users = [api.add_user(name, "management", "/", read=read) for name, read in rights.items()]
    for method, path, body in CHANGES:
        for user in users:
            answer = api.ask(method, path, user, body=body)
            assert (answer.status, answer.json) == (401, refused), (method, path, user)
        assert api.ask(method, path, "guest:wrong", body=body).status == 401
    assert all(api.get(BILLING, user).status == 200 for user in users)
    assert (api.get("/api/groups").json, partition(api)) == before


def test_what_was_answered_outlives_a_crash(api, orders):
    api.ask("PUT", BILLING, body={"subject": "orders", "max_span": 7})
    api.ask("POST", f"{BILLING}/seek", body={"offset": 4, "partition": "orders-0"})
    api.ask("POST", f"{BILLING}/skip", body={"partition": "orders-0", "offset": 6, "reason": "x"})
    api.ask("POST", f"{BILLING}/pause")
    api.ask("PUT", "/api/groups/%2F/gone", body={"subject": "orders"})
    api.ask("DELETE", "/api/groups/%2F/gone")
    again = crashed_and_started(api)
    (listed,) = again.get("/api/groups").json
    assert (listed["name"], listed["paused"], listed["lag"]) == ("billing", True, 5)
    found = partition(again)
    assert (found["low"], found["holes"]["lowest"][0]) == (4, [4, 6])
    again.run(again.listener.stop())


def test_what_can_not_be_written_is_told_as_such(api, orders):
    api.ask("PUT", BILLING, body={"subject": "orders"})
    api.broker.faults.full_disk()
    broker = api.broker.server.broker
    durability = Durability(broker, changed=api.broker.server.turns.begin, wait_s=0.05)
    api.broker.call(
        lambda: group_of(api.broker, "orders", "billing").partitions["orders-0"].seek(3, who=b"", why=b"")
    )
    with pytest.raises(Problem, match="not on disk") as problem:
        api.run(durability.reached())
    assert problem.value.status_code == 503
    api.broker.faults.heal_disk()
    api.run(Durability(broker, changed=api.broker.server.turns.begin, wait_s=60.0).reached())
    assert partition(api)["low"] == 3
