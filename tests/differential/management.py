"""The HTTP API of one broker, asked so that the answers of two brokers can be compared."""

from __future__ import annotations

import http.client
import json
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tests.processes import WAIT_S

_GUEST = "Basic " + b64encode(b"guest:guest").decode()


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    location: str | None
    content: Any
    """The JSON, or None without any."""

    @property
    def refusal(self) -> tuple[Any, Any] | None:
        """The error and its reason."""
        if self.status < 400 or not isinstance(self.content, dict):
            return None
        return self.content.get("error"), self.content.get("reason")

    @property
    def names(self) -> set[str]:
        """All names in the JSON, with dots where they are in inner objects."""
        return set(_names(self.content))


def _names(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _names(item, path)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield f"{path}{name}"
            yield from _names(item, f"{path}{name}.")


@dataclass(frozen=True, slots=True)
class Management:
    http_port: int
    port: int
    vhost: str

    def ask(self, method: str, path: str, body: object = None) -> Answer:
        """Ask for a path in which `{vhost}` stands for the virtual host; the body is text or becomes JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=WAIT_S)
        data = body if body is None or isinstance(body, str) else json.dumps(body)
        path = path.replace("{vhost}", quote(self.vhost, safe=""))
        with closing(connection):
            connection.request(
                method, path, data, {"Authorization": _GUEST, "Content-Type": "application/json"}
            )
            response = connection.getresponse()
            text = response.read().decode().replace(f"vhost '{self.vhost}'", "vhost '/'")
            location = response.getheader("location")
        return Answer(response.status, location, json.loads(text) if text else None)
