"""Writing what was consumed: what `write` has returned for is safe, and what failed leaves no trace."""

import os
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from leveret.cli import outputs
from leveret.cli.outputs import Directory, Lines, WritingStopped
from leveret.client import Delivery
from tests.cli.test_message_json import delivered
from tests.processes import WAIT_S


def three() -> list[Delivery]:
    return [delivered(body, {}) for body in (b"one", b"two", b"three")]


@contextmanager
def files_no_larger_than(size_bytes: int) -> Iterator[None]:
    """Limit file sizes like a full disk: a write beyond the limit fails after writing what fits."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_lines_are_added_to_what_an_earlier_run_has_written(tmp_path: Path):
    file = tmp_path / "out"
    file.write_bytes(b"zero\n")
    output = Lines.to_file(file, "lines")
    output.write(three())
    output.close()
    assert file.read_bytes() == b"zero\none\ntwo\nthree\n"


def test_a_write_that_fails_half_way_is_taken_back(tmp_path: Path):
    file = tmp_path / "out"
    output = Lines.to_file(file, "lines")
    output.write(three())
    with files_no_larger_than(20), pytest.raises(WritingStopped, match="can't be written") as stopped:
        output.write(three())
    output.close()
    assert (stopped.value.done, stopped.value.reader_gone) == (0, False)
    assert file.read_bytes() == b"one\ntwo\nthree\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", b""),
        (b'{"queue":"q"}\n', b'{"queue":"q"}\n'),
        (b'{"queue":"q"}', b'{"queue":"q"}\n'),
        (b'{"queue":"q"}\n{"queue":"q","bo', b'{"queue":"q"}\n'),
        (b'{"queue":"q","bo', b""),
        (b"notes of somebody else", b"notes of somebody else\n"),
        (b"text\n[1, 2", b"text\n[1, 2\n"),
    ],
)
def test_half_an_envelope_of_a_killed_process_is_cut_off_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bytes, after: bytes
):
    monkeypatch.setattr(outputs, "_TAIL_BYTES", 5)
    file = tmp_path / "out"
    file.write_bytes(before)
    Lines.to_file(file, "envelope").close()
    assert file.read_bytes() == after


def test_json_lines_are_json_whatever_the_bodies_are(tmp_path: Path):
    file = tmp_path / "out"
    output = Lines.to_file(file, "jsonl")
    output.write([delivered(body, {}) for body in (b'{"a": 1}', b'{\n"a": 2}', b"plain \xc3\xbc", b"7")])
    with pytest.raises(WritingStopped, match="neither JSON nor text: --format envelope") as stopped:
        output.write([delivered(body, {}) for body in (b"8", b"\xff", b"9")])
    output.close()
    assert stopped.value.done == 1
    assert file.read_text() == '{"a": 1}\n{ "a": 2}\n"plain ü"\n7\n8\n'


def test_a_body_of_json_keeps_its_digits_and_its_keys_when_it_becomes_one_line(tmp_path: Path):
    file = tmp_path / "out"
    output = Lines.to_file(file, "jsonl")
    output.write([delivered(b'{\r\n"n": 0.12345678901234567890,\r"k": 1,\n"k": "\\n"}\n', {})])
    output.close()
    assert file.read_bytes() == b'{  "n": 0.12345678901234567890, "k": 1, "k": "\\n"} \n'


def test_a_pipe_is_fed_one_by_one_so_that_a_reader_who_leaves_takes_no_more_than_it_read():
    source, sink = os.pipe()
    output = Lines(sink, "pipe", "lines")
    read: list[bytes] = []

    def reader() -> None:
        read.extend(os.read(source, 1000) for _ in range(2))
        os.close(source)

    thread = threading.Thread(target=reader)
    thread.start()
    with pytest.raises(WritingStopped) as stopped:
        output.write(three())
    thread.join(WAIT_S)
    output.close()
    assert read == [b"one\n", b"two\n"]
    assert (stopped.value.done, stopped.value.reader_gone) == (2, True)


def test_a_pipe_that_nobody_reads_is_given_up_when_asked():
    source, sink = os.pipe()
    output = Lines(sink, "pipe", "lines")
    output.give_up()
    with pytest.raises(WritingStopped) as stopped:
        output.write(three())
    assert stopped.value.done == 0
    output.close()
    os.close(source)


def test_after_the_first_messages_a_pipe_is_fed_by_the_batch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outputs, "_SINGLE_WRITES", 1)
    source, sink = os.pipe()
    output = Lines(sink, "pipe", "lines")
    read: list[bytes] = []
    thread = threading.Thread(target=lambda: read.extend(iter(lambda: os.read(source, 1000), b"")))
    thread.start()
    output.write(three())
    output.close()
    thread.join(WAIT_S)
    os.close(source)
    assert read == [b"one\n", b"two\nthree\n"]


def test_each_message_is_a_file_and_numbers_go_on_where_they_ended(tmp_path: Path):
    for _ in range(2):
        output = Directory(tmp_path / "out")
        output.write(
            [
                delivered(b"{}", {"content_type": "application/json; charset=utf-8"}),
                delivered(b"\0", {}),
            ]
        )
        output.close()
    found = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert found == {
        "00000001.json": b"{}",
        "00000002.bin": b"\0",
        "00000003.json": b"{}",
        "00000004.bin": b"\0",
    }


def test_a_file_that_fails_half_way_is_not_there_and_those_before_it_are(tmp_path: Path):
    output = Directory(tmp_path)
    with files_no_larger_than(100), pytest.raises(WritingStopped, match="can't be written") as stopped:
        output.write([delivered(b"x", {}), delivered(b"y" * 200, {}), delivered(b"z", {})])
    output.close()
    assert stopped.value.done == 1
    assert [path.name for path in tmp_path.iterdir()] == ["00000001.bin"]


def test_two_that_write_into_one_directory_keep_what_the_other_has_written(tmp_path: Path):
    outputs_ = [Directory(tmp_path) for _ in range(2)]
    for number in range(2):
        for output in outputs_:
            output.write([delivered(b"%d of %d" % (number, outputs_.index(output)), {})])
    for output in outputs_:
        output.close()
    found = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert sorted(found) == [f"{number:08d}.bin" for number in range(1, 5)]
    assert sorted(found.values()) == [b"0 of 0", b"0 of 1", b"1 of 0", b"1 of 1"]


def test_two_that_write_at_once_lose_nothing_of_each_other(tmp_path: Path):
    def write(who: int) -> None:
        output = Directory(tmp_path)
        output.write([delivered(b"%d of %d" % (number, who), {}) for number in range(50)])
        output.close()

    threads = [threading.Thread(target=write, args=(who,)) for who in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    found = [path.read_bytes() for path in tmp_path.iterdir()]
    assert sorted(found) == sorted(b"%d of %d" % (number, who) for number in range(50) for who in range(2))


def test_a_file_that_was_not_there_is_synced_with_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Else the name may be gone after a power failure, and what was acked with it."""
    synced: list[str] = []

    def noted(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(os, "fsync", noted)
    for _ in range(2):
        Lines.to_file(tmp_path / "out", "lines").close()
    assert synced == [str(tmp_path)]
