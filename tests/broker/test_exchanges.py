"""Routing tables: which bindings there are, and where each type of exchange sends a message."""

from decimal import Decimal

import pytest

from leveret.amqp.tables import Timestamp, Value
from leveret.broker.errors import PreconditionFailed
from leveret.broker.exchanges import ROUTERS, Binding
from leveret.broker.exchanges.direct import DirectRouter
from leveret.broker.exchanges.fanout import FanoutRouter
from leveret.broker.exchanges.headers import HeadersRouter
from leveret.broker.exchanges.router import Router
from leveret.broker.exchanges.topic import KEPT_ROUTES_MAX, TopicRouter


@pytest.fixture(params=[name for name in ROUTERS if name != "x-consistent-hash"])  # whose keys are numbers
def router(request: pytest.FixtureRequest) -> Router[str]:
    return ROUTERS[request.param]()


class TestEveryType:
    def test_a_new_exchange_routes_nowhere(self, router: Router[str]) -> None:
        assert not router.route("key", {})
        assert len(router) == 0

    def test_the_same_binding_is_made_once(self, router: Router[str]) -> None:
        assert router.bind("q", "key", {"a": 1, "b": "x"})
        assert not router.bind("q", "key", {"b": "x", "a": 1})
        assert len(router) == 1

    @pytest.mark.parametrize(
        ("destination", "key", "arguments"),
        [("p", "key", {"a": 1}), ("q", "other", {"a": 1}), ("q", "key", {}), ("q", "key", {"a": True})],
    )
    def test_bindings_differ_by_destination_key_or_arguments(
        self, router: Router[str], destination: str, key: str, arguments: dict[str, Value]
    ) -> None:
        router.bind("q", "key", {"a": 1})
        assert router.bind(destination, key, arguments)
        assert len(router) == 2

    def test_a_destination_is_reached_once_however_often_it_is_bound(self, router: Router[str]) -> None:
        router.bind("q", "key", {})
        router.bind("q", "key", {"x-other": 1})
        assert list(router.route("key", {})) == ["q"]

    def test_a_destination_is_reached_until_its_last_binding_is_gone(self, router: Router[str]) -> None:
        router.bind("q", "key", {})
        router.bind("q", "key", {"x-other": 1})
        assert router.unbind("q", "key", {})
        assert list(router.route("key", {})) == ["q"]
        assert router.unbind("q", "key", {"x-other": 1})
        assert not router.route("key", {})
        assert len(router) == 0

    def test_a_binding_that_is_not_there_can_not_be_removed(self, router: Router[str]) -> None:
        router.bind("q", "key", {})
        assert not router.unbind("q", "other", {})
        assert not router.unbind("q", "key", {"a": 1})
        assert not router.unbind("p", "key", {})
        assert list(router.route("key", {})) == ["q"]

    def test_a_removed_binding_can_be_made_again(self, router: Router[str]) -> None:
        router.bind("q", "key", {})
        router.unbind("q", "key", {})
        assert router.bind("q", "key", {})
        assert list(router.route("key", {})) == ["q"]

    def test_a_forgotten_destination_takes_all_its_bindings_along(self, router: Router[str]) -> None:
        for key in ("key", "other", "a.b"):
            router.bind("q", key, {})
        router.bind("p", "key", {})
        assert router.forget("q") == 3
        assert router.forget("q") == 0
        assert list(router.route("key", {})) == ["p"]
        assert list(router.bindings) == [Binding("p", "key", {})]

    def test_bindings_are_listed_as_they_were_made(self, router: Router[str]) -> None:
        router.bind("q", "key", {"a": [1, {"b": None}]})
        router.bind("p", "", {})
        assert list(router.bindings) == [Binding("q", "key", {"a": [1, {"b": None}]}), Binding("p", "", {})]
        assert list(router.bindings_of("p")) == [Binding("p", "", {})]
        assert list(router.bindings_of("nobody")) == []

    def test_a_route_stays_what_it_was_when_bindings_change(self, router: Router[str]) -> None:
        router.bind("q", "key", {})
        route = router.route("key", {})
        router.forget("q")
        assert list(route) == ["q"]

    def test_arguments_nested_as_deep_as_a_frame_allows_make_a_binding(self, router: Router[str]) -> None:
        deep: Value = []
        for _ in range(20_000):
            deep = [deep]
        assert router.bind("q", "key", {"deep": deep})
        assert not router.bind("q", "key", {"deep": deep})
        router.route("key", {"headers": {"deep": deep}})

    def test_several_keys_lead_to_each_destination_once(self, router: Router[str]) -> None:
        for key in ("one", "two", "three"):
            router.bind("q", key, {})
        router.bind("p", "two", {})
        assert set(router.route_all(["one"], {})) >= {"q"}
        assert sorted(router.route_all(["one", "two"], {})) == ["p", "q"]

    def test_only_headers_exchanges_look_at_properties(self, router: Router[str]) -> None:
        assert router.needs_properties == isinstance(router, HeadersRouter)

    def test_arguments_of_others_mean_nothing(self, router: Router[str]) -> None:
        router.configure({"hash-header": 5, "hash-property": "none"})
        assert router.needs_properties == isinstance(router, HeadersRouter)


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic"])
def test_only_headers_exchanges_check_the_arguments_of_a_binding(kind: str) -> None:
    ROUTERS[kind]().check_arguments({"x-match": "some"})


