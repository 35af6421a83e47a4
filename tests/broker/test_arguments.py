"""Arguments against the texts of RabbitMQ 3.10.8.

Nearly all were seen there. Inferred from its rules are those that name the type `double` and some of the
arguments that belong to other queue types. Those of arguments that only Leveret has are made in their image.
"""

from decimal import Decimal

import pytest

from leveret.amqp.tables import Timestamp, Value
from leveret.broker.errors import PreconditionFailed
from leveret.broker.queues.arguments import (
    alternate_exchange,
    check_consumer,
    check_equivalent,
    check_lasting,
    check_same,
    check_server_named,
    consumer_priority,
    consumer_timeout_ms,
    declared_settings,
    parse_expiration,
)
from leveret.broker.queues.queue_settings import QueueSettings

TEN_YEARS_MS = 315_360_000_000


def parse(table: dict[str, Value]) -> QueueSettings:
    return declared_settings(table, queue="q", vhost="/")


def refusal(table: dict[str, Value]) -> str:
    with pytest.raises(PreconditionFailed) as refused:
        parse(table)
    return refused.value.sentence


class TestQueues:
    def test_a_queue_without_arguments_has_the_defaults(self) -> None:
        assert parse({}) == QueueSettings()

    def test_all_arguments_are_read(self) -> None:
        table: dict[str, Value] = {
            "x-message-ttl": 1,
            "x-expires": 2,
            "x-max-length": 3,
            "x-max-length-bytes": 4,
            "x-overflow": "reject-publish",
            "x-dead-letter-exchange": "dlx",
            "x-dead-letter-routing-key": "key",
            "x-max-priority": 5,
            "x-single-active-consumer": True,
            "x-queue-type": "classic",
            "x-delivery-limit": 6,
            "x-consumer-timeout": 7,
            "x-consumer-timeout-action": "retry",
            "x-retry-delay-ms": 8,
            "x-retry-multiplier": 1.5,
            "x-retry-delay-max-ms": 9,
        }
        assert parse(table) == QueueSettings(
            message_ttl_ms=1,
            expires_ms=2,
            max_length=3,
            max_length_bytes=4,
            overflow="reject-publish",
            dead_letter_exchange="dlx",
            dead_letter_routing_key="key",
            max_priority=5,
            single_active_consumer=True,
            queue_type="classic",
            delivery_limit=6,
            consumer_timeout_ms=7,
            consumer_timeout_action="retry",
            retry_delay_ms=8,
            retry_multiplier=1.5,
            retry_delay_max_ms=9,
        )

    @pytest.mark.parametrize(
        "table",
        [
            {"x-unknown": 3},
            {"x-message-ttl": 0},
            {"x-message-ttl": TEN_YEARS_MS},
            {"x-max-length": 0},
            {"x-max-priority": 0},
            {"x-max-priority": 255},
            {"x-queue-mode": "lazy"},
            {"x-queue-version": 2},
            {"x-queue-master-locator": "anything"},
            {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "a"},
            {"x-queue-type": "quorum", "x-queue-leader-locator": "random"},
            {"x-queue-type": "quorum", "x-overflow": "reject-publish-dlx"},
            {"x-queue-type": "quorum", "x-dead-letter-strategy": "at-least-once"},
            {"x-queue-type": "quorum", "x-quorum-initial-group-size": 3},
        ],
    )
    def test_these_are_accepted(self, table: dict[str, Value]) -> None:
        assert parse(table)

    @pytest.mark.parametrize(
        ("argument", "value", "wrong"),
        [
            ("x-message-ttl", "soon", '"expected integer, got longstr"'),
            ("x-message-ttl", None, '"expected integer, got void"'),
            ("x-message-ttl", True, '"expected integer, got bool"'),
            ("x-message-ttl", [1], '"expected integer, got array"'),
            ("x-message-ttl", {"a": 1}, '"expected integer, got table"'),
            ("x-message-ttl", Decimal("1.5"), '"expected integer, got decimal"'),
            ("x-message-ttl", Timestamp(5), '"expected integer, got timestamp"'),
            ("x-message-ttl", 1.5, '"expected integer, got double"'),
            ("x-message-ttl", b"", '"expected integer, got binary"'),
            ("x-message-ttl", -1, "{value_negative,-1}"),
            ("x-message-ttl", TEN_YEARS_MS + 1, "{value_too_large,315360000001}"),
            ("x-expires", 0, "{value_zero,0}"),
            ("x-expires", -1, "{value_negative,-1}"),
            ("x-expires", "a", '"expected integer, got longstr"'),
            ("x-expires", TEN_YEARS_MS + 1, "{value_too_large,315360000001}"),
            ("x-max-length", -1, "{value_negative,-1}"),
            ("x-max-length", "a", '"expected integer, got longstr"'),
            ("x-max-length-bytes", -5, "{value_negative,-5}"),
            ("x-max-priority", 256, "{max_value_exceeded,256}"),
            ("x-max-priority", -1, "{value_negative,-1}"),
            ("x-max-priority", "a", '"expected integer, got longstr"'),
            ("x-overflow", "x", "invalid_overflow"),
            ("x-overflow", 1, "{unacceptable_type,signedint}"),
            ("x-dead-letter-routing-key", "a", "routing_key_but_no_dlx_defined"),
            ("x-dead-letter-routing-key", 1, "{unacceptable_type,signedint}"),
            ("x-queue-mode", "x", "\"unsupported queue mode 'x'\""),
            ("x-queue-mode", 1, "{unacceptable_type,signedint}"),
            ("x-queue-version", 3, "\"unsupported queue version '3'\""),
            ("x-queue-version", "1", '"expected integer, got longstr"'),
            ("x-single-active-consumer", "true", "{unacceptable_type,longstr}"),
            ("x-single-active-consumer", 1, "{unacceptable_type,signedint}"),
            ("x-queue-type", "foo", "\"unsupported queue type 'foo'\""),
            ("x-queue-type", 'a"b\\c', '"unsupported queue type \'a\\"b\\\\c\'"'),
            ("x-queue-type", 1, "{unacceptable_type,signedint}"),
        ],
    )
    def test_a_wrong_value_is_refused(self, argument: str, value: Value, wrong: str) -> None:
        assert refusal({argument: value}) == f"invalid arg '{argument}' for queue 'q' in vhost '/': {wrong}"

    @pytest.mark.parametrize(
        ("argument", "value", "wrong"),
        [
            ("x-dead-letter-strategy", "a", "invalid_dlx_strategy"),
            ("x-queue-leader-locator", "a", "invalid_queue_locator_arg"),
            ("x-quorum-initial-group-size", 0, "{value_zero,0}"),
            ("x-max-in-memory-length", -1, "{value_negative,-1}"),
        ],
    )
    def test_a_wrong_value_is_refused_for_a_quorum_queue(
        self, argument: str, value: Value, wrong: str
    ) -> None:
        sentence = refusal({"x-queue-type": "quorum", argument: value})
        assert sentence == f"invalid arg '{argument}' for queue 'q' in vhost '/': {wrong}"

    @pytest.mark.parametrize(
        ("argument", "value", "wrong"),
        [
            ("x-queue-type", "streams", "\"unsupported queue type 'streams'\""),
            ("x-delivery-limit", -1, "{value_negative,-1}"),
            ("x-delivery-limit", "a", '"expected integer, got longstr"'),
            ("x-consumer-timeout", 0, "{value_zero,0}"),
            ("x-consumer-timeout", -1, "{value_negative,-1}"),
            ("x-consumer-timeout-action", "explode", "invalid_consumer_timeout_action"),
            ("x-consumer-timeout-action", 1, "{unacceptable_type,signedint}"),
            ("x-retry-delay-ms", -1, "{value_negative,-1}"),
            ("x-retry-delay-max-ms", TEN_YEARS_MS + 1, "{value_too_large,315360000001}"),
            ("x-retry-multiplier", "2", '"expected number, got longstr"'),
            ("x-retry-multiplier", True, '"expected number, got bool"'),
            ("x-retry-multiplier", 0.5, "{value_too_small,0.5}"),
        ],
    )
    @pytest.mark.parametrize("queue_type", ["classic", "quorum"])
    def test_a_wrong_value_of_our_own_is_refused(
        self, queue_type: str, argument: str, value: Value, wrong: str
    ) -> None:
        sentence = refusal({"x-queue-type": queue_type, argument: value})
        assert sentence == f"invalid arg '{argument}' for queue 'q' in vhost '/': {wrong}"

    @pytest.mark.parametrize(("value", "factor"), [(3, 3.0), (1, 1.0), (Decimal("2.5"), 2.5), (1.25, 1.25)])
    def test_a_multiplier_is_any_number_from_one(self, value: Value, factor: float) -> None:
        assert parse({"x-retry-multiplier": value}).retry_multiplier == factor

    @pytest.mark.parametrize(
        "argument",
        [
            "x-max-age",
            "x-stream-max-segment-size-bytes",
            "x-initial-cluster-size",
            "x-quorum-initial-group-size",
            "x-dead-letter-strategy",
            "x-max-in-memory-length",
            "x-max-in-memory-bytes",
            "x-queue-leader-locator",
        ],
    )
    def test_a_classic_queue_has_no_arguments_of_other_types(self, argument: str) -> None:
        assert refusal({argument: "whatever"}) == (
            f"invalid arg '{argument}' for queue 'q' in vhost '/' of queue type rabbit_classic_queue"
        )

    @pytest.mark.parametrize(
        "argument",
        ["x-max-priority", "x-queue-mode", "x-queue-version", "x-queue-master-locator", "x-max-age"],
    )
    def test_a_quorum_queue_has_no_arguments_of_other_types(self, argument: str) -> None:
        assert refusal({"x-queue-type": "quorum", argument: "whatever"}) == (
            f"invalid arg '{argument}' for queue 'q' in vhost '/' of queue type rabbit_quorum_queue"
        )

    @pytest.mark.parametrize(
        ("table", "argument"),
        [
            ({"x-expires": 0, "x-queue-type": "foo"}, "x-queue-type"),
            ({"x-overflow": 1, "x-expires": 0}, "x-expires"),
            ({"x-max-age": "1Y", "x-expires": 0}, "x-expires"),
            ({"x-retry-delay-ms": -1, "x-max-age": "1Y"}, "x-max-age"),
        ],
    )
    def test_of_several_wrong_arguments_the_first_in_rabbitmqs_order_is_named(
        self, table: dict[str, Value], argument: str
    ) -> None:
        assert refusal(table).startswith(f"invalid arg '{argument}' for queue")

    def test_a_dead_letter_exchange_is_a_string_before_anything_else_is_looked_at(self) -> None:
        assert refusal({"x-queue-type": "foo", "x-dead-letter-exchange": 1}) == (
            "invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue 'q' in vhost '/'"
        )


