"""The HTTP listener: any ASGI application, started and stopped inside a running loop."""

import asyncio
import logging
import signal
import socket
import subprocess
import sys

import pytest

from leveret.server.http import HttpListener
from tests.processes import WAIT_S

pytestmark = pytest.mark.real


async def hello(scope, receive, send):
    body = scope["raw_path"]
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def ask(port, path="/a%2Fb", *, host="127.0.0.1"):
    """A whole exchange on a connection of its own."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, WAIT_S))


def test_port_0_picks_a_free_one_and_says_which():
    async def scenario():
        listener = HttpListener(hello, "127.0.0.1", 0)
        await listener.start()
        answer = await ask(listener.port)
        assert listener.url == f"http://127.0.0.1:{listener.port}"
        await listener.stop()
        return answer

    head, _, body = run(scenario()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert b"date: " in head
    assert b"server: " not in head
    assert body == b"/a%2Fb"


def test_a_stopped_listener_refuses_connections_and_gives_its_port_back():
    async def scenario():
        first = HttpListener(hello, "127.0.0.1", 0)
        await first.start()
        await first.stop()
        with pytest.raises(ConnectionRefusedError):
            await ask(first.port)
        second = HttpListener(hello, "127.0.0.1", first.port)
        await second.start()
        assert b"200 OK" in await ask(second.port)
        await second.stop()
        await second.stop()

    run(scenario())


def test_stopping_what_was_not_started_does_nothing():
    run(HttpListener(hello, "127.0.0.1", 0).stop())


def test_a_port_in_use_is_an_error_of_the_caller_and_not_the_end_of_the_process():
    async def scenario(port):
        with pytest.raises(OSError, match="in use"):
            await HttpListener(hello, "127.0.0.1", port).start()

    with socket.create_server(("127.0.0.1", 0)) as taken:
        run(scenario(taken.getsockname()[1]))


def test_all_addresses_of_a_host_are_listened_on_with_one_port():
    async def scenario():
        listener = HttpListener(hello, "localhost", 0)
        await listener.start()
        found = await asyncio.get_running_loop().getaddrinfo("localhost", 0, type=socket.SOCK_STREAM)
        answers = [await ask(listener.port, host=address[0]) for *_, address in found]
        await listener.stop()
        return answers

    answers = run(scenario())
    assert answers
    assert all(b"200 OK" in answer for answer in answers)


def test_an_idle_connection_does_not_delay_the_end():
    async def scenario():
        listener = HttpListener(hello, "127.0.0.1", 0)
        await listener.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n/")
        silent, other = await asyncio.open_connection("127.0.0.1", listener.port)
        await listener.stop()
        assert (await reader.read(), await silent.read()) == (b"", b"")
        writer.close()
        other.close()

    run(scenario())


def test_a_request_under_way_is_answered_before_the_end():
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def slow(scope, receive, send):
        entered.set()
        await go_on.wait()
        await hello(scope, receive, send)

    async def scenario():
        listener = HttpListener(slow, "127.0.0.1", 0)
        await listener.start()
        asking = asyncio.create_task(ask(listener.port))
        await entered.wait()
        stopping = asyncio.create_task(listener.stop())
        await asyncio.sleep(0)
        go_on.set()
        answer = await asking
        await stopping
        return answer

    assert b"200 OK" in run(scenario())


def test_a_request_that_never_ends_is_ended():
    entered, ended = asyncio.Event(), []

    async def endless(scope, receive, send):
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def scenario():
        listener = HttpListener(endless, "127.0.0.1", 0)
        await listener.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await entered.wait()
        await listener.stop()
        await reader.read()
        writer.close()

    run(scenario())
    assert ended == ["cancelled"]


def test_signals_stay_with_the_process():
    async def scenario():
        loop = asyncio.get_running_loop()
        heard = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, heard.set)
        before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
        listener = HttpListener(hello, "127.0.0.1", 0)
        await listener.start()
        assert b"200 OK" in await ask(listener.port)
        assert {each: signal.getsignal(each) for each in before} == before
        signal.raise_signal(signal.SIGTERM)
        await heard.wait()
        assert b"200 OK" in await ask(listener.port)
        await listener.stop()
        loop.remove_signal_handler(signal.SIGTERM)

    run(scenario())


def test_nothing_is_logged_when_all_goes_well(caplog):
    async def scenario():
        listener = HttpListener(hello, "127.0.0.1", 0)
        await listener.start()
        await ask(listener.port)
        await listener.stop()

    with caplog.at_level(logging.DEBUG, logger=""):
        run(scenario())
    assert [record for record in caplog.records if record.name.startswith("uvicorn")] == []


def test_nobody_pays_for_http_who_does_not_use_it():
    code = (
        "import sys, leveret.server.server, leveret.testing.broker, leveret.testing.plugin\n"
        "print([name for name in ('uvicorn', 'starlette', 'h11', 'anyio') if name in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=WAIT_S
    )
    assert ran.stdout.strip() == "[]"
