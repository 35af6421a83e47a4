"""Reading what is to be published: every byte, whatever the chunks."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.cli import inputs
from leveret.cli.inputs import Piece, read_files, read_lines, total_bytes
from leveret.client import ClientError


def lines_of(*files: Path) -> list[Piece]:
    return [piece for batch in read_lines(files) for piece in batch]


@given(st.lists(st.binary(max_size=8).map(lambda data: data.replace(b"\n", b""))), st.integers(1, 9))
def test_lines_are_the_same_whatever_the_chunks(lines: list[bytes], chunk: int):
    source, sink = os.pipe()
    os.write(sink, b"".join(line + b"\n" for line in lines))
    os.close(sink)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs, "_CHUNK_BYTES", chunk)
        found = lines_of(Path(f"/dev/fd/{source}"))
    os.close(source)
    assert [piece.body for piece in found] == lines
    assert [piece.line for piece in found] == list(range(1, len(lines) + 1))


@pytest.mark.parametrize(
    ("content", "bodies"),
    [
        (b"", []),
        (b"a", [b"a"]),
        (b"a\nb", [b"a", b"b"]),
        (b"\n", [b""]),
        (b"a\r\n", [b"a\r"]),
        (b"\0\xff\n", [b"\0\xff"]),
        (b"x" * 200_000 + b"\ny", [b"x" * 200_000, b"y"]),
    ],
)
def test_a_line_is_everything_up_to_its_end(tmp_path: Path, content: bytes, bodies: list[bytes]):
    file = tmp_path / "lines"
    file.write_bytes(content)
    assert [piece.body for piece in lines_of(file)] == bodies


def test_what_comes_through_a_pipe_is_there_before_the_pipe_ends(tmp_path: Path):
    source, sink = os.pipe()
    batches = read_lines([Path(f"/dev/fd/{source}")])
    os.write(sink, b"one\ntw")
    assert [piece.body for piece in next(batches)] == [b"one"]
    os.write(sink, b"o\n")
    assert [piece.body for piece in next(batches)] == [b"two"]
    os.close(sink)
    assert next(batches, None) is None
    os.close(source)


def test_pieces_know_the_file_and_the_line(tmp_path: Path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"a\nb\n")
    two.write_bytes(b"c\n")
    places = [piece.place for piece in lines_of(one, two)]
    assert places == [f"{one}, line 1", f"{one}, line 2", f"{two}, line 1"]
    assert Piece(b"", "-", 3).place == "stdin, line 3"


def test_whole_files_are_pieces_with_a_type(tmp_path: Path):
    image = tmp_path / "a.png"
    image.write_bytes(b"\x89\n" * 100_000)
    ((piece,),) = read_files([image])
    assert (piece.body, piece.guessed_type, piece.place) == (b"\x89\n" * 100_000, "image/png", str(image))
    assert Piece(b"", "noname").guessed_type == "application/octet-stream"


def test_the_size_is_known_of_files_only(tmp_path: Path):
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    assert total_bytes([file, file]) == 10
    source, sink = os.pipe()
    assert total_bytes([file, Path(f"/dev/fd/{source}")]) is None
    os.close(source)
    os.close(sink)


@pytest.mark.parametrize("read", [read_lines, read_files])
def test_what_no_broker_takes_is_not_read_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: object
):
    monkeypatch.setattr(inputs, "MESSAGE_BYTES_MAX", 200_000)
    file = tmp_path / "endless"
    file.write_bytes(b"x" * 400_000)
    with pytest.raises(ClientError, match=r"endless.*longer than 200,000 bytes"):
        list(read([file]))  # type: ignore[operator]


def test_a_file_that_can_not_be_read_is_named(tmp_path: Path):
    with pytest.raises(ClientError, match=r"missing can't be read: No such file"):
        lines_of(tmp_path / "missing")
    with pytest.raises(ClientError, match="can't be read: Is a directory"):
        lines_of(tmp_path)