def test_a_direct_exchange_routes_by_the_whole_key() -> None:
    router = DirectRouter[str]()
    for queue, key in (("a", "a"), ("b", "b"), ("both", "a"), ("both", "b"), ("star", "*"), ("none", "")):
        router.bind(queue, key, {})
    assert router.route("a", {}) == ("a", "both")
    assert router.route("*", {}) == ("star",)
    assert router.route("", {}) == ("none",)
    assert router.route("c", {}) == ()


def test_a_fanout_exchange_routes_to_everything() -> None:
    router = FanoutRouter[str]()
    router.bind("a", "x", {})
    router.bind("b", "y", {})
    assert router.route("z", {}) == ("a", "b")


class TestTopic:
    @pytest.mark.parametrize(
        ("pattern", "matched", "unmatched"),
        [
            ("", [""], ["a", "."]),
            ("#", ["", "a", ".", "a.b.c"], []),
            ("*", ["a", "*", "#"], ["", "a.b", "."]),
            ("a.*", ["a.b", "a."], ["a", "a.b.c", "b.b"]),
            ("a.#", ["a", "a.", "a.b", "a.b.c"], ["", "b", "b.a"]),
            ("#.a", ["a", "b.a", ".a", "a.a"], ["", "a.b", "a."]),
            ("a.#.b", ["a.b", "a.x.b", "a.x.y.b", "a.b.b"], ["a", "b", "a.b.x"]),
            ("*.#", ["a", "a.b"], [""]),
            ("#.*", ["a", "a.b"], [""]),
            ("#.#", ["", "a", "a.b"], []),
            ("#.*.#", ["a", "a.b", "a.b.c"], [""]),
            ("*.*", [".", "a.b", "a."], ["", "a", "a.b.c"]),
            (".", ["."], ["", "a", ".."]),
            ("a..b", ["a..b"], ["a.b", "a.x.b"]),
            ("a.*.b", ["a..b", "a.x.b"], ["a.b"]),
            ("a*", ["a*"], ["a", "ab"]),
            ("a#.b", ["a#.b"], ["a.b", "ax.b"]),
            ("#.a.#.b", ["a.b", "x.a.y.b", "a.a.b.b"], ["b.a", "a.b.c"]),
        ],
    )
    def test_a_pattern_matches(self, pattern: str, matched: list[str], unmatched: list[str]) -> None:
        router = TopicRouter[str]()
        router.bind("q", pattern, {})
        assert [key for key in matched + unmatched if router.route(key, {})] == matched

    def test_a_destination_is_reached_once_through_several_patterns(self) -> None:
        router = TopicRouter[str]()
        for pattern in ("a.b", "a.*", "a.#", "#", "#.b", "*.b"):
            router.bind("q", pattern, {})
        assert router.route("a.b", {}) == ("q",)

    def test_many_hashes_cost_no_power_of_their_number(self) -> None:
        router = TopicRouter[str]()
        router.bind("q", ".".join(["#", "a"] * 40), {})
        key = ".".join(["a"] * 100)
        assert router.route(key, {}) == ("q",)
        assert router.route(key + ".b", {}) == ()

    def test_words_without_bindings_are_cut_off(self) -> None:
        router = TopicRouter[str]()
        router.bind("long", "a.b.c.d", {})
        router.bind("short", "a.b", {})
        router.unbind("long", "a.b.c.d", {})
        assert list(router._root.children["a"].children["b"].children) == []
        router.unbind("short", "a.b", {})
        assert router._root.children == {}

    def test_words_on_the_way_to_others_stay(self) -> None:
        router = TopicRouter[str]()
        router.bind("long", "a.b.c", {})
        router.bind("short", "a", {})
        router.unbind("short", "a", {})
        assert router.route("a.b.c", {}) == ("long",)

    def test_kept_routes_follow_the_bindings(self) -> None:
        router = TopicRouter[str]()
        assert router.route("a", {}) == ()
        router.bind("q", "a", {})
        assert router.route("a", {}) == ("q",)
        router.unbind("q", "a", {})
        assert router.route("a", {}) == ()

    def test_the_number_of_kept_routes_is_bounded(self) -> None:
        router = TopicRouter[str]()
        router.bind("q", "#", {})
        for number in range(KEPT_ROUTES_MAX + 10):
            assert router.route(f"key.{number}", {}) == ("q",)
        assert len(router._routes) <= KEPT_ROUTES_MAX


