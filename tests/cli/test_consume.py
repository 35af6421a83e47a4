"""`leveret consume` as a process: every message is in the queue or in the output, whatever happens."""

import json
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pika
import pytest

from leveret.testing.broker import Broker
from tests.cli.command import LIMIT_S, arguments, ended, environment, finished, leveret, started
from tests.cli.queues import bodies, channel, declare, depth, put, take_all, wait_until_depth

HUNDRED = [b"%d" % number for number in range(100)]


def wait_for(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline, what
        # Another process writes the file, without an event.
        time.sleep(0.01)


# --- formats ---------------------------------------------------------------------------------------------


def test_bodies_are_lines_in_order_and_acked(amqp_url: str, fresh: Callable[[str], str]):
    queue = declare(amqp_url, fresh("lines"), HUNDRED)
    ran = leveret("consume", queue, "--count", 100, url=amqp_url)
    assert ran.code == 0, ran.err
    assert ran.out.split() == HUNDRED
    assert "100 messages consumed" in ran.err
    assert depth(amqp_url, queue) == 0


def test_a_message_survives_the_way_from_queue_to_file_to_queue(
    amqp_url: str, fresh: Callable[[str], str], tmp_path: Path
):
    there, back, file = declare(amqp_url, fresh("there")), declare(amqp_url, fresh("back")), tmp_path / "f"
    sent = [b"\0\xff\n binary", b"text\nlines", b'{"id": 1}', b'{"id":1}', b""]
    headers = {
        "text": "für",
        "number": -(2**40),
        "yes": True,
        "nothing": None,
        "when": datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC),
        "bytes": b"\0\xff",
        "price": Decimal("12.50"),
        "nested": {"$timestamp": "no", "list": [1, "a", {"b": b"\0\xff"}]},
    }
    put(
        amqp_url,
        there,
        *sent,
        headers=headers,
        content_type="application/json",
        content_encoding="utf-8",
        delivery_mode=2,
        priority=3,
        correlation_id="c",
        reply_to="r",
        expiration="600000",
        message_id="m-1",
        timestamp=1_700_000_000,
        type="t",
        user_id="guest",
        app_id="a",
    )
    put(amqp_url, there, b"bare")
    ran = leveret("consume", there, "--envelope", "-o", file, "--count", 6, url=amqp_url)
    assert ran.code == 0, ran.err
    ran = leveret("publish", "--envelope", file, "--queue", back, url=amqp_url)
    assert ran.code == 0, ran.err

    *found, bare = take_all(amqp_url, back)
    assert [kept.body for kept in found] == sent
    for kept in found:
        said = dict(vars(kept.properties))
        carried = said.pop("headers")
        assert {name: carried[name] for name in headers} == headers
        assert carried.keys() - headers.keys() == {"x-producer", "x-seq"}
        expected = pika.BasicProperties(
            content_type="application/json",
            content_encoding="utf-8",
            delivery_mode=2,
            priority=3,
            correlation_id="c",
            reply_to="r",
            expiration="600000",
            message_id="m-1",
            timestamp=1_700_000_000,
            type="t",
            user_id="guest",
            app_id="a",
        )
        assert said == {name: value for name, value in vars(expected).items() if name != "headers"}
    assert (bare.body, bare.properties.content_type, bare.properties.delivery_mode) == (b"bare", None, 1)


def test_an_envelope_goes_back_where_it_came_from_unless_told_otherwise(
    leveret_url: str, fresh: Callable[[str], str]
):
    queue = declare(leveret_url, fresh("home"), [b"a"])
    line = leveret("consume", queue, "-e", "--count", 1, url=leveret_url).out
    assert depth(leveret_url, queue) == 0
    assert leveret("publish", "-e", url=leveret_url, stdin=line).code == 0
    assert bodies(leveret_url, queue) == [b"a"]


