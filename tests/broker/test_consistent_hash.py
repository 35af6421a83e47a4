"""Exchanges of type x-consistent-hash: who owns a key, what counts as one, and that it stays so for ever."""

from collections import Counter
from decimal import Decimal

import pytest

from leveret.amqp.tables import Timestamp, Value
from leveret.broker.errors import PreconditionFailed
from leveret.broker.exchanges.consistent_hash import ConsistentHashRouter, hash64, spread
from leveret.broker.exchanges.direct import DirectRouter
from leveret.broker.exchanges.exchange import Exchange

KEYS = [f"customer {number}" for number in range(10_000)]
FIFTY = {f"q{number}": "1" for number in range(50)}


def bound(weights: dict[str, str], arguments: dict[str, Value] | None = None) -> ConsistentHashRouter[str]:
    router = ConsistentHashRouter[str]()
    router.configure(arguments or {})
    for queue, weight in weights.items():
        router.bind(queue, weight, {})
    return router


def owner(router: ConsistentHashRouter[str], key: str = "", **properties: Value) -> str:
    (found,) = router.route(key, properties)
    return found


def test_without_bindings_nothing_is_reached() -> None:
    router = bound({"q": "1"})
    router.unbind("q", "1", {})
    assert router.route("key", {}) == ()
    assert router.partitions == ()


@pytest.mark.parametrize(
    "weights",
    [
        dict.fromkeys("abcdefgh", "1"),
        dict.fromkeys("abcdefgh", "1000"),
        {"a": "1", "b": "2", "c": "3", "d": "4"},
        {"a": "10", "b": "10", "c": "20", "d": "40"},
        {f"orders-{number}": "1" for number in range(16)},
        {"little": "1", "much": "99"},
    ],
)
def test_shares_are_as_the_weights_say(weights: dict[str, str]) -> None:
    router = bound(weights)
    found = Counter(owner(router, key) for key in KEYS)
    total = sum(map(int, weights.values()))
    for queue, weight in weights.items():
        expected = len(KEYS) * int(weight) / total
        assert abs(found[queue] - expected) < 4 * expected**0.5 + 0.03 * expected


def test_a_weight_beyond_all_measure_takes_everything() -> None:
    router = bound({"all": "9" * 255, "none": "1"})
    assert {owner(router, key) for key in KEYS} == {"all"}


def test_weights_of_several_bindings_to_one_destination_add_up() -> None:
    router = bound({"a": "1", "b": "4"})
    router.bind("a", "1", {"again": True})
    router.bind("a", "2", {})
    plain = bound({"a": "4", "b": "4"})
    assert [owner(router, key) for key in KEYS] == [owner(plain, key) for key in KEYS]
    router.unbind("a", "2", {})
    router.unbind("a", "1", {})
    plain = bound({"a": "1", "b": "4"})
    assert [owner(router, key) for key in KEYS] == [owner(plain, key) for key in KEYS]


def test_a_removed_destination_leaves_its_keys_to_the_others() -> None:
    router = bound(dict.fromkeys("abcd", "1"))
    before = {key: owner(router, key) for key in KEYS}
    assert router.forget("b") == 1
    after = {key: owner(router, key) for key in KEYS}
    assert all(after[key] == before[key] for key in KEYS if before[key] != "b")
    assert {after[key] for key in KEYS if before[key] == "b"} == set("acd")


def test_a_refused_binding_changes_nothing() -> None:
    router = bound({"a": "1"})
    for key in ("0", "none"):
        with pytest.raises(PreconditionFailed):
            router.bind("b", key, {})
    assert (len(router), list(router.bindings_of("b")), router.partitions) == (1, [], ("a",))
    assert router.forget("b") == 0


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        ("0", "The binding key must be greater than 0"),
        ("-7", "The binding key must be greater than 0"),
        ("", "The binding key must be an integer: <<>>"),
        ("1.5", 'The binding key must be an integer: <<"1.5">>'),
        ("1_000", 'The binding key must be an integer: <<"1_000">>'),
        ("1\n", r'The binding key must be an integer: <<"1\n">>'),
        ("²", 'The binding key must be an integer: <<"²">>'),
    ],
)
def test_the_key_of_a_binding_is_a_positive_number(key: str, sentence: str) -> None:
    with pytest.raises(PreconditionFailed) as refused:
        ConsistentHashRouter[str]().bind("q", key, {})
    assert str(refused.value) == sentence


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"hash-header": "h", "hash-property": 5}, "hash-header and hash-property are mutually exclusive"),
        ({"hash-property": "type"}, "Unsupported property: type"),
        ({"hash-property": 5}, "Invalid hash-property type signedint (value 5); expected longstr"),
        ({"hash-header": None}, "Invalid hash-header type void (value undefined); expected longstr"),
        ({"hash-header": True}, "Invalid hash-header type bool (value true); expected longstr"),
    ],
)
def test_arguments_that_say_nothing_sensible_are_refused(arguments: dict[str, Value], sentence: str) -> None:
    with pytest.raises(PreconditionFailed) as refused:
        Exchange("x", "x-consistent-hash", ConsistentHashRouter(), table=arguments)
    assert str(refused.value) == sentence


