from struct import Struct

import pytest
from xxhash import xxh3_64_intdigest

from leveret.storage.errors import UnknownFormat
from leveret.storage.formats import HEADER_BYTES, MAGIC, SEGMENT, VERSION, WAL, FileHeader, read_header

HEADER = FileHeader(SEGMENT, id=7, number=99)


def made(magic: bytes = MAGIC, version: int = VERSION, kind: bytes = SEGMENT) -> bytes:
    fields = Struct("<8sI4sQQ24x").pack(magic, version, kind, 7, 99)
    return fields + xxh3_64_intdigest(fields).to_bytes(8, "little")


def test_a_header_has_64_bytes_and_is_read_back():
    assert len(HEADER.encode()) == HEADER_BYTES
    assert read_header(HEADER.encode() + b"what follows", "f", SEGMENT) == HEADER


def test_the_format_is_the_one_that_is_documented():
    assert HEADER.encode() == made()


@pytest.mark.parametrize("position", range(HEADER_BYTES))
def test_any_changed_byte_is_damage(position):
    data = bytearray(HEADER.encode())
    data[position] ^= 0x10
    assert read_header(bytes(data), "f", SEGMENT) is None


@pytest.mark.parametrize("length", [0, 1, 55, 63])
def test_a_header_that_was_cut_is_damage(length):
    assert read_header(HEADER.encode()[:length], "f", SEGMENT) is None


def test_a_newer_version_is_refused_and_named():
    with pytest.raises(UnknownFormat) as caught:
        read_header(made(version=VERSION + 1), "logs/f", SEGMENT)
    assert (caught.value.file, caught.value.found, caught.value.supported) == ("logs/f", VERSION + 1, VERSION)
    assert caught.value.hint


@pytest.mark.parametrize("data", [made(magic=b"LEVIATAN"), made(kind=WAL)])
def test_a_file_of_somebody_else_or_of_another_kind_is_refused(data):
    with pytest.raises(UnknownFormat) as caught:
        read_header(data, "logs/f", SEGMENT)
    assert caught.value.found is None
    assert caught.value.hint
