"""What clients of the Flight endpoint may send, from a seed: requests, tickets, writes, and plain bytes.

Names come from a small vocabulary, so that requests meet: what one stages, another commits. Each value may be
of any type, at its limit or beyond it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from random import Random
from typing import Any, Final, get_args

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow import flight

from leveret.amqp.properties import encode
from leveret.flight import actions, schemas
from leveret.flight.tickets import PieceTicket, ReadTicket, StageDescriptor, pack_ranges

QUEUES: Final = ("q", "s", "t", "nowhere", "", "\n", "q" * 300)
QUERIES: Final = ("n", "m", "", "x" * 300)
EXTREMES: Final = (-1, 2**31, 2**63 - 1, 2**63, 2**64 - 1, float("inf"), float("nan"), 1e300, -1e-9)
LOGINS: Final = ("guest:guest", "rita:secret", "guest:wrong", ":", "nobody", "guest:guest:guest", None)
KINDS: Final = (*get_args(actions.Request), StageDescriptor, ReadTicket, PieceTicket)
HEADER: Final = encode({"delivery_mode": 2}, 1)
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Sender:
    """One client, with whatever login; `sender.send()` does one thing that a client can do."""

    def __init__(self, random: Random, port: int) -> None:
        self._random = random
        self._client = flight.FlightClient(f"grpc://127.0.0.1:{port}")

    def send(self) -> bytes | None:
        """The answer to a request; None where rows, or nothing, came."""
        return self._random.choice((self._act, self._act, self._act, self._get, self._put))()

    def close(self) -> None:
        self._client.close()

    # the three kinds of calls

    def _act(self) -> bytes | None:
        kind = self._random.choice((actions.ACTION,) * 20 + ("", "x" * 5000))
        results = list(self._client.do_action(flight.Action(kind, self._message()), self._options()))
        return results[0].body.to_pybytes() if results else None

    def _get(self) -> None:
        ticket = flight.Ticket(self._message(ReadTicket, PieceTicket))
        for number, _ in enumerate(self._client.do_get(ticket, self._options())):
            if number > 5:
                return

    def _put(self) -> None:
        random = self._random
        descriptor = flight.FlightDescriptor.for_command(self._message(StageDescriptor))
        if not random.randrange(20):
            descriptor = flight.FlightDescriptor.for_path("no", "command")
        schema = schemas.WRITE if random.randrange(10) else schemas.READ
        writer, _ = self._client.do_put(descriptor, schema, self._options(written=True))
        try:
            for _ in range(random.randrange(4)):
                if schema is schemas.WRITE:
                    writer.write_batch(self._rows())
                elif random.randrange(2):
                    writer.write_metadata(b"unasked")
        finally:
            writer.close()

    def _options(self, *, written: bool = False) -> flight.FlightCallOptions:
        login = self._random.choice(LOGINS[:1] * 12 + LOGINS)
        headers = []
        if login is not None:
            token = base64.b64encode(login.encode())
            if not self._random.randrange(30):
                token = self._random.randbytes(9).hex().encode()[:-1]
            headers = [(b"authorization", b"Basic " + token)]
        compression = self._random.choice((None, None, "zstd", "lz4")) if written else None
        options = pa.ipc.IpcWriteOptions(compression=compression)
        return flight.FlightCallOptions(timeout=60.0, headers=headers, write_options=options)

    # what they carry

    def _message(self, *kinds: type[msgspec.Struct]) -> bytes:
        random = self._random
        kind = random.choice(kinds if kinds and random.randrange(10) else KINDS)
        values = [self._value(field) for field in msgspec.structs.fields(kind)]
        if not random.randrange(12):
            values = values[: random.randrange(len(values) + 1)] + [0] * random.randrange(3)
        data = msgspec.msgpack.encode([kind.__name__, *values])
        if not random.randrange(8):
            data = self._mangled(data)
        return data

    def _mangled(self, data: bytes) -> bytes:
        random, changed = self._random, bytearray(data)
        for _ in range(random.randrange(1, 4)):
            at = random.randrange(len(changed))
            match random.randrange(3):
                case 0:
                    changed[at] = random.randrange(256)
                case 1:
                    del changed[at : at + random.randrange(1, 9)]
                    changed += b"\xc0"
                case _:
                    changed[at:at] = random.randbytes(random.randrange(1, 9))
        return bytes(changed)

    def _value(self, field: msgspec.structs.FieldInfo) -> Any:
        random = self._random
        if not random.randrange(40):
            return random.choice((*EXTREMES, None, "", b"", [], {}, [[]], True, "x" * 70_000))
        known: dict[str, Callable[[], Any]] = {
            "vhost": lambda: random.choice(("/",) * 20 + ("other", "")),
            "queue": lambda: random.choice(QUEUES[:3] * 4 + QUEUES),
            "query": lambda: random.choice(QUERIES[:1] * 6 + QUERIES),
            "at": lambda: [random.choice(("first", "next", "offset", "time", "never")), self._number()],
            "timeout_s": lambda: random.choice((60.0, 60.0, 0.01, float("inf"), float("nan"), 1e300, -1.0)),
            "exchanges": lambda: [random.choice(("", "amq.direct", "e")) for _ in range(random.randrange(4))],
            "stages": lambda: [random.choice("abc") for _ in range(random.randrange(4))],
            "stage": lambda: random.choice("abc"),
            "event": lambda: random.choice(("published", "told", "standing", "other")),
            "batch": lambda: random.choice((0, 1, 2, 3, self._number())),
            "unroutable": lambda: random.choice((None, "", "e", "amq.fanout")),
        }
        if field.name in known:
            return known[field.name]()
        if field.name in ("ranges", "offsets", "spans", "stops"):
            return self._offsets(field)
        plain = str(field.type)
        if field.type is bool:
            return bool(random.randrange(2))
        if "int" in plain or "Annotated" in plain or "float" in plain:
            return self._number()
        return random.choice(("", "r1", "r2", "0" * 32, "why \udfff".encode("utf-8", "replace").decode()))

    def _offsets(self, field: msgspec.structs.FieldInfo) -> Any:
        ranges = pack_ranges(self._range() for _ in range(self._random.randrange(5)))
        if not self._random.randrange(10):
            ranges += bytes(self._random.randrange(1, 16))
        if field.name == "ranges":
            return {"s": ranges} if "dict" in str(field.type) else ranges
        value = list(self._range()) if field.name == "spans" else self._number()
        return {self._random.choice(("s", "s", "p")): value}

    def _range(self) -> tuple[int, int]:
        random = self._random
        start = random.randrange(30)
        return (
            (start, start + random.randrange(-1, 20)) if start else (0, random.choice((5, 2**63, 2**64 - 1)))
        )

    def _number(self) -> Any:
        random = self._random
        return random.choice(EXTREMES) if not random.randrange(12) else random.randrange(12)

    def _rows(self) -> pa.RecordBatch:
        random = self._random
        count = random.choice((0, 1, 3, 2500))
        names = [random.choice((b"", b"", b"amq.fanout", b"e", b"x" * 256, b"\xff")) for _ in range(3)]
        body = random.randbytes(1)
        header = random.choice((HEADER, HEADER, HEADER, HEADER[:-1], b"", random.randbytes(20)))
        columns = [[random.choice(names)] * count, [random.choice((b"q", b"s", b"t"))] * count]
        columns += [[header] * count, [body] * count]
        if count and not random.randrange(10):
            columns[random.randrange(4)][0] = None
        edges = np.arange(count + 1, dtype=np.int32)
        data = pa.py_buffer(bytes(count + 64)).slice(0, count)  # the client reads what edges say
        wild = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(edges), data])
        arrays = [pa.array(column, pa.binary()) for column in columns]
        if not random.randrange(6):
            arrays[random.randrange(4)] = wild
        rows = pa.record_batch(arrays, schema=schemas.WRITE)
        if count and random.randrange(2):  # afterwards: pyarrow would make no such batch
            at = random.randrange(1, count + 1)
            edges[at] = count + 60 if at == count else random.choice((-5, 0, 3, 2**31 - 1))
        return rows


def raw_bytes(random: Random) -> bytes:
    """For a socket: what HTTP/2 and gRPC may make of it."""
    frames = b""
    for _ in range(random.randrange(6)):
        payload = random.randbytes(random.choice((0, 1, 8, 40, 3000)))
        length = len(payload) if random.randrange(5) else random.randrange(1 << 24)
        stream = random.choice((0, 1, 3, 2**31 - 1))
        frames += length.to_bytes(3) + bytes((random.randrange(12), random.randrange(256)))
        frames += stream.to_bytes(4) + payload
    return (
        random.choice((b"", PREFACE, PREFACE, PREFACE, b"AMQP\x00\x00\x09\x01", b"GET / HTTP/1.1\r\n\r\n"))
        + frames
    )