class TestWhatIsHashed:
    def test_properties_are_asked_for_only_where_they_count(self) -> None:
        assert not bound({}).needs_properties
        assert bound({}, {"hash-header": ""}).needs_properties
        assert bound({}, {"hash-property": "timestamp"}).needs_properties

    def test_a_header_instead_of_the_key(self) -> None:
        by_key, by_header = bound(FIFTY), bound(FIFTY, {"hash-header": "customer"})
        for key in KEYS[:100]:
            assert owner(by_header, "any", headers={"customer": key}) == owner(by_key, key)

    @pytest.mark.parametrize("name", ["message_id", "correlation_id"])
    def test_a_property_instead_of_the_key(self, name: str) -> None:
        by_key, by_property = bound(FIFTY), bound(FIFTY, {"hash-property": name})
        for key in KEYS[:100]:
            assert owner(by_property, "any", headers={name: "not this"}, **{name: key}) == owner(by_key, key)

    def test_a_time_is_hashed_as_its_digits(self) -> None:
        by_key, by_time = bound(FIFTY), bound(FIFTY, {"hash-property": "timestamp"})
        for second in range(100):
            assert owner(by_time, "any", timestamp=Timestamp(second)) == owner(by_key, str(second))

    def test_messages_without_it_go_the_same_way(self) -> None:
        router = bound(FIFTY, {"hash-header": "customer"})
        without: list[dict[str, Value]] = [
            {},
            {"headers": {}},
            {"headers": {"other": 1}},
            {"message_id": "5"},
        ]
        assert len({owner(router, key, **each) for each in without for key in KEYS[:100]}) == 1

    @pytest.mark.parametrize(
        "values", [range(300), [[n] for n in range(300)], [{"n": n} for n in range(300)]]
    )
    def test_values_of_any_type_spread(self, values: list[Value]) -> None:
        router = bound(FIFTY, {"hash-header": "h"})
        assert len({owner(router, headers={"h": value}) for value in values}) > 40

    @pytest.mark.parametrize(
        "same", [["5", b"5", bytearray(b"5"), 5, Timestamp(5)], ["", None], ["\udce9", b"\xe9"]]
    )
    def test_what_reads_the_same_goes_the_same_way(self, same: list[Value]) -> None:
        router = bound(FIFTY, {"hash-header": "h"})
        assert len({owner(router, headers={"h": value}) for value in same}) == 1

    def test_only_the_first_of_several_keys_counts(self) -> None:
        router = bound(FIFTY)
        for key in KEYS[:100]:
            assert list(router.route_all([key, "copy", "other copy"], {})) == [owner(router, key)]


class TestPartitions:
    def test_they_are_sorted_by_name_and_numbers_by_value(self) -> None:
        names = [
            "orders-10",
            "orders-9",
            "orders-0",
            "orders-01",
            "orders-1",
            "10",
            "9",
            "orders",
            "Orders-3",
        ]
        router = bound(dict.fromkeys(names, "1"))
        expected = (
            "9",
            "10",
            "Orders-3",
            "orders",
            "orders-0",
            "orders-01",
            "orders-1",
            "orders-9",
            "orders-10",
        )
        assert router.partitions == expected

    def test_an_exchange_is_not_the_queue_of_the_same_name(self) -> None:
        router = ConsistentHashRouter[Exchange | str]()
        exchange = Exchange("a", "direct", DirectRouter())
        router.bind(exchange, "1", {})
        router.bind("a", "1", {})
        assert router.partitions == ("a", exchange)
        found = Counter(router.route(key, {}) for key in KEYS)
        assert abs(found["a",] - found[exchange,]) < 400


class TestForEver:
    """These values are promises: another hash would move the keys of every topic there is."""

    def test_hashes(self) -> None:
        assert [hash64(b""), hash64(b"key")] == [0xE4A6A0577479B2B4, 0xCE7CCCADC3A94CF5]
        assert [spread(0), spread(65_535)] == [0xE220A8397B1DCDAF, 0x134DF622FD3A6C5F]

    def test_owners(self) -> None:
        router = bound({f"orders-{number}": "1" for number in range(10)})
        found = "".join(owner(router, f"customer {number}")[-1] for number in range(40))
        assert found == "4737805259741353119672289062306523125063"

    def test_owners_by_weight(self) -> None:
        router = bound({"a": "1", "b": "2", "c": "5"})
        found = "".join(owner(router, f"customer {number}") for number in range(40))
        assert found == "caacccabccbbaccbccbcbbabccbbccacbccbcccb"

    def test_owners_of_values(self) -> None:
        router = bound({f"orders-{number}": "1" for number in range(10)}, {"hash-header": "h"})
        values: list[Value] = ["a", 7, -7, True, 1.5, Decimal("1.5"), [1, "b"], {"c": None}, None]
        assert "".join(owner(router, headers={"h": value})[-1] for value in values) == "993344699"