def fits(arguments: dict[str, Value], headers: dict[str, Value]) -> bool:
    router = HeadersRouter[str]()
    router.check_arguments(arguments)
    router.bind("q", "", arguments)
    return router.route("", {"headers": headers}) == ("q",)


class TestHeaders:
    @pytest.mark.parametrize("match", [{}, {"x-match": "all"}, {"x-match": "all-with-x"}])
    def test_all_arguments_must_fit(self, match: dict[str, Value]) -> None:
        assert fits({**match, "a": 1, "b": "x"}, {"a": 1, "b": "x", "c": True})
        assert not fits({**match, "a": 1, "b": "x"}, {"a": 1})
        assert not fits({**match, "a": 1, "b": "x"}, {"a": 1, "b": "y"})
        assert fits(match, {})

    @pytest.mark.parametrize("match", ["any", "any-with-x"])
    def test_any_argument_must_fit(self, match: str) -> None:
        assert fits({"x-match": match, "a": 1, "b": "x"}, {"b": "x", "a": 2})
        assert not fits({"x-match": match, "a": 1, "b": "x"}, {"a": 2, "b": "y"})
        assert not fits({"x-match": match, "a": 1}, {})
        assert not fits({"x-match": match}, {"a": 1})

    def test_arguments_that_begin_with_x_do_not_count(self) -> None:
        assert fits({"x-match": "all", "a": 1, "x-b": 2}, {"a": 1})
        assert not fits({"x-match": "any", "a": 1, "x-b": 2}, {"x-b": 2})

    def test_arguments_that_begin_with_x_count_if_they_are_asked_to(self) -> None:
        assert not fits({"x-match": "all-with-x", "a": 1, "x-b": 2}, {"a": 1})
        assert fits({"x-match": "all-with-x", "a": 1, "x-b": 2}, {"a": 1, "x-b": 2})
        assert fits({"x-match": "any-with-x", "a": 1, "x-b": 2}, {"x-b": 2})
        assert not fits({"x-match": "any-with-x", "a": 1}, {"x-match": "any-with-x"})

    @pytest.mark.parametrize("value", [1, "", None, False])
    def test_an_argument_without_a_value_asks_for_the_header_to_be_there(self, value: Value) -> None:
        assert fits({"a": None}, {"a": value})
        assert fits({"x-match": "any", "a": None}, {"a": value})
        assert not fits({"a": None}, {"b": value})

    @pytest.mark.parametrize(
        ("wanted", "given"),
        [
            (1, 1.0),
            (5_000_000_000, 5_000_000_000),
            (7, Timestamp(7)),
            ("text", b"text"),
            ("text", bytearray(b"text")),
            ("\udcff", b"\xff"),
            (True, True),
            (Decimal("1.50"), Decimal("1.50")),
            ([1, "a"], [1, "a"]),
            ({"k": [1]}, {"k": [1]}),
        ],
    )
    def test_values_are_equal(self, wanted: Value, given: Value) -> None:
        assert fits({"a": wanted}, {"a": given})
        assert fits({"a": given}, {"a": wanted})

    @pytest.mark.parametrize(
        ("wanted", "given"),
        [
            (1, True),
            (0, False),
            (1, "1"),
            (1, 2),
            ("a", "A"),
            (Decimal("1.50"), Decimal("1.5")),
            ([1], [1.0]),
            (["a"], [b"a"]),
            ([1, 2], [2, 1]),
            ({"k": 1}, {"k": True}),
            ("a", None),
        ],
    )
    def test_values_differ(self, wanted: Value, given: Value) -> None:
        assert not fits({"a": wanted}, {"a": given})

    def test_destinations_with_the_same_arguments_share_them(self) -> None:
        router = HeadersRouter[str]()
        for queue in ("p", "q"):
            router.bind(queue, "", {"a": 1})
        router.bind("q", "", {"b": 1})
        assert router.route("", {"headers": {"a": 1, "b": 1}}) == ("p", "q")
        router.unbind("p", "", {"a": 1})
        assert router.route("", {"headers": {"a": 1}}) == ("q",)
        router.forget("q")
        assert router.route("", {"headers": {"a": 1, "b": 1}}) == ()

    @pytest.mark.parametrize(
        ("value", "sentence"),
        [
            ("some", 'field value <<"some">>; expected all, any, all-with-x, or any-with-x'),
            ("", "field value <<>>; expected all, any, all-with-x, or any-with-x"),
            ('a"b', r'field value <<"a\"b">>; expected all, any, all-with-x, or any-with-x'),
            ("\x01\x02", "field value <<1,2>>; expected all, any, all-with-x, or any-with-x"),
            (1, "field type signedint (value 1); expected longstr"),
            (5_000_000_000, "field type long (value 5000000000); expected longstr"),
            (True, "field type bool (value true); expected longstr"),
            (None, "field type void (value undefined); expected longstr"),
            (2.5, "field type double (value 2.5); expected longstr"),
            (["a"], 'field type array (value [{longstr,<<"a">>}]); expected longstr'),
            ({"a": 1}, 'field type table (value [{<<"a">>,signedint,1}]); expected longstr'),
            (Decimal("1.5"), "field type decimal (value {1,15}); expected longstr"),
            (Timestamp(1577836800), "field type timestamp (value 1577836800); expected longstr"),
            (b"abc", 'field type binary (value <<"abc">>); expected longstr'),
        ],
    )
    def test_an_unknown_match_is_refused(self, value: Value, sentence: str) -> None:
        with pytest.raises(PreconditionFailed) as refused:
            HeadersRouter[str]().check_arguments({"x-match": value})
        assert refused.value.sentence == f"Invalid x-match {sentence}"

    def test_a_refusal_does_not_follow_a_value_into_its_depths(self) -> None:
        deep: Value = []
        for _ in range(20_000):
            deep = [deep]
        with pytest.raises(PreconditionFailed, match=r"field type array .*\.\.\."):
            HeadersRouter[str]().check_arguments({"x-match": deep})
