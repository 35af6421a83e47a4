"""Admin actions: every request that may change the broker, reported with its user, address, body and result.

`AdminActions` is a layer around all routes, so that a new route is reported without code of its own. Only
requests of users who have logged in are reported; a failed login is not an action. Where reports are written
is left to `leveret.server.admin_log`. The rules: a report has no password, hash, token or other secret; the
answer is sent after `record` has returned.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, unquote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leveret.broker.access.accounts import User
from leveret.fronts.http.cross_site import READS

HIDDEN: Final = "(hidden)"
_SECRET_NAME: Final = re.compile("passw|passphrase|secret|token|credential|private_?key", re.IGNORECASE)
_LOGIN_IN_URL: Final = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_BODY_BYTES_MAX: Final = 1 << 20
"""Larger bodies are reported by their size only, and refusals of them without the reason."""
_SHOWN_MAX: Final = 8 << 10
"""Characters of a body as JSON. From a larger one only the counts of its lists are reported."""
_ANSWER_BYTES_MAX: Final = 4 << 10
"""Bytes of an answer that are read for the reason of a refusal."""


@dataclass(slots=True)
class AdminAction:
    """One request; `report` makes a report of it, which may be done on any thread."""

    method: str
    path: str
    """The path as sent, with escapes."""
    query: str
    names: Mapping[str, str]
    user: str
    address: str
    body: bytes
    body_bytes: int
    status: int
    answer: bytes = field(default=b"", repr=False)

    def report(self) -> dict[str, object]:
        """Return the action as JSON, without secrets."""
        body, secrets = self._read_body()
        report: dict[str, object] = {
            "user": self.user,
            "address": self.address,
            "method": self.method,
            "path": self.path,
            "names": {name: unquote(value, errors="surrogateescape") for name, value in self.names.items()},
        }
        if self.query:
            pairs = parse_qsl(self.query, keep_blank_values=True, errors="surrogateescape")
            report["query"] = without_secrets(dict(pairs), secrets)
        if self.body_bytes:
            report["body"] = body
        report |= {"status": self.status, "result": "done" if self.status < 400 else "refused"}
        if self.status >= 500:
            report["result"] = "failed"
        reason = self._reason()
        if reason:
            hides = self.body_bytes > _BODY_BYTES_MAX or any(each in reason for each in secrets)
            report["reason"] = HIDDEN if hides else reason
        return report

    def _read_body(self) -> tuple[object, list[str]]:
        """Return the body without its secrets, and the secrets."""
        secrets: list[str] = []
        if self.body_bytes > _BODY_BYTES_MAX:
            return f"({self.body_bytes} bytes)", secrets
        try:
            shown: object = without_secrets(json.loads(self.body), secrets)
            is_large = len(json.dumps(shown)) > _SHOWN_MAX
        except (ValueError, RecursionError):
            return f"({self.body_bytes} bytes that are not JSON, or nested too deeply)", secrets
        if is_large:
            if not isinstance(shown, dict):
                return f"({self.body_bytes} bytes)", secrets
            return {
                name[:100]: f"({len(value)} entries)" if isinstance(value, list | dict) else "…"
                for name, value in list(shown.items())[:100]
            }, secrets
        return shown, secrets

    def _reason(self) -> str:
        """Return the sentence of a refusal."""
        if self.status < 400:
            return ""
        try:
            content = json.loads(self.answer)
        except ValueError:
            return ""
        reason = content.get("reason") if isinstance(content, dict) else None
        return _LOGIN_IN_URL.sub(HIDDEN, str(reason or ""))


Record: TypeAlias = Callable[[AdminAction], Awaitable[None]]


class AdminActions:
    """Calls `record` before the answer to each request that may change something."""

    def __init__(self, app: ASGIApp, record: Record) -> None:
        self._app = app
        self._record = record

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in READS:
            await self._app(scope, receive, send)
            return
        request = _Request(scope, receive, send, self._record)
        try:
            await self._app(scope, request.receive, request.send)
        except Exception:
            await request.fail()
            raise


class _Request:
    """Watches one request: collects its body, and reports it before the answer is sent."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, record: Record) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._record = record
        self._body = bytearray()
        self._body_bytes = 0
        self._start: Message | None = None
        """The start of an error's answer, held back until its reason is known."""

    async def receive(self) -> Message:
        message = await self._receive()
        piece = message.get("body", b"")
        self._body_bytes += len(piece)
        if self._body_bytes <= _BODY_BYTES_MAX:
            self._body += piece
        return message

    async def send(self, message: Message) -> None:
        """Report the action, then send the answer."""
        if message["type"] == "http.response.start":
            if message["status"] >= 400:
                self._start = message
                return
            await self._report(message["status"])
        elif self._start is not None:
            start, self._start = self._start, None
            await self._report(start["status"], message.get("body", b"")[:_ANSWER_BYTES_MAX])
            await self._send(start)
        await self._send(message)

    async def fail(self) -> None:
        """Report a request that an exception has ended: a 500."""
        await self._report(500)

    async def _report(self, status: int, answer: bytes = b"") -> None:
        scope = self._scope
        user = scope.get("user")
        if not isinstance(user, User):
            return
        client = scope.get("client")
        action = AdminAction(
            method=scope["method"],
            path=scope["path"],
            query=scope.get("query_string", b"").decode("ascii", "replace"),
            names=scope.get("path_params", {}),
            user=user.name,
            address="" if client is None else f"{client[0]}:{client[1]}",
            body=bytes(self._body),
            body_bytes=self._body_bytes,
            status=status,
            answer=answer,
        )
        await self._record(action)


def without_secrets(value: Any, secrets: list[str]) -> object:
    """Return a JSON value whose secrets are replaced by a marker, and add them to a list.

    >>> found = []
    >>> without_secrets({"password": "p", "uri": "amqp://ann:q@host", "tags": []}, found)
    {'password': '(hidden)', 'uri': 'amqp://(hidden)@host', 'tags': []}
    >>> found
    ['p']
    """
    if isinstance(value, dict):
        shown: dict[str, object] = {}
        for name, inner in value.items():
            if _SECRET_NAME.search(name) and inner:
                secrets.extend(_leaves(inner))
                shown[name] = HIDDEN
            else:
                shown[name] = without_secrets(inner, secrets)
        return shown
    if isinstance(value, list):
        return [without_secrets(inner, secrets) for inner in value]
    if isinstance(value, str):
        return _LOGIN_IN_URL.sub(HIDDEN, value)
    return value


def _leaves(value: Any) -> Iterator[str]:
    """Yield the texts and numbers in a JSON value, as an error sentence would show them."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    elif value:
        yield value if isinstance(value, str) else json.dumps(value)