class TestQuorumQueuesAndStreams:
    def test_a_durable_shared_lasting_queue_is_fine(self) -> None:
        check_lasting(queue="q", vhost="/", durable=True, exclusive=False, auto_delete=False)

    @pytest.mark.parametrize(
        ("durable", "exclusive", "auto_delete", "name"),
        [
            (False, False, False, "non-durable"),
            (True, True, False, "exclusive-owner"),
            (True, False, True, "auto-delete"),
            (False, True, True, "auto-delete"),
        ],
    )
    def test_anything_else_is_refused(
        self, durable: bool, exclusive: bool, auto_delete: bool, name: str
    ) -> None:
        with pytest.raises(PreconditionFailed) as refused:
            check_lasting(queue="q", vhost="/", durable=durable, exclusive=exclusive, auto_delete=auto_delete)
        assert refused.value.sentence == f"invalid property '{name}' for queue 'q' in vhost '/'"

    def test_they_need_a_name(self) -> None:
        check_server_named({})
        with pytest.raises(PreconditionFailed) as refused:
            check_server_named({"x-queue-type": "quorum"})
        assert refused.value.sentence == "Cannot declare a server-named queue for type rabbit_quorum_queue"


def difference(current: dict[str, Value], given: dict[str, Value], kind: str = "queue") -> str | None:
    """What the second declaration is told, after the part that is always the same."""
    try:
        check_equivalent(current, given, kind=kind, name="n", vhost="/")
    except PreconditionFailed as refused:
        argument, _, rest = refused.sentence.removeprefix("inequivalent arg '").partition("'")
        return argument + rest.removeprefix(f" for {kind} 'n' in vhost '/'")
    return None


