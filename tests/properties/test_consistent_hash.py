"""Consistent hashing: what holds for every set of bindings, in every order, and after every change."""

from hypothesis import given
from hypothesis import strategies as st

from leveret.broker.exchanges.consistent_hash import ConsistentHashRouter

KEYS = [str(number) for number in range(300)]
QUEUES = st.sampled_from([f"orders-{number}" for number in range(12)])
WEIGHTS = st.integers(1, 1000) | st.sampled_from([1, 1, 1, 10**6, 10**100])
BINDINGS = st.dictionaries(QUEUES, WEIGHTS, min_size=1, max_size=8)


def owners(weights: dict[str, int]) -> dict[str, str]:
    router = ConsistentHashRouter[str]()
    for queue, weight in weights.items():
        router.bind(queue, str(weight), {})
    return {key: next(iter(router.route(key, {}))) for key in KEYS}


@given(BINDINGS, st.randoms(use_true_random=False), st.lists(QUEUES, max_size=4))
def test_the_same_bindings_give_the_same_owners_whatever_came_before(weights, random, detours) -> None:
    router = ConsistentHashRouter[str]()
    for queue in detours:
        router.bind(queue, "3", {"detour": True})
        router.route("a key", {})
    order = list(weights.items())
    random.shuffle(order)
    for queue, weight in order:
        router.bind(queue, str(weight), {})
    for queue in detours:
        router.unbind(queue, "3", {"detour": True})
    assert {key: next(iter(router.route(key, {}))) for key in KEYS} == owners(weights)


@given(BINDINGS, QUEUES, WEIGHTS)
def test_a_destination_that_comes_or_grows_takes_keys_and_moves_no_others(weights, queue, weight) -> None:
    before, after = owners(weights), owners({**weights, queue: weights.get(queue, 0) + weight})
    assert {after[key] for key in KEYS if after[key] != before[key]} <= {queue}


@given(BINDINGS, st.data())
def test_a_destination_that_goes_gives_away_its_keys_and_moves_no_others(weights, data) -> None:
    gone = data.draw(st.sampled_from(sorted(weights)))
    rest = {queue: weight for queue, weight in weights.items() if queue != gone}
    if rest:
        before, after = owners(weights), owners(rest)
        assert {before[key] for key in KEYS if after[key] != before[key]} <= {gone}
        assert gone not in after.values()
