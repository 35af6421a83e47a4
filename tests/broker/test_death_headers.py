"""The headers of dead letters, as RabbitMQ 3.10.8 was seen to write them, and the end of cycles.

Ours are the `x-last-death-…` headers, which later versions have, and the order of all deaths but the last.
"""

from collections.abc import Mapping
from typing import Any

import pytest

from leveret.amqp import properties
from leveret.amqp.tables import Timestamp, Value
from leveret.broker.queues.death_headers import COUNT_MAX, Reason, carbon_copies, dead_letter_header, is_cycle


def message(headers: Mapping[str, Value] | None = None, **others: Value) -> bytes:
    table = None if headers is None else dict(headers)
    return properties.encode({"headers": table, **others}, 11)


def die(header: bytes, queue: str = "q", reason: Reason = Reason.REJECTED, **others: Any) -> bytes:
    told: dict[str, Any] = {"time_s": 1000, "exchange": "x", "routing_keys": ["key"], **others}
    return dead_letter_header(header, queue=queue, reason=reason, **told)


def deaths(header: bytes) -> list[Any]:
    found = properties.headers_of(header)["x-death"]
    assert isinstance(found, list)
    return found


def test_a_death_is_told_in_full() -> None:
    assert properties.headers_of(die(message())) == {
        "x-death": [
            {
                "count": 1,
                "reason": "rejected",
                "queue": "q",
                "time": Timestamp(1000),
                "exchange": "x",
                "routing-keys": ["key"],
            }
        ],
        "x-first-death-reason": "rejected",
        "x-first-death-queue": "q",
        "x-first-death-exchange": "x",
        "x-last-death-reason": "rejected",
        "x-last-death-queue": "q",
        "x-last-death-exchange": "x",
    }


def test_the_types_on_the_wire_are_those_of_rabbitmq() -> None:
    header = die(message())
    assert b"\5countl" + (1).to_bytes(8, "big") in header
    assert b"\4timeT" + (1000).to_bytes(8, "big") in header
    assert b"\6reasonS" in header
    assert b"\14routing-keysA" in header


def test_other_headers_properties_and_the_size_stay() -> None:
    buried = die(message({"mine": [1, None]}, delivery_mode=2, priority=3, message_id="m", user_id="u"))
    assert properties.headers_of(buried)["mine"] == [1, None]
    everything = properties.decode(buried)
    del everything["headers"]
    assert everything == {"delivery_mode": 2, "priority": 3, "message_id": "m", "user_id": "u"}
    assert properties.body_size(buried) == 11


def test_an_expiration_is_taken_away_and_remembered() -> None:
    buried = die(message(expiration="600"), reason=Reason.EXPIRED)
    assert "expiration" not in properties.decode(buried)
    assert deaths(buried)[0]["original-expiration"] == "600"
    again = die(buried, "other", Reason.EXPIRED)
    assert "original-expiration" not in deaths(again)[0]
    assert deaths(again)[1]["original-expiration"] == "600"


def test_the_most_recent_death_comes_first() -> None:
    header = message()
    for queue in ("a", "b", "c", "d"):
        header = die(header, queue)
    assert [death["queue"] for death in deaths(header)] == ["d", "c", "b", "a"]


def test_the_first_and_the_last_death_are_told_apart() -> None:
    header = die(die(message(), "a", Reason.EXPIRED, exchange="x1"), "b", Reason.MAXLEN, exchange="x2")
    headers = properties.headers_of(header)
    first, last = (
        [headers[f"x-{which}-death-{what}"] for what in ("reason", "queue", "exchange")]
        for which in ("first", "last")
    )
    assert first == ["expired", "a", "x1"]
    assert last == ["maxlen", "b", "x2"]


def test_dying_again_in_the_same_way_counts_and_moves_to_the_front() -> None:
    header = message()
    for time_s, queue in enumerate(("a", "b", "c", "a")):
        header = die(header, queue, time_s=time_s, routing_keys=[f"key{time_s}"])
    assert [(death["queue"], death["count"]) for death in deaths(header)] == [("a", 2), ("c", 1), ("b", 1)]
    assert deaths(header)[0]["time"] == 0
    assert deaths(header)[0]["routing-keys"] == ["key0"]


@pytest.mark.parametrize("reason", [Reason.EXPIRED, Reason.MAXLEN, Reason.DELIVERY_LIMIT])
def test_another_reason_in_the_same_queue_is_another_death(reason: Reason) -> None:
    header = die(die(message()), reason=reason)
    assert [(death["reason"], death["count"]) for death in deaths(header)] == [
        (reason.value, 1),
        ("rejected", 1),
    ]


