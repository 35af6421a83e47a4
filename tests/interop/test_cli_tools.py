"""librabbitmq's command-line tools (`amqp-tools`), each run as a process of its own.

Owns what a shell script relies on: what the tools print, their exit codes, and that a message whose
command failed is still there. pika stands on the other side where a tool can't look.
"""

import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import UnroutableError

from tests.interop.pika_client import Fresh, consume, publish, ready
from tests.interop.wire import WAIT_S, Proxy

pytestmark = pytest.mark.skipif(
    shutil.which("amqp-publish") is None,
    reason="Install librabbitmq's tools (amqp-tools) to run this test with them.",
)

Run = Callable[..., subprocess.CompletedProcess[bytes]]
NOTHING_THERE = 2  # the exit code of amqp-get on an empty queue


def command(url: str, tool: str, *arguments: str) -> list[str]:
    return [f"amqp-{tool}", f"--url={url}%2F", *arguments]  # librabbitmq takes "/" alone for no vhost at all


@pytest.fixture
def run(amqp_url: str) -> Run:
    def finish(tool: str, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        line = command(amqp_url, tool, *arguments)
        return subprocess.run(line, input=given, capture_output=True, timeout=WAIT_S, check=False)

    return finish


def test_a_queue_is_declared_filled_emptied_and_deleted(run: Run, fresh: Fresh) -> None:
    name = fresh("queue")
    assert run("declare-queue", "-d", "-q", name).stdout == f"{name}\n".encode()
    for body in ("1", "2", "3"):
        assert run("publish", "-r", name, "-p", "-b", body).returncode == 0
    assert run("get", "-q", name).stdout == b"1"
    assert run("delete-queue", "-q", name).stdout == b"2\n"
    assert b"404" in run("get", "-q", name).stderr


def test_an_empty_queue_has_its_own_exit_code(run: Run, queue: str) -> None:
    assert run("get", "-q", queue).returncode == NOTHING_THERE


def test_a_queue_without_a_name_is_given_one(run: Run) -> None:
    name = run("declare-queue", "-q", "").stdout.decode().strip()
    assert name.startswith("amq.gen-")
    assert run("get", "-q", name).returncode == NOTHING_THERE  # it is not exclusive: it outlives its maker
    assert run("delete-queue", "--if-unused", "--if-empty", "-q", name).stdout == b"0\n"


def test_what_is_said_about_a_message_arrives_with_it(run: Run, channel: BlockingChannel, queue: str) -> None:
    channel.queue_bind(queue, "amq.topic", "tools.#")
    route = ("-e", "amq.topic", "-r", f"tools.{queue}", "-p", "-t", "reply")
    about = ("-C", "text/plain", "-E", "utf-8", "-H", "colour: red", "-H", "size: 5")
    assert run("publish", *route, *about, "-b", "häuser").returncode == 0
    (delivery,) = consume(channel, queue, 1, auto_ack=True)
    properties = delivery.properties
    assert (delivery.body.decode(), delivery.method.exchange) == ("häuser", "amq.topic")
    assert (properties.content_type, properties.content_encoding) == ("text/plain", "utf-8")
    assert (properties.delivery_mode, properties.reply_to) == (2, "reply")
    assert properties.headers == {"colour": "red", "size": "5"}


def test_each_line_of_the_input_becomes_a_message(run: Run, channel: BlockingChannel, queue: str) -> None:
    run("publish", "-r", queue, "-l", given=b"one\ntwo\nthree\n")
    assert consume(channel, queue, 3).bodies == [b"one\n", b"two\n", b"three\n"]


@pytest.mark.parametrize("size_bytes", [0, 131064, 131065, 1 << 20])
def test_a_body_of_any_size_comes_back_as_it_was(run: Run, queue: str, size_bytes: int) -> None:
    body = (bytes(range(256)) * (size_bytes // 256 + 1))[:size_bytes]
    run("publish", "-r", queue, given=body)
    assert run("get", "-q", queue).stdout == body


def test_a_consumer_hands_each_message_to_a_command_and_acknowledges_it(
    run: Run, channel: BlockingChannel, queue: str
) -> None:
    publish(channel, queue, b"1\n", b"2\n", b"3\n", b"4\n")
    assert run("consume", "-q", queue, "-c", "3", "-p", "1", "cat").stdout == b"1\n2\n3\n"
    assert consume(channel, queue, 1).bodies == [b"4\n"]


def test_a_message_whose_command_fails_is_delivered_again(
    run: Run, channel: BlockingChannel, queue: str
) -> None:
    publish(channel, queue, b"1", b"2")
    run("consume", "-q", queue, "-c", "1", "-p", "1", "false")
    again = consume(channel, queue, 2)
    assert sorted(again.bodies) == [b"1", b"2"]
    assert True in again.redelivered


def test_a_consumer_without_acknowledgements_settles_what_it_is_sent(
    run: Run, channel: BlockingChannel, queue: str
) -> None:
    publish(channel, queue, b"1\n")
    assert run("consume", "-q", queue, "-A", "-c", "1", "cat").stdout == b"1\n"
    assert ready(channel, queue) == 0


@pytest.fixture
def listener(amqp_url: str, fresh: Fresh) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A consumer with a queue of its own, bound to amq.direct with the key that is given here."""
    key = fresh("key")
    line = command(amqp_url, "consume", "-q", "", "-x", "-e", "amq.direct", "-r", key, "-c", "1", "cat")
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        yield key, process
    finally:
        process.kill()
        process.communicate()


def test_a_consumer_can_bring_its_own_exclusive_queue(
    channel: BlockingChannel, listener: tuple[str, subprocess.Popen[bytes]]
) -> None:
    key, process = listener
    routed, deadline = False, time.monotonic() + WAIT_S
    while not routed and time.monotonic() < deadline:  # nothing tells that the queue is bound but this
        with suppress(UnroutableError):
            channel.basic_publish("amq.direct", key, b"for you", mandatory=True)
            routed = True
    output, _ = process.communicate(timeout=WAIT_S)
    assert (routed, output) == (True, b"for you")


ERRORS: list[tuple[str, tuple[str, ...], str]] = [
    ("get", ("-q", "missing"), "404, message: NOT_FOUND - no queue 'missing' in vhost '/'"),
    ("consume", ("-q", "missing", "cat"), "404, message: NOT_FOUND - no queue 'missing' in vhost '/'"),
    (
        "declare-queue",
        ("-q", "{queue}"),
        "406, message: PRECONDITION_FAILED - inequivalent arg 'durable'",
    ),
    ("delete-queue", ("-q", "{queue}", "-e"), "406, message: PRECONDITION_FAILED - queue '{queue}' in"),
    ("declare-queue", ("-q", "amq.mine"), "403, message: ACCESS_REFUSED - queue name 'amq.mine' contains"),
]


@pytest.mark.parametrize(("tool", "arguments", "text"), ERRORS)
def test_a_mistake_is_told_with_code_and_text(
    run: Run, channel: BlockingChannel, queue: str, tool: str, arguments: tuple[str, ...], text: str
) -> None:
    publish(channel, queue, b"in the way")
    ended = run(tool, *(argument.format(queue=queue) for argument in arguments))
    assert ended.returncode != 0
    assert text.format(queue=queue) in ended.stderr.decode()


def test_a_wrong_password_and_a_missing_vhost_are_told_apart(amqp_url: str, queue: str) -> None:
    def complaint(url: str) -> str:
        line = ["amqp-get", f"--url={url}", "-q", queue]
        return subprocess.run(line, capture_output=True, timeout=WAIT_S, check=False).stderr.decode()

    assert "403" in complaint(amqp_url.replace("guest:guest", "guest:wrong") + "%2F")
    assert "530, message: NOT_ALLOWED - vhost missing not found" in complaint(f"{amqp_url}missing")


@pytest.fixture
def busy(proxy: Proxy, queue: str) -> Iterator[subprocess.Popen[bytes]]:
    """A consumer whose command shows the message and then takes its time."""
    line = command(proxy.url, "consume", "-q", queue, "-p", "1", "--", "sh", "-c", "cat; exec sleep 60")
    process = subprocess.Popen(line, stdout=subprocess.PIPE, start_new_session=True)
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # the command as well: both are in a group of their own
        process.communicate()


def test_a_consumer_that_is_cut_off_leaves_its_message_for_the_next(
    proxy: Proxy, channel: BlockingChannel, queue: str, busy: subprocess.Popen[bytes]
) -> None:
    publish(channel, queue, b"held")
    assert busy.stdout is not None
    readable, _, _ = select.select([busy.stdout], [], [], WAIT_S)
    assert readable
    assert os.read(busy.stdout.fileno(), 100) == b"held"
    proxy.cut()
    again = consume(channel, queue, 1)
    assert (again.bodies, again.redelivered) == ([b"held"], [True])