class TestDeclaredAgain:
    @pytest.mark.parametrize(
        ("current", "given", "told"),
        [
            (
                {"x-message-ttl": 100},
                {},
                "x-message-ttl: received none but current is the value '100' of type 'signedint'",
            ),
            (
                {},
                {"x-message-ttl": 100},
                "x-message-ttl: received the value '100' of type 'signedint' but current is none",
            ),
            (
                {"x-message-ttl": 5_000_000_000},
                {},
                "x-message-ttl: received none but current is the value '5000000000' of type 'long'",
            ),
            (
                {"x-message-ttl": 100},
                {"x-message-ttl": 200},
                "x-message-ttl: received '200' but current is '100'",
            ),
            (
                {"x-dead-letter-exchange": "a"},
                {"x-dead-letter-exchange": "b"},
                "x-dead-letter-exchange: received 'b' but current is 'a'",
            ),
            (
                {"x-dead-letter-exchange": "a"},
                {},
                "x-dead-letter-exchange: received none but current is the value 'a' of type 'longstr'",
            ),
            (
                {"x-single-active-consumer": True},
                {},
                "x-single-active-consumer: received none but current is the value 'true' of type 'bool'",
            ),
            (
                {"x-single-active-consumer": True},
                {"x-single-active-consumer": False},
                "x-single-active-consumer: received 'false' but current is 'true'",
            ),
            (
                {},
                {"x-queue-type": "quorum"},
                "x-queue-type: received the value 'quorum' of type 'longstr' but current is none",
            ),
            (
                {"x-queue-type": "quorum"},
                {},
                "x-queue-type: received none but current is the value 'quorum' of type 'longstr'",
            ),
            (
                {"x-max-length": 1, "x-message-ttl": 2},
                {},
                "x-message-ttl: received none but current is the value '2' of type 'signedint'",
            ),
            (
                {"x-queue-type": "quorum", "x-message-ttl": 2, "x-max-length": 1},
                {"x-queue-type": "quorum"},
                "x-max-length: received none but current is the value '1' of type 'signedint'",
            ),
            ({"x-max-length": 1}, {"x-max-length": 1.0}, "x-max-length: received '1.0' but current is '1'"),
            (
                {"x-queue-master-locator": b"a"},
                {"x-queue-master-locator": "b"},
                "x-queue-master-locator: received 'b' but current is 'a'",
            ),
        ],
    )
    def test_a_queue_with_other_arguments_is_refused(
        self, current: dict[str, Value], given: dict[str, Value], told: str
    ) -> None:
        assert difference(current, given) == told

    @pytest.mark.parametrize(
        ("current", "given"),
        [
            ({}, {}),
            ({"x-message-ttl": 100}, {"x-message-ttl": 100}),
            ({}, {"x-queue-type": "classic"}),
            ({"x-queue-type": "classic"}, {}),
            ({}, {"x-unknown": 1}),
            ({"x-queue-master-locator": b"a"}, {"x-queue-master-locator": "a"}),
        ],
    )
    def test_a_queue_with_the_same_arguments_is_fine(
        self, current: dict[str, Value], given: dict[str, Value]
    ) -> None:
        assert difference(current, given) is None

    def test_our_own_arguments_are_compared_too(self) -> None:
        assert difference({}, {"x-retry-delay-ms": 5}) == (
            "x-retry-delay-ms: received the value '5' of type 'signedint' but current is none"
        )

    @pytest.mark.parametrize(
        ("current", "given", "told"),
        [
            (
                {"alternate-exchange": "a"},
                {},
                "alternate-exchange: received none but current is the value 'a' of type 'longstr'",
            ),
            (
                {},
                {"alternate-exchange": 1},
                "alternate-exchange: received the value '1' of type 'signedint' but current is none",
            ),
            (
                {"alternate-exchange": "b"},
                {"alternate-exchange": "a"},
                "alternate-exchange: received 'a' but current is 'b'",
            ),
            ({}, {"x-message-ttl": 1}, None),
        ],
    )
    def test_of_an_exchange_only_the_alternate_is_compared(
        self, current: dict[str, Value], given: dict[str, Value], told: str | None
    ) -> None:
        assert difference(current, given, kind="exchange") == told

    @pytest.mark.parametrize(
        ("argument", "current", "given", "received", "was"),
        [
            ("durable", False, True, "true", "false"),
            ("auto_delete", True, False, "false", "true"),
            ("type", "direct", "topic", "topic", "direct"),
            ("type", "direct", "x-consistent-hash", "'x-consistent-hash'", "direct"),
        ],
    )
    def test_a_property_that_differs_is_refused(
        self, argument: str, current: Value, given: Value, received: str, was: str
    ) -> None:
        check_same(argument, current, current, kind="exchange", name="x", vhost="/")
        with pytest.raises(PreconditionFailed) as refused:
            check_same(argument, current, given, kind="exchange", name="x", vhost="/")
        assert refused.value.sentence == (
            f"inequivalent arg '{argument}' for exchange 'x' in vhost '/': "
            f"received '{received}' but current is '{was}'"
        )


