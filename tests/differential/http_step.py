"""Steps of a scenario over the HTTP API, whose paths both servers have: users, permissions, limits.

Owns the requests, their lines in the transcript, and the requests that undo them in the end. A transcript has
the status of each answer, and the reason of a refusal. Names of users and virtual hosts belong to the whole
server, and several workers share RabbitMQ: scenarios get theirs from `Http.own`.
"""

from __future__ import annotations

import http.client
import json
import re
from base64 import b64encode
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from tests.processes import WAIT_S


class Http:
    """`play.http("PUT", "/api/vhost-limits/{vhost}/max-queues", {"value": 2})`."""

    def __init__(self, port: int, vhost: str, tell: Callable[[str], None]) -> None:
        self._port = port
        self._vhost = vhost
        self._tell = tell
        self._suffix = "" if vhost == "/" else f"-{vhost}"
        self._undone_by: list[str] = []

    def own(self, name: str) -> str:
        """The name on this server of a user or a virtual host that the scenario makes."""
        return name + self._suffix

    def stable(self, line: str) -> str:
        """A line with the names that scenarios know: those of `own` without the suffix."""
        return re.sub(rf"(?<=\w){re.escape(self._suffix)}(?!\w)", "", line) if self._suffix else line

    def __call__(
        self, method: str, path: str, body: Any = None, *, user: str = "guest:guest", stays: bool = False
    ) -> None:
        """Send a request; `{vhost}` in the path is the scenario's, `{a-name}` is `own("a-name")`.

        What a PUT makes is deleted at the end of the scenario, unless it `stays`.
        """
        filled = re.sub(r"{([^}]+)}", lambda match: self._filled(match[1]), path)
        self._tell(f"http > {method} {path} {'' if body is None else json.dumps(body)}".rstrip())
        status, content = self._asked(method, filled, body, user)
        reason = json.loads(content)["reason"] if status >= 400 and content else ""
        self._tell(f"http < {status} {reason}".rstrip())
        if method == "PUT" and status < 300 and not stays:
            self._undone_by.append(filled)

    def undo(self) -> None:
        while self._undone_by:
            self._asked("DELETE", self._undone_by.pop(), None, "guest:guest")

    def _filled(self, name: str) -> str:
        return quote(self._vhost if name == "vhost" else self.own(name), safe="")

    def _asked(self, method: str, path: str, body: Any, user: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=WAIT_S)
        login = b64encode(user.encode()).decode()
        headers = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()
