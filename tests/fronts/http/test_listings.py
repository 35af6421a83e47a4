"""Pages, filters, orders and columns of lists, as RabbitMQ has them."""

import asyncio
import json
from operator import itemgetter
from urllib.parse import quote

import pytest
from starlette.requests import Request

from leveret.broker.errors import PreconditionFailed
from leveret.fronts.http import listings
from leveret.fronts.http.errors import Problem, problem_of
from leveret.fronts.http.listings import Rows, columns_in, reply_listed

THINGS = [
    {"name": "Order", "size": 7, "stats": {"details": {"rate": 0.5}}, "mixed": "text"},
    {"name": "a", "size": 3, "mixed": 4},
    {"name": "b", "size": 9, "stats": {"details": {"rate": 2.5}}, "mixed": None},
    {"name": "c1", "size": 3, "mixed": [1]},
    {"name": "c2", "size": 1, "stats": {"details": {"rate": 1.0}}, "mixed": {}},
]


def ask(query, rows=None, **options):
    """The answer as JSON, or status, error and reason."""

    async def answered():
        request = Request({"type": "http", "query_string": query.encode(), "headers": []})
        response = await reply_listed(request, rows or rows_of(), **options)
        if hasattr(response, "body_iterator"):
            return json.loads("".join([piece async for piece in response.body_iterator]))
        return json.loads(response.body)

    try:
        return asyncio.run(answered())
    except (Problem, PreconditionFailed) as error:
        problem = error if isinstance(error, Problem) else problem_of(error)
        return problem.status_code, problem.word, problem.detail


def rows_of(made=None, **cheap):
    def row(thing):
        if made is not None:
            made.append(thing["name"])
        return thing

    return Rows(THINGS, row=row, cheap={"name": itemgetter("name"), **cheap})


def names(query, rows=None):
    found = ask(query, rows)
    return [thing["name"] for thing in (found["items"] if isinstance(found, dict) else found)]


def test_a_page_says_where_it_is_and_how_much_there_is():
    assert ask("page=2&page_size=2&columns=name") == {
        "filtered_count": 5,
        "item_count": 2,
        "items": [{"name": "b"}, {"name": "c1"}],
        "page": 2,
        "page_count": 3,
        "page_size": 2,
        "total_count": 5,
    }
    assert ask("page=1&name=zzz") == {
        "filtered_count": 0,
        "item_count": 0,
        "items": [],
        "page": 1,
        "page_count": 0,
        "page_size": 100,
        "total_count": 5,
    }


@pytest.mark.parametrize("query", ["page=0", "page=-1", "page=1&page_size=0", "page=1&page_size=501"])
def test_a_page_that_can_not_be_is_refused_with_its_numbers(query):
    given = dict(pair.split("=") for pair in query.split("&"))
    size = given.get("page_size", "undefined")
    reason = f"Invalid pagination parameters: page number {given['page']}, page size {size}"
    assert ask(query) == (400, "invalid_pagination_parameters", reason)


@pytest.mark.parametrize(
    "query",
    [
        "page=x",
        "page=",
        "page=1.5",
        "page=1&page_size=",
        "page=1&page_size=x",
        "page=+1",
        "page=" + "9" * 5000,
    ]
    + ["page=1&use_regex=true&name=" + quote(pattern) for pattern in ("(", "(?=x)", "*", "a{9999}")],
)
def test_pages_and_expressions_that_can_not_be_read_are_refused(query):
    assert ask(query) == (400, "bad_request", "Pagination parameters are invalid")


def test_a_page_behind_the_end_is_refused_but_not_the_one_at_the_end():
    assert ask("page=2&page_size=5")["items"] == []
    reason = "Page out of range, page: 9 page size: 4, len: 5"
    assert ask("page=9&page_size=4") == (400, "page_out_of_range", reason)
    reason = "Page out of range, page: 2 page size: 100, len: 0"
    assert ask("page=2&name=zzz") == (400, "page_out_of_range", reason)


def test_names_are_filtered_on_pages_only_without_regard_to_case():
    assert names("page=1&name=C") == ["c1", "c2"]
    assert names("page=1&name=^C.&use_regex=true") == ["c1", "c2"]
    assert names("page=1&name=^C.&use_regex=false") == []
    assert ask("page=1&page_size=1&name=c&columns=name")["filtered_count"] == 2
    assert len(names("name=C")) == 5


def test_a_list_is_ordered_by_any_column_and_what_lacks_it_comes_first():
    assert names("sort=size") == ["c2", "a", "c1", "Order", "b"]
    assert names("sort=size&sort_reverse=true") == ["b", "Order", "c1", "a", "c2"]
    assert names("sort=stats.details.rate") == ["a", "c1", "Order", "c2", "b"]
    assert names("sort=mixed") == ["a", "b", "c2", "c1", "Order"]
    for query in ("sort=nope", "sort=", "sort=name.x", "sort_reverse=false", "sort=.."):
        assert names(query) == ["Order", "a", "b", "c1", "c2"], query


def test_a_page_ordered_by_a_cheap_column_makes_only_its_own_rows():
    for query in ("", "&sort=name", "&sort=size", "&sort=size&sort_reverse=true", "&name=c"):
        made = []
        rows = rows_of(made, size=itemgetter("size"))
        assert made == names(f"page=1&page_size=2{query}", rows)


def test_columns_that_are_cheap_need_no_rows():
    made = []
    rows = rows_of(made, size=itemgetter("size"))
    assert ask("columns=size,name&sort=size&page=1&page_size=1", rows)["items"] == [{"size": 1, "name": "c2"}]
    assert ask("columns=name", rows)[:2] == [{"name": "Order"}, {"name": "a"}]
    assert made == []
    assert ask("columns=name,mixed", rows)[1] == {"name": "a", "mixed": 4}
    assert len(made) == 5


def test_columns_reach_into_objects():
    assert ask("columns=name,stats.details.rate")[:2] == [
        {"name": "Order", "stats": {"details": {"rate": 0.5}}},
        {"name": "a"},
    ]
    assert ask("columns=stats,stats.details")[0] == {"stats": THINGS[0]["stats"]}
    assert columns_in({"a": [{"b": 1, "c": 2}]}, (("a", "b"),)) == {"a": [{"b": 1}]}


def test_an_object_without_columns_is_an_empty_list_as_in_rabbitmq():
    assert ask("columns=nope") == ask("columns=") == ask("columns=.,,") == [[]] * 5


def test_a_list_without_pages_takes_no_notice_of_a_page():
    assert len(ask("page=0&page_size=2", paged=False)) == 5


def test_what_has_gone_meanwhile_is_left_out():
    def row(thing):
        return None if thing["name"] == "b" else thing

    rows = Rows(THINGS, row=row, cheap={"name": itemgetter("name")})
    assert names("", rows) == names("page=1", rows) == ["Order", "a", "c1", "c2"]
    assert ask("page=1", rows)["item_count"] == 4


def test_other_clients_have_a_turn_while_a_list_is_ordered(monkeypatch):
    monkeypatch.setattr(listings, "_PAUSE_S", -1.0)
    passes = 0

    async def count_passes():
        nonlocal passes
        while True:
            passes += 1
            await asyncio.sleep(0)

    async def listed():
        counting = asyncio.ensure_future(count_passes())
        query = b"page=1&sort=size&name=.&use_regex=true"
        request = Request({"type": "http", "query_string": query, "headers": []})
        await reply_listed(request, rows_of())
        counting.cancel()

    asyncio.run(listed())
    assert passes >= 15
