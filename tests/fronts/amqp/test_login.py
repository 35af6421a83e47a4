"""What a client answers to connection.start."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.amqp.tables import encode_table
from leveret.fronts.amqp.login import BadResponse, read_response


def amqplain(**fields: str) -> bytes:
    return encode_table(dict(fields))[4:]


def test_plain() -> None:
    assert read_response("PLAIN", b"\0guest\0secret") == ("guest", b"secret")


def test_plain_with_an_identity_to_act_as_is_read_past() -> None:
    assert read_response("PLAIN", b"other\0guest\0secret") == ("guest", b"secret")


def test_any_bytes_can_be_a_name_and_a_password() -> None:
    name, password = read_response("PLAIN", b"\0\xff\xfe\0\xfd")
    assert (name.encode("utf-8", "surrogateescape"), password) == (b"\xff\xfe", b"\xfd")


def test_amqplain() -> None:
    assert read_response("AMQPLAIN", amqplain(LOGIN="guest", PASSWORD="secret")) == ("guest", b"secret")


@pytest.mark.parametrize("response", [b"", b"guest", b"\0guest", b"\0guest\0pass\0more"])
def test_what_is_not_plain(response: bytes) -> None:
    with pytest.raises(BadResponse):
        read_response("PLAIN", response)


@pytest.mark.parametrize(
    "response",
    [b"", b"\xff\xff", amqplain(LOGIN="guest"), amqplain(PASSWORD="x"), amqplain(login="a", password="b")],
)
def test_what_is_not_amqplain(response: bytes) -> None:
    with pytest.raises(BadResponse):
        read_response("AMQPLAIN", response)


@pytest.mark.parametrize("mechanism", ["", "EXTERNAL", "plain", "CRAM-MD5"])
def test_other_mechanisms_are_not_known(mechanism: str) -> None:
    with pytest.raises(BadResponse):
        read_response(mechanism, b"\0guest\0guest")


@given(st.sampled_from(["PLAIN", "AMQPLAIN"]), st.binary(max_size=40))
def test_any_response_is_read_or_refused(mechanism: str, response: bytes) -> None:
    try:
        name, password = read_response(mechanism, response)
    except BadResponse:
        return
    assert isinstance(name, str)
    assert isinstance(password, bytes)
