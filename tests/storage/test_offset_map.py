"""A map from offsets to values, against a dictionary."""

from hypothesis import given
from hypothesis import strategies as st

from leveret.storage.offset_map import OffsetMap
from tests.storage.builders import runs

spans = st.tuples(st.integers(0, 40), st.integers(1, 10)).map(lambda pair: (pair[0], pair[0] + pair[1]))
commands = st.lists(st.tuples(spans, st.sampled_from([None, 0, 1, 2])), max_size=20)


@given(commands, spans)
def test_it_holds_what_a_dictionary_would(steps, asked):
    known: OffsetMap[int] = OffsetMap()
    model: dict[int, int] = {}
    for (start, stop), value in steps:
        if value is None:
            known.remove_many([(start, stop)])
        else:
            known.put([(start, stop)], value)
        for offset in range(start, stop):
            model.pop(offset, None)
            if value is not None:
                model[offset] = value
    assert known == model
    assert known.copy() == model
    assert (len(known), bool(known)) == (len(model), bool(model))
    assert list(known.pairs()) == sorted(model.items(), key=lambda pair: (pair[1], pair[0]))
    assert all(known.has(offset, value) for offset, value in model.items())
    assert not any(known.has(offset, 3) for offset in model)
    assert list(known) == [offset for offset, _ in known.pairs()]
    inside = {offset: value for offset, value in model.items() if asked[0] <= offset < asked[1]}
    assert known.values_in([asked]) == inside
    by_value = {value: runs(sorted(o for o, v in inside.items() if v == value)) for value in inside.values()}
    assert dict(known.parts([asked])) == by_value
    for offset in range(50):
        assert known.get(offset, -1) == model.get(offset, -1)
        assert (offset in known) == (offset in model)
    assert "elsewhere" not in known
    known.clear()
    assert not known