def test_json_lines_and_a_body_that_fits_none(leveret_url: str, fresh: Callable[[str], str]):
    queue = declare(leveret_url, fresh("json"), [b'{"a":\n1}', b"text", b"\xff", b"4"])
    ran = leveret("consume", queue, "-f", "jsonl", "--count", 4, url=leveret_url)
    assert (ran.code, ran.lines) == (1, ['{"a": 1}', '"text"'])
    assert "neither JSON nor text" in ran.err
    assert bodies(leveret_url, queue) == [b"\xff", b"4"]


def test_bodies_that_lines_can_not_keep_apart_are_said(leveret_url: str, fresh: Callable[[str], str]):
    queue = declare(leveret_url, fresh("ends"), [b"a\nb", b"c"])
    ran = leveret("consume", queue, "--count", 2, url=leveret_url)
    assert (ran.code, ran.out) == (0, b"a\nb\nc\n")
    assert "line breaks in 1 of the bodies: --format envelope keeps them apart" in ran.err


def test_a_file_for_each_message(leveret_url: str, fresh: Callable[[str], str], tmp_path: Path):
    queue = declare(leveret_url, fresh("directory"))
    put(leveret_url, queue, b"{}", b"[]", content_type="application/json")
    output = tmp_path / "made" / "here"
    ran = leveret("consume", queue, "-f", "directory", "-o", output, "--json", "--count", 2, url=leveret_url)
    assert (ran.code, ran.result["acked"]) == (0, 2)
    assert sorted(path.name for path in output.iterdir()) == ["00000001.json", "00000002.json"]
    assert depth(leveret_url, queue) == 0


# --- when it is enough -----------------------------------------------------------------------------------


def test_no_more_than_so_many_are_taken(amqp_url: str, fresh: Callable[[str], str]):
    queue = declare(amqp_url, fresh("count"), HUNDRED)
    ran = leveret("consume", queue, "--count", 3, url=amqp_url)
    assert (ran.code, ran.out.split()) == (0, HUNDRED[:3])
    assert bodies(amqp_url, queue) == HUNDRED[3:]


def test_following_waits_for_more_until_ctrl_c(amqp_url: str, fresh: Callable[[str], str], tmp_path: Path):
    queue, file = declare(amqp_url, fresh("follow"), [b"1"]), tmp_path / "out"
    process = started("consume", queue, "--follow", "-o", file, "--json", url=amqp_url)
    wait_for(lambda: file.exists() and file.read_bytes() == b"1\n", "the first message is written")
    put(amqp_url, queue, b"2")
    wait_for(lambda: file.read_bytes() == b"1\n2\n", "the second message is written")
    process.send_signal(signal.SIGINT)
    ran = finished(process)
    assert ran.code == 0, "which is how following ends"
    assert (ran.result["acked"], ran.result["interrupted"]) == (2, True)
    assert depth(amqp_url, queue) == 0


def test_an_empty_queue_is_nothing_to_wait_for(leveret_url: str, fresh: Callable[[str], str]):
    queue = declare(leveret_url, fresh("empty"))
    ran = leveret("consume", queue, url=leveret_url)
    assert (ran.code, ran.out) == (0, b"")


def test_peeking_leaves_everything_where_it_is(amqp_url: str, fresh: Callable[[str], str]):
    many = [b"%d" % number for number in range(1000)]
    queue = declare(amqp_url, fresh("peek"), many)
    ran = leveret("consume", queue, "--peek", "--count", 1000, url=amqp_url)
    assert (ran.code, ran.out.split()) == (0, many)
    wait_until_depth(amqp_url, queue, 1000)
    assert bodies(amqp_url, queue) == many


