"""The limits of the HTTP listener: each is exceeded, and another client is served meanwhile."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from leveret.server.descriptors import raise_limit
from leveret.server.http import HttpListener
from leveret.server.http_connection import HttpLimits
from leveret.server.tls import OFF, CurrentTls, TlsSettings
from tests.processes import WAIT_S

pytestmark = pytest.mark.real

SHORT_S = 0.05
PATIENT = HttpLimits(
    header_timeout_s=WAIT_S,
    body_timeout_s=WAIT_S,
    idle_timeout_s=WAIT_S,
    send_timeout_s=WAIT_S,
    tls_handshake_timeout_s=WAIT_S,
)
REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE = b"x" * (32 << 20)
"""More than the buffers of two sockets take."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def hello(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the size of the body, or with 32 MiB."""
    size, more = 0, scope["method"] == "POST"
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size, more = size + len(message["body"]), message["more_body"]
    body = LARGE if scope["path"] == "/large" else b"%d bytes" % size
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def play(scenario: Callable[[HttpListener], Awaitable[None]], **limits: Any) -> None:
    """Run a scenario beside a listener with these limits; all others are too generous to be met."""

    async def run() -> None:
        listener = HttpListener(hello, "127.0.0.1", 0, limits=replace(PATIENT, **limits))
        await listener.start()
        try:
            await asyncio.wait_for(scenario(listener), WAIT_S)
        finally:
            await listener.stop()

    asyncio.run(run())


async def connect(listener: HttpListener, data: bytes = b"", *, source: str = "127.0.0.1") -> Streams:
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, local_addr=(source, 0))
    writer.write(data)
    return reader, writer


async def ended(streams: Streams) -> bytes:
    """Return all that the listener says until it closes the connection."""
    reader, writer = streams
    try:
        return await reader.read()
    finally:
        writer.close()


async def serves(listener: HttpListener, *, source: str = "127.0.0.1") -> None:
    streams = await connect(
        listener, REQUEST.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), source=source
    )
    assert (await ended(streams)).startswith(b"HTTP/1.1 200 ")


async def round_trip_s(streams: Streams) -> float:
    """Ask once on a connection that stays open; return how long the answer took."""
    reader, writer = streams
    before_s = time.perf_counter()
    writer.write(REQUEST)
    assert (await reader.readuntil(b"0 bytes")).startswith(b"HTTP/1.1 200 ")
    return time.perf_counter() - before_s


def test_a_header_that_does_not_end_is_answered_with_408() -> None:
    async def scenario(listener: HttpListener) -> None:
        answer = await ended(await connect(listener, REQUEST[:-2]))
        assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
        assert b"connection: close" in answer.lower()
        assert answer.endswith(b"The header of the request took too long.")

    play(scenario, header_timeout_s=SHORT_S)


def test_a_header_that_trickles_in_gets_no_more_time() -> None:
    async def scenario(listener: HttpListener) -> None:
        streams = await connect(listener)
        reading = asyncio.create_task(ended(streams))
        while not reading.done():
            streams[1].write(b"G")
            await asyncio.wait([reading], timeout=SHORT_S / 5)
        assert b" 408 " in await reading

    play(scenario, header_timeout_s=SHORT_S)


def test_a_client_that_goes_on_sending_hears_why_it_was_refused() -> None:
    async def scenario(listener: HttpListener) -> None:
        reader, writer = await connect(listener, b"GET / HTTP/1.1\r\nX: " + b"x" * (1 << 20))
        await asyncio.sleep(0)
        writer.write(LARGE)
        assert b" 431 " in await ended((reader, writer))

    play(scenario)


def test_a_connection_on_which_nothing_is_asked_is_closed_without_an_answer() -> None:
    async def scenario(listener: HttpListener) -> None:
        assert await ended(await connect(listener)) == b""

    play(scenario, header_timeout_s=SHORT_S)


def test_the_second_header_of_a_connection_has_a_limit_too() -> None:
    async def scenario(listener: HttpListener) -> None:
        reader, writer = await connect(listener, REQUEST)
        await reader.readuntil(b"0 bytes")
        writer.write(REQUEST[:10])
        assert (await ended((reader, writer))).startswith(b"HTTP/1.1 408 ")

    play(scenario, header_timeout_s=SHORT_S)


@pytest.mark.parametrize(
    "body", [b"Content-Length: 9\r\n\r\n1234", b"Transfer-Encoding: chunked\r\n\r\n5\r\n12"]
)
def test_a_body_that_does_not_end_is_answered_with_408(body: bytes) -> None:
    async def scenario(listener: HttpListener) -> None:
        answer = await ended(await connect(listener, b"POST / HTTP/1.1\r\nHost: x\r\n" + body))
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert answer.endswith(b"The body of the request took too long.")

    play(scenario, body_timeout_s=SHORT_S)


def test_a_body_that_nobody_reads_has_a_limit_too() -> None:
    async def scenario(listener: HttpListener) -> None:
        answer = await ended(await connect(listener, REQUEST[:-2] + b"Content-Length: 9\r\n\r\n1234"))
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b" 408 " not in answer

    play(scenario, body_timeout_s=SHORT_S)


def test_an_idle_connection_is_closed() -> None:
    async def scenario(listener: HttpListener) -> None:
        assert (await ended(await connect(listener, REQUEST))).endswith(b"0 bytes")

    play(scenario, idle_timeout_s=SHORT_S)


def test_a_connection_that_was_answered_before_the_end_of_the_body_is_closed_when_idle() -> None:
    async def scenario(listener: HttpListener) -> None:
        reader, writer = await connect(listener, REQUEST[:-2] + b"Content-Length: 9\r\n\r\n1234")
        await reader.readuntil(b"0 bytes")
        writer.write(b"56789")
        assert await ended((reader, writer)) == b""

    play(scenario, idle_timeout_s=SHORT_S)


