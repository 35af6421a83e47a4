"""The language of --where: each operator, each field, and what is not in it."""

from typing import Any

import pytest

from leveret.cli.filters import BadCondition, parse_conditions
from tests.cli.test_message_json import delivered

HEADERS: dict[str, Any] = {
    "region": "eu",
    "tries": 3,
    "vip": True,
    "nothing": None,
    "raw": b"bytes",
    "a.b": "dotted",
    "x=y": "odd",
    "x-exception-type": "urllib.error.TimeoutError",
}
ORDER = delivered(
    b'{"id": 7, "customer": {"name": "Ann", "tags": ["a", "b"]}, "paid": false, "note": null, "e": "="}',
    {"headers": HEADERS, "message_id": "m-17", "content_type": "application/json"},
    key="order.new",
    exchange="shop",
)
PLAIN = delivered(b"no json \xff", {})


@pytest.mark.parametrize(
    "condition",
    [
        "header.region=eu",
        "header.region!=us",
        "header.region~=e",
        "header.tries=3",
        "header.vip=true",
        "header.nothing=null",
        "header.raw=bytes",
        "header.a.b=dotted",
        "header.missing!=anything",
        "type=TimeoutError",
        "type=urllib.error.TimeoutError",
        "type~=Timeout",
        "type!=ValueError",
        "message_id=m-17",
        "message_id~=17",
        "routing_key=order.new",
        "exchange=shop",
        "content_type~=json",
        "body.id=7",
        "body.customer.name=Ann",
        'body.customer.tags=["a","b"]',
        "body.paid=false",
        "body.note=null",
        "body.e==",
        "body.missing!=x",
        "body.id.deeper!=x",
        "body~=customer",
    ],
)
def test_a_condition_that_holds(condition: str):
    assert parse_conditions([condition])(ORDER)


@pytest.mark.parametrize(
    "condition",
    [
        "header.region=us",
        "header.region=EU",
        "header.region= eu",
        "header.missing=",
        "header.missing~=",
        "type=Timeout",
        "type!=TimeoutError",
        "message_id!=m-17",
        "correlation_id~=",
        "body.id=8",
        "body.customer=Ann",
        "body.missing=null",
        "body=x",
    ],
)
def test_a_condition_that_does_not_hold(condition: str):
    assert not parse_conditions([condition])(ORDER)


def test_a_body_that_is_no_json_has_no_fields_but_is_text():
    assert parse_conditions(["body.id!=7", "body~=no json"])(PLAIN)
    assert not parse_conditions(["body.id=7"])(PLAIN)


def test_all_conditions_must_hold():
    assert parse_conditions(["header.region=eu", "body.id=7"])(ORDER)
    assert not parse_conditions(["header.region=eu", "body.id=8"])(ORDER)
    assert parse_conditions([])(ORDER)


@pytest.mark.parametrize("condition", ["", "region", "=eu", "region=eu", "header=eu", "header.=eu", "!=x"])
def test_what_is_no_condition_is_refused_with_what_would_be(condition: str):
    with pytest.raises(BadCondition, match=r"FIELD|header\.NAME"):
        parse_conditions([condition])