def test_peeking_on_leveret_changes_nothing(leveret_url: str, fresh: Callable[[str], str]):
    """No delivery is counted: the delivery limit is never reached, and nothing is redelivered."""
    queue = declare(leveret_url, fresh("peek"), HUNDRED, **{"x-delivery-limit": 1})
    for _ in range(3):
        ran = leveret("consume", queue, "--peek", "--prefetch", 7, url=leveret_url)
        assert (ran.code, ran.out.split()) == (0, HUNDRED)
        assert "counts as a delivery" not in ran.err
    kept = take_all(leveret_url, queue)
    assert [each.body for each in kept] == HUNDRED
    assert {(each.redelivered, (each.properties.headers or {}).get("x-delivery-count")) for each in kept} == {
        (False, None)
    }


@pytest.mark.needs_rabbitmq
def test_peeking_elsewhere_says_first_that_it_counts(rabbitmq, fresh: Callable[[str], str]):
    queue = declare(rabbitmq.url, fresh("peek"), HUNDRED)
    ran = leveret("consume", queue, "--peek", "--count", 3, url=rabbitmq.url)
    assert (ran.code, ran.out.split()) == (0, HUNDRED[:3])
    warning, end = ran.err.index("each peek counts as a delivery"), ran.err.index("3 messages peeked")
    assert warning < end


# --- nothing is lost -------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3, 99])
def test_head_takes_what_it_shows_and_the_rest_stays(amqp_url: str, fresh: Callable[[str], str], count: int):
    queue = declare(amqp_url, fresh("head"), HUNDRED)
    command = f"{shlex.join(arguments('consume', queue))} | head -{count}"
    ran = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        env=environment(amqp_url),
        capture_output=True,
        timeout=LIMIT_S,
    )
    done = ended(ran.returncode, ran.stdout, ran.stderr)
    assert (done.code, done.out.split()) == (0, HUNDRED[:count])
    assert "the reader has gone" in done.err
    assert bodies(amqp_url, queue) == HUNDRED[count:]


def test_a_full_disk_loses_nothing(amqp_url: str, fresh: Callable[[str], str]):
    queue = declare(amqp_url, fresh("full"), HUNDRED)
    ran = leveret("consume", queue, "--output", "/dev/full", url=amqp_url)
    assert ran.code == 1
    assert "leveret: /dev/full can't be written: No space left on device" in ran.err
    assert bodies(amqp_url, queue) == HUNDRED


def test_a_disk_that_gets_full_keeps_what_was_acked(
    leveret_url: str, fresh: Callable[[str], str], tmp_path: Path
):
    queue, file = declare(leveret_url, fresh("limit"), HUNDRED), tmp_path / "out"
    words = arguments("consume", queue, "-o", file, "--prefetch", 10)
    command = f"trap '' XFSZ; ulimit -f 0; {shlex.join(words)}"
    file.write_bytes(b"")
    ran = subprocess.run(
        ["bash", "-c", command], env=environment(leveret_url), capture_output=True, timeout=LIMIT_S
    )
    assert ran.returncode == 1
    assert b"File too large" in ran.stderr
    assert file.read_bytes().split() + bodies(leveret_url, queue) == HUNDRED


def test_kill_9_in_the_middle_loses_nothing(amqp_url: str, fresh: Callable[[str], str], tmp_path: Path):
    many = [b"%d" % number for number in range(3000)]
    queue, file = declare(amqp_url, fresh("kill"), many), tmp_path / "out"
    process = started("consume", queue, "-e", "-o", file, "--prefetch", 10, url=amqp_url)
    wait_for(lambda: file.exists() and file.stat().st_size > 20_000, "something is written")
    process.kill()
    process.communicate()
    ran = leveret("consume", queue, "-e", "-o", file, "--idle", 10, url=amqp_url)
    assert ran.code == 0, ran.err
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert sorted({int(line["body"]) for line in lines}) == list(range(3000))
    seen: set[str] = set()
    for line in lines:
        assert line["body"] not in seen or line["redelivered"], "twice only where it says so"
        seen.add(line["body"])


