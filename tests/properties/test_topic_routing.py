"""Topic exchanges against the definition of a match, written down as simply as it can be said.

Words are few and include the empty one, `*` and `#` themselves, so that patterns overlap; bindings come and
go between routings, so that the trie is cut and grows again, and kept routes have to be forgotten.
"""

from hypothesis import given
from hypothesis import strategies as st

from leveret.broker.exchanges.topic import TopicRouter

WORDS = st.sampled_from(["a", "b", "", "*", "#"])
KEYS = st.lists(WORDS, max_size=6).map(".".join)
QUEUES = st.sampled_from("pqr")
BINDINGS = st.tuples(QUEUES, KEYS)
STEPS = st.lists(st.tuples(st.sampled_from(["bind", "unbind", "forget", "route"]), BINDINGS), max_size=40)


def words(key: str) -> list[str]:
    return key.split(".") if key else []


def matches(pattern: list[str], key: list[str]) -> bool:
    if not pattern:
        return not key
    first, *rest = pattern
    if first == "#":
        return matches(rest, key) or (bool(key) and matches(pattern, key[1:]))
    return bool(key) and first in ("*", key[0]) and matches(rest, key[1:])


@given(st.lists(BINDINGS, max_size=12), st.lists(KEYS, min_size=1, max_size=8))
def test_a_message_reaches_the_queues_whose_patterns_match(
    bindings: list[tuple[str, str]], keys: list[str]
) -> None:
    router = TopicRouter[str]()
    for queue, pattern in bindings:
        router.bind(queue, pattern, {})
    for key in keys:
        reached = list(router.route(key, {}))
        assert sorted(reached) == sorted({q for q, p in bindings if matches(words(p), words(key))})


@given(STEPS)
def test_routes_follow_bindings_that_come_and_go(steps: list[tuple[str, tuple[str, str]]]) -> None:
    router = TopicRouter[str]()
    bindings: set[tuple[str, str]] = set()
    for step, (queue, key) in steps:
        if step == "bind":
            assert router.bind(queue, key, {}) == ((queue, key) not in bindings)
            bindings.add((queue, key))
        elif step == "unbind":
            assert router.unbind(queue, key, {}) == ((queue, key) in bindings)
            bindings.discard((queue, key))
        elif step == "forget":
            assert router.forget(queue) == sum(owner == queue for owner, _ in bindings)
            bindings = {(owner, pattern) for owner, pattern in bindings if owner != queue}
        else:
            expected = {owner for owner, pattern in bindings if matches(words(pattern), words(key))}
            assert sorted(router.route(key, {})) == sorted(expected)
        assert len(router) == len(bindings)
    for queue, _ in list(bindings):
        router.forget(queue)
    assert router._root.children == {}