def test_a_client_that_does_not_take_its_answer_is_dropped() -> None:
    async def scenario(listener: HttpListener) -> None:
        _, writer = await connect(listener, REQUEST.replace(b"/ ", b"/large "))
        while listener.connections:
            await asyncio.sleep(0)  # nothing is read meanwhile, so there is no event to wait for
        writer.close()
        await serves(listener)

    play(scenario, send_timeout_s=SHORT_S)


def test_a_client_that_closes_slowly_is_dropped() -> None:
    async def scenario(listener: HttpListener) -> None:
        request = REQUEST[:-2].replace(b"/ ", b"/large ") + b"Connection: close\r\n\r\n"
        _, writer = await connect(listener, request)
        while listener.connections:
            await asyncio.sleep(0)
        writer.close()
        await serves(listener)

    play(scenario, send_timeout_s=SHORT_S)


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"], ids=["that goes on", "that is whole"])
def test_a_header_that_is_too_large_is_answered_with_431(end: bytes) -> None:
    async def scenario(listener: HttpListener) -> None:
        answer = await ended(await connect(listener, REQUEST[:-4] + b"\r\nX: " + b"x" * 4000 + end))
        assert answer.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
        assert answer.endswith(b"The header is larger than 1000 bytes.")

    play(scenario, header_max_bytes=1000)


def test_a_body_may_be_larger_than_a_header() -> None:
    async def scenario(listener: HttpListener) -> None:
        body = b"Content-Length: 5000\r\nConnection: close\r\n\r\n" + b"x" * 5000
        answer = await ended(await connect(listener, b"POST / HTTP/1.1\r\nHost: x\r\n" + body))
        assert answer.endswith(b"5000 bytes")

    play(scenario, header_max_bytes=1000)


def test_connections_over_the_limit_are_answered_with_503_and_others_go_on() -> None:
    async def scenario(listener: HttpListener) -> None:
        reader, writer = await connect(listener, REQUEST)
        await reader.readuntil(b"0 bytes")
        held = [await connect(listener, REQUEST[:9]) for _ in range(2)]
        answer = await ended(await connect(listener))
        assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert answer.endswith(b"\r\n\r\nThere are too many connections")
        writer.write(REQUEST)
        assert (await reader.readuntil(b"0 bytes")).startswith(b"HTTP/1.1 200 ")
        for _, each in held:
            each.transport.abort()
        while listener.connections > 1:
            await asyncio.sleep(0)
        await serves(listener)
        writer.close()

    play(scenario, connections_max=3)


def test_one_address_does_not_take_all_connections() -> None:
    async def scenario(listener: HttpListener) -> None:
        held = [await connect(listener, source="127.0.0.2") for _ in range(2)]
        assert b" 503 " in await ended(await connect(listener, source="127.0.0.2"))
        await serves(listener)
        for _, each in held:
            each.close()

    play(scenario, connections_per_address_max=2)


def test_a_tls_handshake_that_does_not_end_is_ended(certificate: Path) -> None:
    async def run() -> None:
        tls = CurrentTls(TlsSettings(OFF, 0, str(certificate), str(certificate.with_name("key.pem"))))
        limits = replace(PATIENT, tls_handshake_timeout_s=SHORT_S)
        listener = HttpListener(hello, "127.0.0.1", 0, limits=limits, tls=tls)
        await listener.start()
        try:
            assert await asyncio.wait_for(ended(await connect(listener, b"\x16\x03\x01")), WAIT_S) == b""
        finally:
            await listener.stop()

    asyncio.run(run())


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n1234",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n",
        b"POST /large HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n\0\r\n",
        b"GET /large HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n",
        REQUEST + b"nonsense\r\n\r\n",
        REQUEST * 5 + REQUEST[:9],
    ],
)
def test_a_request_that_is_broken_anywhere_leaves_nothing_in_the_log(
    request_bytes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(listener: HttpListener) -> None:
        for count in range(1, len(request_bytes) + 1, 7):
            _, writer = await connect(listener, request_bytes[:count])
            await writer.drain()
            writer.transport.abort()
        await ended(await connect(listener, request_bytes))
        await serves(listener)

    with caplog.at_level(logging.WARNING):
        play(scenario, header_timeout_s=SHORT_S, body_timeout_s=SHORT_S, idle_timeout_s=SHORT_S)
    assert [record.getMessage() for record in caplog.records] == []


def test_two_thousand_half_sent_requests_hold_nobody_up(
    full_run: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """They come from one address, and the client beside them from another."""
    count = 2000 if full_run else 400
    raise_limit()

    async def scenario(listener: HttpListener) -> None:
        streams = await connect(listener)
        idle_s = [await round_trip_s(streams) for _ in range(100)]
        answers, beside_s = [], []
        for _ in range(count):
            attacker = await connect(listener, REQUEST[:9], source="127.0.0.2")
            answers.append(asyncio.create_task(ended(attacker)))
            beside_s.append(await round_trip_s(streams))
        with capsys.disabled():
            ratio = median(beside_s) / median(idle_s)
            print(f"\nbeside {count} half-sent requests a round trip takes {ratio:.1f} x its idle time")
        await serves(listener)
        statuses = {answer[9:12] for answer in await asyncio.gather(*answers)}
        assert statuses == {b"408", b"503"}
        await serves(listener, source="127.0.0.2")
        streams[1].close()

    play(scenario, header_timeout_s=1.0, connections_per_address_max=100)
