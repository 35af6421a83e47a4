"""Names between text and bytes."""

from leveret.amqp.names import to_bytes, to_text


def test_names_are_utf_8():
    assert (to_text("schön".encode()), to_bytes("schön")) == ("schön", "schön".encode())


def test_other_bytes_come_back_as_they_were():
    assert to_bytes(to_text(b"caf\xe9 \xff")) == b"caf\xe9 \xff"