def test_a_reader_that_does_not_read_does_not_keep_it_from_ending(
    leveret_url: str, fresh: Callable[[str], str]
):
    queue = declare(leveret_url, fresh("stuck"), [b"x" * 200_000, b"y"])
    process = started("consume", queue, "--follow", url=leveret_url)
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], LIMIT_S)
    assert readable, "it has begun to write, and more than a pipe takes"
    process.send_signal(signal.SIGINT)
    process.wait(LIMIT_S)
    assert process.stderr is not None
    assert b"took no more" in process.stderr.read()
    assert depth(leveret_url, queue) == 2
    process.communicate()


@pytest.mark.real
def test_an_ack_that_got_lost_means_that_the_message_comes_again(tmp_path: Path):
    with Broker() as broker:
        declare(broker.url, "q", HUNDRED)
        broker.faults.drop_connection_at_ack(1)
        file = tmp_path / "out"
        ran = leveret("consume", "q", "-e", "-o", file, "--idle", 10, "--json", url=broker.url)
        assert ran.code == 0, ran.err
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        assert {line["body"].encode() for line in lines} == set(HUNDRED)
        assert broker.depth("q") == 0
        # The lost and the restored connection were reported.
        assert "leveret: " in ran.err


@pytest.mark.real
def test_a_broker_that_does_not_come_back_is_given_up(tmp_path: Path):
    with Broker() as broker:
        declare(broker.url, "q", HUNDRED)
        file = tmp_path / "out"
        words = ("consume", "q", "--idle", 30, "--timeout", 1, "-o", file)
        process = started(*words, url=broker.url)
        wait_for(lambda: file.exists() and file.stat().st_size > 0, "something is written")
        broker.stop()
        ran = finished(process)
    assert ran.code == 1
    assert "unacked messages are back in the queue" in ran.err


def test_a_queue_that_is_deleted_is_noticed(leveret_url: str, fresh: Callable[[str], str]):
    queue = declare(leveret_url, fresh("deleted"), [b"1"])
    process = started("consume", queue, "--idle", 30, url=leveret_url)
    assert process.stdout is not None
    assert process.stdout.readline() == b"1\n"
    with channel(leveret_url) as opened:
        opened.queue_delete(queue)
    ran = finished(process)
    assert (ran.code, "404" in ran.err) == (1, True), ran.err


# --- what makes no sense ---------------------------------------------------------------------------------


def test_a_queue_that_is_not_there_is_said(amqp_url: str):
    ran = leveret("consume", "no-such-queue", url=amqp_url)
    assert (ran.code, ran.err) == (1, "leveret: there is no queue 'no-such-queue'\n")


@pytest.mark.parametrize("words", [("consume",), ("redrive",), ("redrive", "source", "--to")])
def test_a_name_that_no_queue_can_have_is_one_sentence(leveret_url: str, words: tuple[str, ...]):
    declare(leveret_url, "source")
    ran = leveret(*words, "q" * 256, url=leveret_url)
    assert (ran.code, ran.err) == (1, "leveret: a queue's name has at most 255 bytes, not 256\n")


def test_an_output_that_can_not_be_opened_is_said(
    leveret_url: str, fresh: Callable[[str], str], tmp_path: Path
):
    queue = declare(leveret_url, fresh("unopened"), [b"1"])
    ran = leveret("consume", queue, "-o", tmp_path, url=leveret_url)
    assert ran.code == 1
    assert "Is a directory" in ran.err
    assert depth(leveret_url, queue) == 1


@pytest.mark.real
@pytest.mark.parametrize(
    "words",
    [
        (),
        ("q", "--follow", "--idle", "1"),
        ("q", "--json"),
        ("q", "-f", "directory"),
        ("q", "--count", "0"),
        ("q", "--idle", "0"),
        ("q", "--prefetch", "70000"),
        ("q", "-f", "csv"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_refused_with_2(words: tuple[str, ...]):
    ran = leveret("consume", *words, url="amqp://127.0.0.1:1/")
    assert ran.code == 2, ran.err
