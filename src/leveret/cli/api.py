"""The broker's HTTP API, as commands ask it.

    api = Api("http://guest:guest@127.0.0.1:15672", vhost="/")
    api.get("groups", "billing", cells=64)

Owns where it is, who asks, and how a refusal becomes one sentence; what the answers mean is left to the
commands. `spoken` ends a command whose request came to nothing with that sentence and exit code 1. A listener
is waited for a few seconds, an answer for as long as it takes: a redrive may be long. Who can't wait that
long says so: `answer_s`.
"""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Annotated, Any, Final, TypeAlias
from urllib.parse import quote, unquote, urlencode

import typer

from leveret.cli.screen import Screen
from leveret.client.endpoint import split

DEFAULT_HTTP: Final = "http://guest:guest@127.0.0.1:15672"
_PORTS: Final = {"http": 15672, "https": 15671}
_OF_ALL_VHOSTS: Final = ("users",)
_CONNECT_S: Final = 5.0
_INTERRUPTED: Final = 130


class Refused(Exception):
    """The API says no, or nobody is there; the text is a sentence for people."""


class Api:
    """One virtual host of a broker; each request is one connection."""

    def __init__(self, url: str, *, vhost: str, answer_s: float | None = None) -> None:
        parts = split(url)
        self._tls = parts.scheme == "https"
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or _PORTS[parts.scheme]
        user = unquote("guest" if parts.username is None else parts.username)
        password = unquote("guest" if parts.password is None else parts.password)
        self._login = b64encode(f"{user}:{password}".encode()).decode("ascii")
        self._vhost = vhost
        self._answer_s = answer_s
        self.place = f"{parts.scheme}://{self._host}:{self._port}"
        """Where it is, without the password."""

    def get(self, *path: str, **query: Any) -> Any:
        """What there is at `/api/groups/{vhost}/billing`, for "groups", "billing"."""
        return self._ask("GET", path, query)

    def put(self, *path: str, body: dict[str, Any]) -> Any:
        return self._ask("PUT", path, {}, body)

    def patch(self, *path: str, body: dict[str, Any], **query: Any) -> Any:
        return self._ask("PATCH", path, query, body)

    def post(self, *path: str, body: dict[str, Any], **query: Any) -> Any:
        return self._ask("POST", path, query, body)

    def delete(self, *path: str, **query: Any) -> Any:
        return self._ask("DELETE", path, query)

    def _ask(self, method: str, path: tuple[str, ...], query: dict[str, Any], body: Any = None) -> Any:
        kind, *rest = path
        where = rest if kind in _OF_ALL_VHOSTS else [self._vhost, *rest]
        target = "/".join(["/api", kind, *(quote(each, safe="") for each in where)])
        asked = {name: value for name, value in query.items() if value is not None}
        data = None if body is None else json.dumps(body).encode()
        try:
            connection = self._connect()
            try:
                headers = {"Authorization": f"Basic {self._login}", "Content-Type": "application/json"}
                connection.request(method, f"{target}?{urlencode(asked)}", data, headers)
                response = connection.getresponse()
                return self._answer(response, response.read())
            finally:
                connection.close()
        except (OSError, HTTPException) as error:
            said = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise Refused(
                f"{self.place} does not answer: {said} (--http says where the broker is)"
            ) from error

    def _connect(self) -> HTTPConnection:
        kind = HTTPSConnection if self._tls else HTTPConnection
        connection = kind(self._host, self._port, timeout=_CONNECT_S)
        connection.connect()
        connection.sock.settimeout(self._answer_s)
        return connection

    def _answer(self, response: HTTPResponse, data: bytes) -> Any:
        try:
            found = json.loads(data) if data else None
        except ValueError:
            found = {}
        if response.status < 400:
            return found
        reason = found.get("reason") if isinstance(found, dict) else None
        if reason == "Login failed":
            raise Refused("Login failed (--http takes the user and the password: http://user:password@…)")
        if reason in (None, "Not Found"):
            raise Refused(
                f"{self.place} answers {response.status}: is it Leveret, and has it a virtual host "
                f"'{self._vhost}'?"
            )
        raise Refused(str(reason))


@contextmanager
def spoken(screen: Screen) -> Iterator[None]:
    """A refusal is one sentence, and exit code 1."""
    try:
        yield
    except Refused as error:
        screen.say(str(error))
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPTED) from None


def make_sure(question: str, *, yes: bool) -> None:
    """Asks, unless there is a yes already; ends the command on a no."""
    if not yes and not sys.stdin.isatty():
        raise typer.BadParameter("nobody is there to be asked: --yes does it without")
    if not yes:
        typer.confirm(question, abort=True, err=True)


def _checked(url: str) -> str:
    try:
        parts = split(url)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if parts.scheme not in _PORTS:
        raise typer.BadParameter(f"an HTTP URL starts with http:// or https://, not {parts.scheme!r}")
    return url


Http: TypeAlias = Annotated[
    str,
    typer.Option(
        "--http",
        envvar="LEVERET_HTTP",
        callback=_checked,
        help="Where the broker's HTTP API is, and as whom to ask: http://user:password@host:port.",
    ),
]
Vhost: TypeAlias = Annotated[str, typer.Option(help="The virtual host.")]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