class TestConsumers:
    def test_a_consumer_without_arguments_has_no_priority_and_no_timeout(self) -> None:
        assert consumer_priority({}, queue="q", vhost="/") == 0
        assert consumer_timeout_ms({}, queue="q", vhost="/") is None

    def test_arguments_are_read(self) -> None:
        arguments: dict[str, Value] = {"x-priority": -5, "x-consumer-timeout": 60_000, "x-unknown": "x"}
        assert consumer_priority(arguments, queue="q", vhost="/") == -5
        assert consumer_timeout_ms(arguments, queue="q", vhost="/") == 60_000

    @pytest.mark.parametrize(
        ("argument", "value", "wrong"),
        [
            ("x-priority", "a", ': "expected integer, got longstr"'),
            ("x-priority", True, ': "expected integer, got bool"'),
            ("x-priority", None, ': "expected integer, got void"'),
            ("x-cancel-on-ha-failover", 1, ": {unacceptable_type,signedint}"),
            ("x-stream-offset", "first", " of queue type rabbit_classic_queue"),
            ("x-consumer-timeout", 0, ": {value_zero,0}"),
        ],
    )
    def test_wrong_ones_are_refused(self, argument: str, value: Value, wrong: str) -> None:
        with pytest.raises(PreconditionFailed) as refused:
            check_consumer({argument: value}, queue="q", vhost="/")
        assert refused.value.sentence == f"invalid arg '{argument}' for queue 'q' in vhost '/'{wrong}"

    def test_quorum_queues_know_fewer(self) -> None:
        check_consumer({"x-cancel-on-ha-failover": True}, queue="q", vhost="/")
        with pytest.raises(PreconditionFailed) as refused:
            check_consumer({"x-cancel-on-ha-failover": True}, queue="q", vhost="/", queue_type="quorum")
        assert refused.value.sentence == (
            "invalid arg 'x-cancel-on-ha-failover' for queue 'q' in vhost '/' "
            "of queue type rabbit_quorum_queue"
        )


