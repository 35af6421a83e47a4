"""What the fuzzers of AMQP and HTTP share: attackers, a client that does nothing wrong, and what must hold.

Everything that is sent follows from a seed. In which order pieces arrive is the machine's choice. After each
history the broker is alive, has logged no error, and knows nothing of the attackers any more.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from pamqp import commands

from leveret.amqp.frames import BODY, FRAME, METHOD, OVERHEAD_BYTES
from leveret.testing.broker import Broker
from tests.amqp.session import channel_open, handshake, names_in, published, sent
from tests.processes import WAIT_S

PIECES_MAX = 5


def mangled(random: Random, data: bytes) -> bytes:
    """Change, repeat, cut out or put in a few bytes."""
    changed = bytearray(data)
    for _ in range(random.randint(1, 3)):
        start = random.randint(0, len(changed))
        stop = min(len(changed), start + random.choice((0, 1, 1, 2, 4, 50)))
        changed[start:stop] = random.choice(
            (
                b"",
                random.randbytes(1),
                random.randbytes(4),
                b"\0\0\0\0",
                b"\xff\xff\xff\xff",
                changed[start:stop] * 2,
            )
        )
    return bytes(changed)


def pieces_of(random: Random, data: bytes) -> list[bytes]:
    """Cut the data anywhere: what is one write of a client need not be one read of the broker."""
    cuts = sorted(random.randint(0, len(data)) for _ in range(random.randint(0, PIECES_MAX)))
    return [data[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True)]


async def attack(port: int, pieces: Sequence[bytes], end: str) -> bytes:
    """Send the pieces, end the connection as told, and return what the broker has said by then."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = b""
    with suppress(OSError):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        if end == "abort":
            writer.transport.abort()
        elif end == "half-close":
            writer.write_eof()
        if end != "close":
            answer = await reader.read()
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return answer


class Bystander:
    """A client that publishes with confirms to a queue of its own, and gets each message."""

    def __init__(self) -> None:
        self.rounds = 0
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def connect(self, port: int, *, channel_max: int, frame_max: int) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", port)
        self._writer.write(handshake(channel_max=channel_max, frame_max=frame_max) + channel_open(1))
        self._writer.write(sent(1, commands.Queue.Declare, queue="of a bystander", exclusive=True))
        self._writer.write(sent(1, commands.Confirm.Select))
        await self._until("confirm.select-ok")

    async def round(self) -> None:
        body = b"%d" % self.rounds
        self._writer.write(published(1, body, key="of a bystander", delivery_mode=2))
        await self._until("basic.ack")
        self._writer.write(sent(1, commands.Basic.Get, queue="of a bystander", no_ack=True))
        await self._until("basic.get-ok")
        kind = 0
        while kind != BODY:
            kind, payload = await self._frame()
        assert payload == body
        self.rounds += 1

    async def leave(self) -> None:
        self._writer.write(sent(0, commands.Connection.Close))
        await self._until("connection.close-ok")
        self._writer.close()

    async def _until(self, name: str) -> None:
        found = ""
        while found != name:
            kind, payload = await self._frame()
            if kind == METHOD:
                (found,) = names_in(FRAME.pack(METHOD, 0, len(payload)) + payload + b"\xce")
                assert " " not in found, f"the broker said {found}"

    async def _frame(self) -> tuple[int, bytes]:
        kind, _, size = FRAME.unpack(await self._reader.readexactly(FRAME.size))
        data = await self._reader.readexactly(size + OVERHEAD_BYTES - FRAME.size)
        return kind, data[:-1]


async def beside(
    attacks: Sequence[Awaitable[bytes]], rounds: Sequence[Callable[[], Awaitable[None]]]
) -> list[bytes]:
    """Make rounds of well-behaved clients until all attacks are over, and once more; return the answers."""
    attacking = asyncio.gather(*attacks)
    try:
        over = False
        while not over:
            over = attacking.done()
            for each in rounds:
                await each()
        return await attacking
    finally:
        attacking.cancel()


class Watched:
    """A broker under attack: what it must not do is noted, `check` looks at the rest."""

    def __init__(self, broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
        self._broker = broker
        self._caplog = caplog
        self._unhandled: list[dict[str, Any]] = []
        caplog.set_level(logging.ERROR)
        loop = broker.server.turns.loop
        broker.call(lambda: loop.set_exception_handler(lambda _, context: self._unhandled.append(context)))

    def check(self) -> None:
        """The attackers are gone, with all that was theirs; nothing went wrong inside the broker."""
        broker = self._broker
        broker.wait_until(lambda: not broker.server.turns.sockets, "all sockets are gone", timeout_s=WAIT_S)
        assert broker.server.failure is None
        errors = [f"{each['message']}: {each.get('exception')!r}" for each in self._unhandled]
        errors += [record.getMessage() for record in self._caplog.records]
        assert not errors, errors
        left = broker.call(lambda: list(broker.server.broker.sessions))
        assert not left, left
        queues = broker.call(lambda: list(broker.server.broker.vhosts["/"].queues.values()))
        in_use = [str(each) for each in queues if each.unacked or each.consumers or each.owner]
        assert not in_use, in_use
