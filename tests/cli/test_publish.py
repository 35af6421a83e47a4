"""`leveret publish` as a process: every message that is read is accounted for."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from leveret.testing.broker import Broker
from tests.cli.command import LIMIT_S, finished, leveret, started
from tests.cli.queues import bodies, declare, depth, take_all, wait_until_depth
from tests.processes import WAIT_S

pytestmark = pytest.mark.real

ALL_CONFIRMED = {"returned": 0, "nacked": 0, "lost": 0, "unsent": 0, "interrupted": False}


def wait_until_confirmed(broker: Broker, count: int) -> None:
    """Wait until queue `q` has `count` confirmed messages."""
    broker.wait_until(
        lambda: broker.depth("q") == count and not broker.server.broker.ledger.wants_sync,
        f"{count} messages are confirmed",
        timeout_s=LIMIT_S,
    )


def counts(result: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in result.items() if name != "seconds"}


# --- formats ---------------------------------------------------------------------------------------------


def test_lines_of_stdin_are_messages(amqp_url: str, fresh: Callable[[str], str]):
    queue = declare(amqp_url, fresh("lines"))
    ran = leveret("publish", "--queue", queue, "--json", url=amqp_url, stdin=b"one\n\ntwo\xff\nthree")
    assert ran.code == 0, ran.err
    assert counts(ran.result) == {"read": 4, "published": 4, "confirmed": 4, **ALL_CONFIRMED}
    assert ran.err == ""
    found = take_all(amqp_url, queue)
    assert [kept.body for kept in found] == [b"one", b"", b"two\xff", b"three"]
    assert {kept.properties.content_type for kept in found} == {"text/plain"}
    assert {kept.properties.delivery_mode for kept in found} == {2}


def test_thousands_of_lines_of_several_files_arrive_in_order(
    amqp_url: str, fresh: Callable[[str], str], tmp_path: Path
):
    queue = declare(amqp_url, fresh("files"))
    files = [tmp_path / "one", tmp_path / "two"]
    for number, file in enumerate(files):
        file.write_text("".join(f"{number}-{line}\n" for line in range(1500)))
    ran = leveret("publish", "-q", queue, *files, "--window", 100, url=amqp_url)
    assert ran.code == 0, ran.err
    assert "3,000 confirmed" in ran.err
    assert ran.out == b""
    expected = b"".join(file.read_bytes() for file in files).splitlines()
    assert bodies(amqp_url, queue) == expected


def test_json_lines_are_sent_as_they_are_with_their_content_type(
    leveret_url: str, fresh: Callable[[str], str]
):
    queue = declare(leveret_url, fresh("json"))
    ran = leveret("publish", "-q", queue, "-f", "jsonl", url=leveret_url, stdin=b'{"a": 1}\n\n"x"\n7\n')
    assert ran.code == 0, ran.err
    found = take_all(leveret_url, queue)
    assert [kept.body for kept in found] == [b'{"a": 1}', b'"x"', b"7"]
    assert {kept.properties.content_type for kept in found} == {"application/json"}


def test_a_line_that_is_no_json_is_named_and_ends_it(
    leveret_url: str, fresh: Callable[[str], str], tmp_path: Path
):
    queue = declare(leveret_url, fresh("json"))
    file = tmp_path / "orders.jsonl"
    file.write_bytes(b"1\n2\n{broken\n4\n")
    ran = leveret("publish", "-q", queue, "-f", "jsonl", file, "--json", url=leveret_url)
    assert ran.code == 1
    assert "orders.jsonl, line 3: not JSON" in ran.err
    assert counts(ran.result) == {**ALL_CONFIRMED, "read": 4, "published": 2, "confirmed": 2, "unsent": 2}
    assert bodies(leveret_url, queue) == [b"1", b"2"]


def test_a_whole_file_is_a_message(leveret_url: str, fresh: Callable[[str], str], tmp_path: Path):
    queue = declare(leveret_url, fresh("file"))
    data = os.urandom(300_000) + b"\n\n"
    (tmp_path / "photo.png").write_bytes(data)
    (tmp_path / "empty").write_bytes(b"")
    ran = leveret(
        "publish", "-q", queue, "-f", "file", tmp_path / "photo.png", tmp_path / "empty", url=leveret_url
    )
    assert ran.code == 0, ran.err
    found = take_all(leveret_url, queue)
    assert [(kept.body, kept.properties.content_type) for kept in found] == [
        (data, "image/png"),
        (b"", "application/octet-stream"),
    ]


def test_options_say_what_the_messages_are(leveret_url: str, fresh: Callable[[str], str]):
    queue = declare(leveret_url, fresh("options"))
    options = ("--content-type", "text/csv", "-H", "region=eu=x", "-H", "tries:=3", "--transient")
    ran = leveret("publish", "-q", queue, *options, "--repeat", 3, url=leveret_url, stdin=b"a\n")
    assert ran.code == 0, ran.err
    found = take_all(leveret_url, queue)
    assert len(found) == 3
    for kept in found:
        assert kept.properties.content_type == "text/csv"
        assert kept.properties.delivery_mode == 1
        assert (kept.properties.headers["region"], kept.properties.headers["tries"]) == ("eu=x", 3)


def test_the_queue_is_made_if_asked_and_used_as_it_is_if_it_is_there(
    amqp_url: str, fresh: Callable[[str], str]
):
    queue = fresh("declared")
    assert leveret("publish", "-q", queue, "--declare", url=amqp_url, stdin=b"a\n").code == 0
    bounded = declare(amqp_url, fresh("bounded"), **{"x-max-length": 5})
    ran = leveret("publish", "-q", bounded, "--declare", url=amqp_url, stdin=b"a\n")
    assert (ran.code, "1 confirmed" in ran.err) == (0, True), ran.err
    assert (depth(amqp_url, queue), depth(amqp_url, bounded)) == (1, 1)


def test_an_exchange_and_a_key_say_where_to(leveret_url: str, fresh: Callable[[str], str]):
    queue = declare(leveret_url, fresh("direct"))
    ran = leveret("publish", "-x", "amq.direct", "-k", "nobody", "--json", url=leveret_url, stdin=b"a\n")
    assert (ran.code, ran.result["returned"]) == (1, 1)
    assert "returned: nobody: 312 NO_ROUTE" in ran.err
    ran = leveret("publish", "-x", "", "-k", queue, url=leveret_url, stdin=b"a\n")
    assert (ran.code, depth(leveret_url, queue)) == (0, 1)


# --- what is not confirmed -------------------------------------------------------------------------------


def test_what_is_refused_is_listed_and_kept_for_another_try(
    amqp_url: str, fresh: Callable[[str], str], tmp_path: Path
):
    full = declare(amqp_url, fresh("full"), **{"x-max-length": 2, "x-overflow": "reject-publish"})
    failed = tmp_path / "failed.jsonl"
    lines = b"".join(b"%d\n" % number for number in range(20))
    ran = leveret(
        "publish", "-q", full, "-H", "n:=1", "--window", 1, "--failed", failed, url=amqp_url, stdin=lines
    )
    assert ran.code == 1
    kept = [json.loads(line) for line in failed.read_text().splitlines()]
    assert {line["status"] for line in kept} == {"nacked"}
    assert ran.err.count("  nacked:") == 5
    assert f"and {len(kept) - 5} more" in ran.err
    stored = bodies(amqp_url, full)
    assert sorted((*stored, *(line["body"].encode() for line in kept)), key=int) == lines.split()

    roomy = declare(amqp_url, fresh("roomy"))
    again = leveret("publish", "-e", failed, "-q", roomy, url=amqp_url)
    assert again.code == 0, again.err
    found = take_all(amqp_url, roomy)
    assert [kept_.body.decode() for kept_ in found] == [line["body"] for line in kept]
    assert {kept_.properties.headers["n"] for kept_ in found} == {1}


def test_the_file_for_failures_must_not_be_the_one_that_is_read(
    leveret_url: str, fresh: Callable[[str], str], tmp_path: Path
):
    file = tmp_path / "file"
    file.write_text('{"body": "a"}\n')
    queue = declare(leveret_url, fresh("same"))
    ran = leveret("publish", "-e", file, "-q", queue, "--failed", file, url=leveret_url)
    assert (ran.code, "is also an input" in ran.err) == (1, True)
    assert file.read_text() == '{"body": "a"}\n'


def test_what_neither_a_message_nor_an_envelope_can_say_is_one_sentence(
    leveret_url: str, fresh: Callable[[str], str], tmp_path: Path
):
    queue, failed = declare(leveret_url, fresh("infinite")), tmp_path / "failed"
    options = ("-H", "x:=1e999", "--failed", failed, "--json")
    ran = leveret("publish", "-q", queue, *options, url=leveret_url, stdin=b"a\n")
    assert (ran.code, ran.result["unsent"]) == (1, 1)
    assert "stdin, line 1: no field type holds inf" in ran.err
    assert failed.read_bytes() == b""


def test_without_mandatory_nobody_hears_of_what_has_no_queue(leveret_url: str):
    ran = leveret("publish", "-x", "amq.fanout", "--no-mandatory", "--json", url=leveret_url, stdin=b"a\n")
    assert (ran.code, ran.result["confirmed"]) == (0, 1)


def test_when_confirms_stay_away_it_ends_and_says_what_is_lost(tmp_path: Path):
    failed = tmp_path / "failed"
    with Broker() as broker:
        declare(broker.url, "q")
        broker.faults.withhold_confirms(1000)
        options = ("--timeout", 1, "--window", 10, "--failed", failed, "--json")
        ran = leveret("publish", "-q", "q", *options, url=broker.url, stdin=b"a\n" * 1000)
    assert ran.code == 1
    result = ran.result
    assert result["lost"] == 10
    assert "no confirm" in ran.err
    assert result["read"] == result["confirmed"] + result["lost"] + result["unsent"]
    assert len(failed.read_text().splitlines()) == result["lost"] + result["unsent"]


# --- brokers that are not there --------------------------------------------------------------------------


def test_a_broker_that_is_away_is_one_line_and_no_traceback():
    for words in (("publish", "-q", "q"), ("consume", "q"), ("redrive", "q")):
        ran = leveret(*words, "--connect-timeout", 0.5, url="amqp://guest:guest@127.0.0.1:1/")
        assert ran.code == 1
        assert ran.err.startswith("leveret: no connection to 127.0.0.1:1")
        assert (len(ran.err.splitlines()), ran.out) == (1, b"")


def test_a_login_that_is_refused_says_so(amqp_url: str):
    ran = leveret("publish", "-q", "q", url=amqp_url.replace("guest:guest", "guest:wrong"))
    assert ran.code == 1
    assert "check user, password and vhost" in ran.err
    assert "wrong" not in ran.err


def test_of_several_hosts_one_is_enough(leveret_url: str, fresh: Callable[[str], str]):
    queue = declare(leveret_url, fresh("hosts"))
    urls = ("--url", "amqp://127.0.0.1:1/", "--url", leveret_url)
    assert leveret("publish", "-q", queue, *urls, url="", stdin=b"a\n").code == 0
    both = f"amqp://127.0.0.1:1/ {leveret_url}"
    assert leveret("publish", "-q", queue, url=both, stdin=b"a\n").code == 0
    assert depth(leveret_url, queue) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-q", "no-such-queue"), "there is no queue 'no-such-queue' (--declare creates it)"),
        (("-x", "no-such-exchange"), "there is no exchange 'no-such-exchange'"),
        (("-q", "q" * 256), "a queue's name has at most 255 bytes, not 256"),
        (("-x", "ü" * 128), "an exchange's name has at most 255 bytes, not 256"),
    ],
)
def test_a_place_that_is_not_there_is_noticed_before_anything_is_sent(
    amqp_url: str, words: tuple[str, ...], said: str
):
    ran = leveret("publish", *words, url=amqp_url, stdin=b"a\n")
    assert (ran.code, ran.err) == (1, f"leveret: {said}\n")


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("-q", "q", "-x", "x"),
        ("-q", "q", "no-such-file"),
        ("-x", "x", "--declare"),
        ("-q", "amq.q", "--declare"),
        ("-q", "q", "-H", "nothing"),
        ("-q", "q", "-H", "n:=nothing"),
        ("-q", "q", "--rate", "0"),
        ("-q", "q", "--window", "0"),
        ("-q", "q", "--timeout", "nan"),
        ("-q", "q", "-f", "xml"),
        ("-q", "q", "--url", "http://localhost"),
        ("-q", "q", "--url", "amqp://localhost:port"),
        ("-q", "q", "--url", "amqp://me:secret#word@localhost"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_refused_with_2(words: tuple[str, ...]):
    ran = leveret("publish", *words, url="amqp://127.0.0.1:1/")
    assert ran.code == 2, ran.err
    assert "Error" in ran.err
    assert "secret" not in ran.err


# --- signals and trouble on the way ----------------------------------------------------------------------


def test_ctrl_c_stops_reading_and_waits_for_confirms(leveret_url: str, fresh: Callable[[str], str]):
    queue = declare(leveret_url, fresh("interrupted"))
    process = started("publish", "-q", queue, "--json", url=leveret_url)
    assert process.stdin is not None
    process.stdin.write(b"one\ntwo\nthr")
    process.stdin.flush()
    wait_until_depth(leveret_url, queue, 2)
    process.send_signal(signal.SIGINT)
    process.wait(WAIT_S)  # although its stdin is open
    ran = finished(process)
    assert ran.code == 130
    expected = {**ALL_CONFIRMED, "read": 2, "published": 2, "confirmed": 2, "interrupted": True}
    assert counts(ran.result) == expected


def test_ctrl_c_in_the_middle_accounts_for_what_was_read(
    leveret_url: str, fresh: Callable[[str], str], tmp_path: Path
):
    queue = declare(leveret_url, fresh("paced"))
    file = tmp_path / "lines"
    file.write_text("".join(f"{number}\n" for number in range(1, 1001)))
    process = started("publish", "-q", queue, "--rate", 20, "--json", file, url=leveret_url)
    wait_until_depth(leveret_url, queue, 3, at_least=True)
    process.send_signal(signal.SIGTERM)
    ran = finished(process)
    result = ran.result
    assert ran.code == 143
    assert result["read"] == 1000 == result["confirmed"] + result["unsent"]
    assert f"not published: {file}, line {result['confirmed'] + 1}\n" in ran.err
    assert depth(leveret_url, queue) == result["confirmed"]


def test_a_second_ctrl_c_does_not_wait_for_confirms():
    with Broker() as broker:
        declare(broker.url, "q")
        broker.faults.withhold_confirms(1000)
        process = started("publish", "-q", "q", "--json", url=broker.url)
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        broker.wait_until_depth("q", 1, timeout_s=LIMIT_S)
        process.send_signal(signal.SIGINT)
        assert b"waiting for 1 confirm; press Ctrl-C again" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        ran = finished(process)
    assert (ran.code, ran.result["lost"]) == (1, 1)


def test_ctrl_c_does_not_wait_for_a_place_in_the_window():
    with Broker() as broker:
        declare(broker.url, "q")
        broker.faults.withhold_confirms(1000)
        process = started("publish", "-q", "q", "--window", 1, "--timeout", 15, "--json", url=broker.url)
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"one\ntwo\nthree\n")
        process.stdin.flush()
        broker.wait_until_depth("q", 1, timeout_s=LIMIT_S)
        process.send_signal(signal.SIGINT)
        assert b"waiting for 1 confirm; press Ctrl-C again" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        ran = finished(process)
    assert (ran.code, ran.result["published"], ran.result["lost"]) == (1, 1, 1)
    assert ran.result["unsent"] == ran.result["read"] - 1
    assert ran.result["interrupted"]


@pytest.mark.parametrize("tries_again", [False, True])
def test_ctrl_c_while_it_connects_ends_it(tries_again: bool):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(LIMIT_S)
        url = f"amqp://127.0.0.1:{silent.getsockname()[1]}/"
        process = started("publish", "-q", "q", "--connect-timeout", 600, url=url)
        connected, _ = silent.accept()
        with connected:
            if tries_again:
                silent.close()
                connected.close()
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(0.5)  # it goes on
            process.send_signal(signal.SIGINT)
            assert finished(process).code == 130


def test_a_restart_of_the_broker_costs_nothing():
    with Broker() as broker:
        declare(broker.url, "q")
        process = started("publish", "-q", "q", "--json", url=broker.url)
        assert process.stdin is not None
        for number in range(200):
            process.stdin.write(b"%d\n" % number)
        process.stdin.flush()
        wait_until_confirmed(broker, 200)
        broker.restart()
        for number in range(200, 400):
            process.stdin.write(b"%d\n" % number)
        ran = finished(process)
        assert (ran.code, ran.result["confirmed"]) == (0, 400), ran.err
        assert [int(body) for body in bodies(broker.url, "q")] == list(range(400))
        # The lost and the restored connection were reported.
        assert "leveret: " in ran.err


def test_a_broker_that_does_not_come_back_is_given_up_and_everything_is_accounted_for(tmp_path: Path):
    with Broker() as broker:
        declare(broker.url, "q")
        options = ("--timeout", 1, "--failed", tmp_path / "failed", "--json")
        process = started("publish", "-q", "q", *options, url=broker.url)
        assert process.stdin is not None
        process.stdin.write(b"1\n2\n")
        process.stdin.flush()
        wait_until_confirmed(broker, 2)
        broker.stop()
        process.stdin.write(b"3\n4\n")
        ran = finished(process)
    result = ran.result
    assert (ran.code, result["read"], result["confirmed"]) == (1, 4, 2)
    assert result["lost"] + result["unsent"] == 2
    kept = [json.loads(line)["body"] for line in (tmp_path / "failed").read_text().splitlines()]
    assert sorted(kept) == ["3", "4"]


def test_a_broker_that_takes_nothing_for_a_while_is_waited_for():
    with Broker() as broker:
        declare(broker.url, "q")
        process = started("publish", "-q", "q", "--json", url=broker.url)
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"1\n")
        process.stdin.flush()
        wait_until_confirmed(broker, 1)
        broker.set_alarm("memory", on=True)
        process.stdin.write(b"2\n")
        process.stdin.flush()
        assert b"the broker is blocked" in process.stderr.readline()
        broker.set_alarm("memory", on=False)
        ran = finished(process)
        assert (ran.code, ran.result["confirmed"], broker.depth("q")) == (0, 2, 2)


def test_a_file_that_can_not_be_read_is_said(leveret_url: str, fresh: Callable[[str], str]):
    queue = declare(leveret_url, fresh("closed"))
    ran = leveret("publish", "-q", queue, "/proc/self/mem", url=leveret_url)
    assert (ran.code, "can't be read" in ran.err) == (1, True)


def test_memory_does_not_grow_with_the_input(leveret_url: str, fresh: Callable[[str], str]):
    queue = declare(leveret_url, fresh("large"), **{"x-max-length": 10})
    process = started("publish", "-q", queue, "--window", 10, "--json", url=leveret_url)
    assert process.stdin is not None
    peaks_kb = []
    for number in range(1000):
        process.stdin.write(b"x" * 100_000 + b"\n")
        if number in (200, 999):  # but for the last 64 KB all of it was read
            peaks_kb.append(_peak_kb(process.pid))
    ran = finished(process)
    assert (ran.code, ran.result["confirmed"]) == (0, 1000)
    assert peaks_kb[1] - peaks_kb[0] < 20_000, "although 80 MB were read in between"


def _peak_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])
