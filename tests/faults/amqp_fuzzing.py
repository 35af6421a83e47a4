"""Sessions of AMQP as no client should send them, from a seed.

Most frames are whole and mean something: at the first one that does not, the broker closes the connection.
Names come from a small vocabulary, so that sessions meet: what one declares, another deletes or consumes.
"""

import struct
from random import Random
from typing import Any

from pamqp import commands

from leveret.amqp.frames import BODY, FRAME, HEARTBEAT_FRAME, OVERHEAD_BYTES, PROTOCOL_HEADER, frame
from leveret.amqp.methods import Method
from tests.amqp.session import content, header_of, nested_table, opened, sent, settlement, start_ok
from tests.faults.fuzzing import mangled
from tests.properties.broker_input import (
    CLIENT_KINDS,
    EXCHANGES,
    KEYS,
    KINDS,
    OPEN,
    QUEUES,
    READY,
    SIMPLE,
    TUNED,
)

BEGINNINGS = [b"", PROTOCOL_HEADER, PROTOCOL_HEADER + start_ok(), PROTOCOL_HEADER + start_ok() + TUNED]
BEGINNINGS += [PROTOCOL_HEADER + start_ok("guest", "wrong"), OPEN, OPEN + opened(), SIMPLE, *[READY] * 20]
PLACE_OF_NAN, NAN = 1234.5, struct.pack(">d", float("nan"))
"""No encoder writes the second one; so it takes the place of the first one afterwards."""
NUMBERS = [0, 1, 2, 3, 255, 65535, 2**31 - 1, 2**31, 2**63 - 1, -1]
ODD_VALUES = [True, None, 0.5, 1e300, PLACE_OF_NAN, "", "x", b"\xff", [], {}, [1, "q"], {"a": [{}]}, *NUMBERS]
ARGUMENTS: dict[str, list[Any]] = {
    "x-message-ttl": NUMBERS,
    "x-expires": NUMBERS,
    "x-max-length": [0, 1, 3],
    "x-max-length-bytes": [0, 1, 50],
    "x-overflow": ["drop-head", "reject-publish", "reject-publish-dlx"],
    "x-dead-letter-exchange": EXCHANGES,
    "x-dead-letter-routing-key": KEYS,
    "x-max-priority": [0, 1, 10, 255],
    "x-single-active-consumer": [True, False],
    "x-queue-type": ["classic", "quorum", "stream"],
    "x-delivery-limit": [0, 1, 2],
    "x-stream-offset": ["first", "last", "next", 0, 1, "1h"],
    "x-priority": NUMBERS,
    "x-match": ["all", "any", "wrong"],
    "alternate-exchange": EXCHANGES,
}
WORDS = {"queue": QUEUES, "consumer_tag": ["", "c", "d"], "routing_key": KEYS}
WORDS |= dict.fromkeys(("exchange", "source", "destination"), EXCHANGES)
WORDS["exchange_type"] = ["direct", "fanout", "topic", "headers", "other", ""]
CHANNELS = [1, 1, 1, 1, 2, 0, 3, 65535]


