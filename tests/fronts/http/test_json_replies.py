"""JSON of what AMQP allows, and lists that do not hold the broker up."""

import asyncio
import json

import pytest

from leveret.fronts.http.json_replies import DEPTH_MAX, jsonable, reply, reply_list, reply_nested


def test_depth_is_counted_from_the_outermost_table():
    value: object = "bottom"
    for _ in range(DEPTH_MAX):
        value = [value]
    assert json.loads(json.dumps(jsonable(value))) == value
    assert "bottom" not in json.dumps(jsonable([value]))


def test_a_value_that_no_table_can_hold_is_our_mistake():
    with pytest.raises(TypeError, match="set is not a type of field tables"):
        jsonable({"x": set()})


def test_a_name_that_was_not_made_readable_still_goes_out():
    assert json.loads(reply({"name": "\udcff"}).body) == {"name": "\udcff"}


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 128, 1000])
def test_a_list_is_the_same_however_many_pieces_it_has(count):
    assert json.loads("".join(asyncio.run(pieces_of(range(count))))) == list(range(count))


def test_the_loop_runs_between_the_pieces_of_a_list():
    passes = 0

    async def count_passes():
        nonlocal passes
        while True:
            passes += 1
            await asyncio.sleep(0)

    async def scenario():
        counting = asyncio.create_task(count_passes())
        pieces = await pieces_of(range(1000))
        counting.cancel()
        return len(pieces)

    assert asyncio.run(scenario()) > 10
    assert passes > 10


async def pieces_of(items):
    return [piece async for piece in reply_list(items).body_iterator]


def test_a_list_of_objects_with_many_items_each_comes_in_pieces():
    objects = [({"name": "a"}, "parts", iter(range(3))), ({}, "parts", []), ({"n": {}}, "parts", [{"x": 1}])]

    async def read(objects):
        return [piece async for piece in reply_nested(objects).body_iterator]

    pieces = asyncio.run(read(objects))
    assert len(pieces) > 6
    assert json.loads("".join(pieces)) == [
        {"name": "a", "parts": [0, 1, 2]},
        {"parts": []},
        {"n": {}, "parts": [{"x": 1}]},
    ]
    assert "".join(asyncio.run(read([]))) == "[]"
