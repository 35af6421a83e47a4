"""Requests over HTTP as no client should send them, from a seed.

Paths are those of the API's own table of routes, so that new routes are fuzzed, too. Most requests carry a
right password and can be read; some bytes are changed in the others. They change users and permissions of the
broker, but never guest's: another client uses them.
"""

import json
from base64 import b64encode
from collections.abc import Sequence
from random import Random
from typing import Any

from starlette.routing import BaseRoute, Route

from tests.faults.fuzzing import mangled

NAMES = [
    "a",
    "b",
    "%2F",
    "q",
    "orders",
    "orders-0",
    "%00%ff",
    "%zz",
    "..",
    "a%2Fb",
    "%F0%9F%90%87",
    "x" * 300,
    "",
]
METHODS = ["GET", "PUT", "POST", "DELETE", "PATCH", "HEAD", "OPTIONS", "CONNECT", "TRACE", "BREW"]
QUERIES = [
    "",
    "",
    "",
    "?",
    "?a=b",
    "?columns=name,messages",
    "?page=-1&page_size=1e9",
    "?" + "a=b&" * 300,
    "?%ff",
]
LOGINS = ["guest:guest"] * 12 + ["guest:wrong", "a:b", "nobody:", "", ":", "\udcff:x"]
FIELDS = ["partitions", "tags", "password", "configure", "write", "read", "to", "reason", "count", "group"]
FIELDS += [
    "topic",
    "prefetch",
    "max_reconsume",
    "retention",
    "max_age",
    "max_bytes",
    "position",
    "offset",
    "queue",
]
VALUES = [
    0,
    1,
    3,
    -1,
    2**31,
    2**63,
    10**400,
    1.5,
    1e308,
    True,
    None,
    "",
    "a",
    "beginning",
    "end",
    "1h",
    "\0",
    "\ud800",
]
VALUES += [
    "x" * 1000,
    [],
    [[]],
    {},
    {"a": [1]},
    "2026-01-01T00:00:00Z",
    "administrator",
    ".*",
    "(a+)+$",
    "[",
    0.1,
]
BODIES = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"{}",
    b"\xff",
    b'{"a":NaN}',
    b'{"partitions":1e999}',
    b"[" * 5000,
    b"x" * 70_000,
]
ODD_HEADERS = [
    b"Connection: close",
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 13",
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk",
    b"Expect: 100-continue",
    b"Expect: something",
    b"Content-Length: 5",
    b"Content-Length: -1",
    b"Content-Length: 99999999999999999999",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Host: y",
    b"Authorization: Bearer x",
    b"Authorization: Basic !!!",
    b"X-Forwarded-For: 192.0.2.1",
    b"Cookie: " + b"a=b; " * 100,
    b"X: " + b"x" * 20_000,
    b"Content-Type: application/json; charset=\xff",
    b"Accept: text/html",
    b" folded",
    b"NoColon",
]


class HttpFuzzer:
    """`HttpFuzzer(random, app.routes).session()`: the bytes of one connection."""

    def __init__(self, random: Random, routes: Sequence[BaseRoute]) -> None:
        self._random = random
        self._routes = [each for each in routes if isinstance(each, Route)]

    def session(self) -> bytes:
        random = self._random
        data = b"".join(self._request() for _ in range(random.choice((1, 1, 2, 4))))
        if random.random() < 0.3:
            data = mangled(random, data)
        if random.random() < 0.2:
            data = data[: random.randint(0, len(data))]
        return data if random.random() > 0.05 else random.randbytes(100) + data

    def _request(self) -> bytes:
        random = self._random
        path, method = self._target()
        body = self._body()
        head = [
            f"{method} {path}{random.choice(QUERIES)} HTTP/1.{random.choice('1111110')}".encode(),
            b"Host: x",
        ]
        login = random.choice(LOGINS).encode("utf-8", "surrogateescape")
        head.append(b"Authorization: Basic " + b64encode(login))
        if body and random.random() < 0.3:
            head.append(b"Transfer-Encoding: chunked")
            body = self._chunked(body)
        elif body or random.random() < 0.2:
            head.append(b"Content-Length: %d" % len(body))
        if random.random() < 0.3:
            head += random.sample(ODD_HEADERS, random.randint(1, 2))
        return b"\r\n".join(head) + b"\r\n\r\n" + body

    def _target(self) -> tuple[str, str]:
        random = self._random
        if random.random() < 0.05:
            return random.choice(("*", "http://x/health", "x:80", "//", "/" + "a" * 3000)), random.choice(
                METHODS
            )
        route = random.choice(self._routes)
        names = {name: random.choice(NAMES) for name in route.param_convertors}
        path = route.path.format(**names)
        allowed = sorted(route.methods or ())
        return path, random.choice(allowed if allowed and random.random() < 0.9 else METHODS)

    def _body(self) -> bytes:
        random = self._random
        if random.random() < 0.3:
            return random.choice(BODIES)
        fields: dict[str, Any] = {
            name: random.choice(VALUES) for name in random.sample(FIELDS, random.randint(0, 3))
        }
        return (
            json.dumps(fields).encode()
            if random.random() < 0.9
            else mangled(random, json.dumps(fields).encode())
        )

    def _chunked(self, body: bytes) -> bytes:
        random = self._random
        step = random.choice((1, 7, 1000, 100_000)) if len(body) < 1000 else 100_000
        chunks = [body[start : start + step] for start in range(0, len(body), step)]
        data = b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in chunks)
        return data + random.choice(
            (b"0\r\n\r\n", b"0\r\n\r\n", b"0\r\nTrailer: x\r\n\r\n", b"", b"-1\r\n", b"zz\r\n")
        )
