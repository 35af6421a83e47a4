"""Accepting connections: what waits, what is said of it, and what an accepted socket is like."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable

import pytest

from leveret.server.acceptor import Acceptor
from leveret.server.descriptors import Descriptors
from leveret.server.listening_sockets import bind_host
from leveret.server.socket import _is_loopback
from tests.processes import WAIT_S

pytestmark = pytest.mark.real

WAITS = "new connections wait: all file descriptors for connections are in use"
OVER = "new connections are accepted again"


class Few(Descriptors):
    """As many places for connections as a test says."""

    def __init__(self, places: int) -> None:
        super().__init__(1000, quiet_s=1.0)
        self.places = places

    def have_room(self, listening: socket.socket, *, spare: int = 0) -> bool:
        return self.places > spare


class Greeter(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        found = transport.get_extra_info("socket")
        nodelay = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        transport.write(b"nodelay\n" if nodelay else b"delay\n")


def play(places: int, scenario: Callable[[int, Few], Awaitable[None]]) -> None:
    async def run() -> None:
        descriptors = Few(places)
        sockets = await bind_host("127.0.0.1", 0)
        acceptor = Acceptor(sockets, Greeter, descriptors=descriptors)
        port = sockets[0].getsockname()[1]
        acceptor.start()
        try:
            await asyncio.wait_for(scenario(port, descriptors), WAIT_S)
        finally:
            acceptor.close()
            await acceptor.wait_closed()

    asyncio.run(run())


async def until(caplog: pytest.LogCaptureFixture, text: str) -> None:
    while text not in caplog.text:
        await asyncio.sleep(0)


def test_an_accepted_socket_sends_without_delay() -> None:
    async def scenario(port: int, descriptors: Few) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.readline() == b"nodelay\n"
        writer.close()

    play(1, scenario)


def test_a_connection_waits_until_there_is_room_and_is_served_then(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(port: int, descriptors: Few) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await until(caplog, WAITS)
        descriptors.places = 1
        assert await reader.readline() == b"nodelay\n"
        writer.close()

    play(0, scenario)


def test_shortages_that_follow_each_other_are_one(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(port: int, descriptors: Few) -> None:
        for _ in range(3):
            descriptors.places = 0
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await until(caplog, WAITS)
            descriptors.places = 1
            await reader.readline()
            writer.close()
        await until(caplog, OVER)

    with caplog.at_level(logging.INFO):
        play(0, scenario)
    assert [message.partition(" (")[0] for message in caplog.messages] == [WAITS, OVER]


def test_a_full_broker_in_which_nobody_waits_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(port: int, descriptors: Few) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        descriptors.places = 0
        await reader.readline()
        writer.close()

    play(1, scenario)
    assert caplog.messages == []


def test_sockets_leave_a_reserve_of_descriptors_to_files() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as one:
        lowest_free = max(listening.fileno(), one.fileno()) + 1
        assert not Descriptors(lowest_free).have_room(listening)
        enough = Descriptors(10_000)
        assert enough.have_room(listening)
        assert enough.have_room(listening, spare=enough.usable - 1000)
        assert not enough.have_room(listening, spare=enough.usable)


@pytest.mark.parametrize(
    ("limit", "reserve", "spare_for_http"), [(64, 16, 6), (256, 64, 20), (1024, 100, 20), (1 << 20, 100, 20)]
)
def test_the_reserve_grows_with_the_limit(limit: int, reserve: int, spare_for_http: int) -> None:
    descriptors = Descriptors(limit)
    assert (descriptors.reserve, descriptors.spare_for_http) == (reserve, spare_for_http)


def test_a_peer_whose_address_is_not_known_is_not_on_this_machine() -> None:
    assert _is_loopback(("127.0.0.1", 5672))
    assert not _is_loopback(("192.0.2.1", 5672))
    assert not _is_loopback(None)