class TestExpirations:
    @pytest.mark.parametrize(
        ("value", "time_ms"), [(b"0", 0), (b"60000", 60_000), (b"+5", 5), (b"315360000000", TEN_YEARS_MS)]
    )
    def test_digits_are_milliseconds(self, value: bytes, time_ms: int) -> None:
        assert parse_expiration(value) == time_ms

    @pytest.mark.parametrize(
        ("value", "sentence"),
        [
            (b"abc", "'abc': no_integer"),
            (b"", "'': no_integer"),
            (b" 5", "' 5': no_integer"),
            (b"-", "'-': no_integer"),
            (b"-1", "'-1': {value_negative,-1}"),
            (b"1.5", "'1.5': {leftover_string,\".5\"}"),
            (b"5 ", "'5 ': {leftover_string,\" \"}"),
            (b"1\n", "'1\n': {leftover_string,\"\\n\"}"),
            (b'1"', '\'1"\': {leftover_string,"\\""}'),
            (b"1\x01", "'1\x01': {leftover_string,[1]}"),
            (b"1\xc3\xa9", "'1é': {leftover_string,\"é\"}"),
            (b"315360000001", "'315360000001': {value_too_large,315360000001}"),
            (b"99999999999999", "'99999999999999': {value_too_large,99999999999999}"),
        ],
    )
    def test_anything_else_is_refused(self, value: bytes, sentence: str) -> None:
        with pytest.raises(PreconditionFailed) as refused:
            parse_expiration(value)
        assert refused.value.sentence == f"invalid expiration {sentence}"


class TestAlternateExchanges:
    def test_there_may_be_none(self) -> None:
        assert alternate_exchange({}, name="x", vhost="/") is None

    def test_it_is_a_name(self) -> None:
        assert alternate_exchange({"alternate-exchange": "other"}, name="x", vhost="/") == "other"

    @pytest.mark.parametrize(
        ("value", "type_"), [(1, "signedint"), (True, "bool"), (None, "void"), ([1], "array"), ({}, "table")]
    )
    def test_anything_else_is_refused(self, value: Value, type_: str) -> None:
        with pytest.raises(PreconditionFailed) as refused:
            alternate_exchange({"alternate-exchange": value}, name="x", vhost="/")
        assert refused.value.sentence == (
            f"invalid type '{type_}' for arg 'alternate-exchange' in exchange 'x' in vhost '/'"
        )