class AmqpFuzzer:
    """`AmqpFuzzer(random).session()`: the bytes of one connection."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def session(self) -> bytes:
        random = self._random
        parts = [self._part() for _ in range(random.randint(0, 15))]
        if parts and random.random() < 0.3:
            at = random.randrange(len(parts))
            parts[at] = mangled(random, parts[at])
        data = random.choice(BEGINNINGS) + b"".join(parts)
        data = data.replace(struct.pack(">d", PLACE_OF_NAN), NAN)
        return mangled(random, data) if random.random() < 0.1 else data

    def _part(self) -> bytes:
        random = self._random
        makers = [self._useful, self._useful, self._publish, self._settlement, self._anything]
        return random.choice(makers)()

    def _useful(self) -> bytes:
        random = self._random
        return random.choice(
            (
                sent(1, commands.Queue.Declare, queue=random.choice("qp"), arguments=self._table()),
                sent(1, commands.Basic.Consume, queue="q", consumer_tag=random.choice("cd")),
                sent(1, commands.Basic.Get, queue="q"),
                sent(1, random.choice((commands.Confirm.Select, commands.Tx.Select, commands.Tx.Commit))),
                self._method(random.choice(CLIENT_KINDS)),
            )
        )

    def _anything(self) -> bytes:
        random = self._random
        return random.choice(
            (
                self._method(random.choice(KINDS)),
                frame(
                    random.choice((1, 2, 3, 8, 9)),
                    random.choice(CHANNELS),
                    random.randbytes(random.randint(0, 30)),
                ),
                random.randbytes(random.randint(0, 40)),
                HEARTBEAT_FRAME,
                frame(BODY, 1, bytes(random.choice((0, 1, 8000)))),
                frame(1, 1, b"\0\x32\0\x0a\0\0\1q\0" + nested_table(random.choice((1, 10, 500)))),
            )
        )

    def _method(self, kind: type[Method]) -> bytes:
        values = {name: self._argument(name, kind.amqp_type(name)) for name in kind.attributes()}
        return sent(self._random.choice(CHANNELS), kind, **values)

    def _argument(self, name: str, amqp_type: str) -> Any:
        random = self._random
        if amqp_type == "table":
            return self._table()
        if name in ("response", "new_secret"):
            return random.choice((b"", b"\0guest\0guest"))
        choices: dict[str, list[Any]] = {
            "shortstr": WORDS.get(name, ["", "x", "\udcfe"]),
            "longstr": ["", "x", "\udcfe"],
            "bit": [False, True],
            "octet": [0, 1, 255],
            "short": [0, 1, 3, 65535],
            "long": [0, 1, 2**32 - 1],
            "longlong": [0, 1, 2, 3, 2**64 - 1],
        }
        return random.choice(choices[amqp_type])

    def _table(self) -> dict[str, Any]:
        random = self._random
        table = {
            name: random.choice(ARGUMENTS[name])
            for name in random.sample(sorted(ARGUMENTS), random.choice((0, 0, 1, 2)))
        }
        if random.random() < 0.1:
            table[random.choice([*sorted(ARGUMENTS), "other"])] = random.choice(ODD_VALUES)
        return table

    def _publish(self) -> bytes:
        random = self._random
        channel = random.choice(CHANNELS)
        body = b"b" * random.choice((0, 1, 30, 1999, 2000, 2001, 5000))
        properties: dict[str, Any] = {
            "delivery_mode": random.choice((1, 2, 2, 3)),
            "priority": random.choice((0, 5, 255)),
            "expiration": random.choice(("0", "1", "1000", "", "-1", "x")),
            "reply_to": random.choice(("amq.rabbitmq.reply-to", "q")),
            "user_id": random.choice(("guest", "guest", "other")),
            "headers": {
                random.choice(("CC", "BCC", "x-death", "x-delay", "a")): random.choice(
                    (["q", "p"], [{"queue": "q", "reason": "expired", "count": 2**63 - 1}, 5], *ODD_VALUES)
                )
            },
        }
        chosen = {name: properties[name] for name in random.sample(sorted(properties), random.randint(0, 2))}
        size = len(body) if random.random() < 0.9 else random.choice((0, 1, 2**63, 2**64 - 1))
        method = sent(
            channel,
            commands.Basic.Publish,
            exchange=random.choice(EXCHANGES),
            routing_key=random.choice(KEYS),
            mandatory=random.random() < 0.5,
            immediate=random.random() < 0.1,
        )
        return (method + content(channel, header_of(size, **chosen), body, step=900)) * random.randint(1, 3)

    def _settlement(self) -> bytes:
        random = self._random
        kind, tag = random.choice((80, 90, 120)), random.choice((0, 1, 1, 2, 3, 2**64 - 1))
        return settlement(random.choice(CHANNELS), kind, tag, random.randint(0, 3))


def whole_frames(data: bytes) -> bytes:
    """Return what was received without a last frame that is cut off: the connection may have been reset."""
    position = 0
    while position < len(data):
        if data.startswith(b"AMQP", position):
            stop = position + len(PROTOCOL_HEADER)
        elif len(data) - position < FRAME.size:
            break
        else:
            stop = position + OVERHEAD_BYTES + FRAME.unpack_from(data, position)[2]
        if stop > len(data):
            break
        position = stop
    return data[:position]
