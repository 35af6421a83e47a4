"""Stuck consumers and redelivery loops over HTTP."""

import pytest

from leveret.broker.views.stuck import stuck
from tests.fronts.http.views import reason, wait

STUCK = "/api/stuck"


@pytest.fixture
def worker(api, channel):
    """A consumer with two of three messages."""
    channel.queue_declare("q")
    for _ in range(3):
        channel.basic_publish("", "q", b"x")
    channel.basic_qos(prefetch_count=2)
    channel.basic_consume("q", lambda *_: None, consumer_tag="worker")
    api.broker.wait_until_unacked("q", 2)
    return channel


def consumers(api, query=""):
    found = api.get(f"{STUCK}?{query}").json["consumers"]
    assert found["count"] == len(found["oldest"])
    return found["oldest"]


def test_a_consumer_that_settles_nothing_is_stuck_after_a_time(api, worker, leveret_clock):
    leveret_clock.advance(59)
    assert consumers(api) == []
    leveret_clock.advance(1)
    (found,) = consumers(api)
    assert (found["queue"], found["tag"], found["user"], found["vhost"]) == ("q", "worker", "guest", "/")
    assert (found["offset"], found["age_ms"], found["unacked"]) == (0, 60_000, 2)
    assert consumers(api, "age_s=61") == []


def test_a_consumer_that_settles_others_is_not_stuck(api, worker, leveret_clock):
    leveret_clock.advance(60)
    worker.basic_ack(2)
    api.broker.wait_until_depth("q", 0)
    api.broker.wait_until_unacked("q", 2)
    assert consumers(api) == []
    for _ in range(30):
        leveret_clock.advance(5)
    # The oldest delivery is 210 s old, and the channel has settled one message since.
    assert consumers(api, "age_s=200") == []


def test_a_consumer_that_settled_earlier_deliveries_is_stuck_as_well(api, worker, leveret_clock):
    leveret_clock.advance(30)
    worker.basic_ack(2, multiple=True)
    api.broker.wait_until_depth("q", 0)
    api.broker.wait_until_unacked("q", 1)
    for _ in range(12):
        leveret_clock.advance(5)
    assert [(found["offset"], found["age_ms"]) for found in consumers(api)] == [(2, 60_000)]


def test_a_message_that_comes_back_again_and_again_is_a_loop(api, channel):
    queue = api.add_queue("<q>\udcff", 2)

    def back():
        for count in (2, 2, 2, 2, 1):
            queue.cursor.give_back(queue.cursor.take(count), why=b"<b>\x1b")

    api.broker.call(back)
    found = api.get(STUCK).json["loops"]
    assert found["count"] == 2
    assert [(each["offset"], each["returns"], each["state"]) for each in found["worst"]] == [
        (0, 5, "ready"),
        (1, 4, "ready"),
    ]
    assert found["worst"][0]["queue"] == "Not UTF-8, base64 is: PHE+/w=="
    assert found["worst"][0]["reason"] == "<b>\x1b"
    assert api.get(f"{STUCK}?returns=4").json["loops"]["count"] == 1
    assert len(api.get(f"{STUCK}?limit=1").json["loops"]["worst"]) == 1


def test_a_loop_in_a_group_names_the_group(api, orders, join):
    member = join(prefetch=1, max_reconsume=-1, delays="1m")
    member.take(1)
    member.nack(0, stream="orders-0")
    wait(api, lambda progress: len(progress.delayed) == 1, "one is delayed")
    (found,) = api.get(f"{STUCK}?returns=0").json["loops"]["worst"]
    assert (found["queue"], found["group"], found["state"]) == ("orders-0", "billing", "delayed")


def test_a_virtual_host_deleted_between_two_steps_is_left_out(api, worker):
    api.add_vhost("other")
    api.add_queue("q", vhost="other")
    core = api.broker.server.broker

    def deleted_meanwhile():
        steps = stuck(core, ["/", "other"])
        next(steps)
        del core.vhosts["other"]
        return list(steps)

    # One step for the queue in `/`, none for the virtual host that is gone.
    assert api.broker.call(deleted_meanwhile) == [None]


def test_only_virtual_hosts_that_the_user_sees_are_searched(api, worker, leveret_clock):
    leveret_clock.advance(60)
    api.add_vhost("other")
    stranger = api.add_user("stranger", "management", "other")
    assert api.get(STUCK, stranger).json["consumers"] == {"count": 0, "oldest": []}
    assert len(consumers(api)) == 1
    answer = api.get(f"{STUCK}?age_s=-1")
    assert (answer.status, "whole number" in reason(answer)) == (400, True)