class TestCarbonCopies:
    def test_keys_of_the_cc_header_are_listed_those_of_bcc_are_not(self) -> None:
        buried = die(message({"CC": ["a", "b"]}), routing_keys=["key", "a", "b", "secret"])
        assert deaths(buried)[0]["routing-keys"] == ["key", "a", "b"]

    def test_the_header_stays_with_the_routing_key(self) -> None:
        assert properties.headers_of(die(message({"CC": ["a"]})))["CC"] == ["a"]

    def test_the_header_goes_with_the_routing_key(self) -> None:
        buried = die(message({"CC": ["a"]}), keep_cc=False)
        assert "CC" not in properties.headers_of(buried)
        assert deaths(buried)[0]["routing-keys"] == ["key", "a"]

    @pytest.mark.parametrize("value", [None, "a", 1, [1], {"a": 1}])
    def test_what_is_no_list_of_strings_names_no_keys(self, value: Value) -> None:
        assert carbon_copies({"CC": value}) == []


class TestHeadersThatClientsMadeUp:
    @pytest.mark.parametrize("value", ["text", 1, None, {"queue": "q"}])
    def test_what_is_no_list_is_replaced(self, value: Value) -> None:
        buried = die(message({"x-death": value}))
        assert [death["count"] for death in deaths(buried)] == [1]
        assert "x-first-death-queue" not in properties.headers_of(buried)

    def test_what_is_no_table_is_dropped_from_the_list(self) -> None:
        buried = die(message({"x-death": [1, {"queue": "other", "reason": "expired"}, "text"]}))
        assert [death["queue"] for death in deaths(buried)] == ["q", "other"]

    def test_an_entry_without_a_count_counts_from_now_on(self) -> None:
        buried = die(message({"x-death": [{"queue": "q", "reason": "rejected"}]}))
        assert deaths(buried) == [{"queue": "q", "reason": "rejected", "count": 1}]

    def test_of_equal_entries_the_first_counts(self) -> None:
        mine: list[Value] = [{"queue": "q", "reason": "rejected", "count": count} for count in (7, 9)]
        other: list[Value] = [{"queue": "o", "reason": "rejected", "count": count} for count in (3, 4)]
        buried = die(message({"x-death": [mine[0], *other, mine[1]]}))
        assert deaths(buried) == [{"queue": "q", "reason": "rejected", "count": 8}, other[0]]

    def test_entries_without_a_count_are_counted_when_they_are_merged(self) -> None:
        here, elsewhere = {"queue": "q", "reason": "rejected"}, {"queue": "o", "reason": "expired"}
        buried = die(message({"x-death": [elsewhere, here, elsewhere, elsewhere, here]}))
        assert deaths(buried) == [{**here, "count": 3}, {**elsewhere, "count": 3}]

    def test_a_count_does_not_outgrow_its_field(self) -> None:
        buried = die(message({"x-death": [{"queue": "q", "reason": "rejected", "count": COUNT_MAX}]}))
        assert deaths(buried)[0]["count"] == COUNT_MAX

    def test_a_queue_that_is_no_string_is_no_queue(self) -> None:
        buried = die(message({"x-death": [{"queue": ["q"], "reason": {}}]}), reason=Reason.EXPIRED)
        assert len(deaths(buried)) == 2
        assert is_cycle(buried, queue="q", reason=Reason.EXPIRED)

    def test_a_first_death_is_overwritten_by_the_real_one(self) -> None:
        buried = die(message({"x-first-death-queue": "mine"}))
        assert properties.headers_of(buried)["x-first-death-queue"] == "q"


class TestCycles:
    def test_going_back_without_a_rejection_is_one(self) -> None:
        header = die(die(message(), "a", Reason.EXPIRED), "b", Reason.MAXLEN)
        assert is_cycle(header, queue="a", reason=Reason.MAXLEN)
        assert is_cycle(header, queue="b", reason=Reason.MAXLEN)

    def test_going_on_is_none(self) -> None:
        header = die(die(message(), "a", Reason.EXPIRED), "b", Reason.EXPIRED)
        assert not is_cycle(header, queue="c", reason=Reason.EXPIRED)

    def test_a_rejection_on_the_way_breaks_it(self) -> None:
        header = die(die(message(), "a", Reason.REJECTED), "b", Reason.EXPIRED)
        assert not is_cycle(header, queue="a", reason=Reason.EXPIRED)
        header = die(die(die(message(), "a", Reason.EXPIRED), "b"), "c", Reason.EXPIRED)
        assert not is_cycle(header, queue="a", reason=Reason.EXPIRED)

    def test_a_rejection_before_it_does_not(self) -> None:
        header = die(die(die(message(), "z"), "a", Reason.EXPIRED), "b", Reason.EXPIRED)
        assert is_cycle(header, queue="a", reason=Reason.EXPIRED)

    def test_a_rejected_message_may_always_go_back(self) -> None:
        header = die(message(), "a")
        assert not is_cycle(header, queue="a", reason=Reason.REJECTED)
