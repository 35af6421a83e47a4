"""Requests to the broker's HTTP API, for the commands that look at or change what a broker has.

    api = Api("http://guest:guest@127.0.0.1:15672", vhost="/")
    api.get("groups", "billing", cells=64)

Owns the address, the login, and the sentence that an error becomes; what the answers mean is left to the
commands. `exit_on_error` ends a command whose request failed with that sentence and exit code 1. Connecting
times out after a few seconds. An answer may take any time, because a redrive may be long; `answer_s` limits
it.
"""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias
from urllib.parse import parse_qs, quote, unquote, urlencode

import typer

from leveret.cli.screen import Screen
from leveret.client.endpoint import split
from leveret.client.tls_options import TlsOptions, explained

if TYPE_CHECKING:
    from http.client import HTTPConnection, HTTPResponse

DEFAULT_HTTP: Final = "http://guest:guest@127.0.0.1:15672"
_PORTS: Final = {"http": 15672, "https": 15671}
_WITHOUT_VHOST: Final = (
    *("users", "vhosts", "vhost-limits", "user-limits"),
    *("overview", "nodes", "connections", "channels"),
)
"""Resources whose paths do not begin with the virtual host of the API."""
_CONNECT_S: Final = 5.0
_INTERRUPTED: Final = 130


class ApiError(Exception):
    """The API refused a request or can't be reached; the text is a sentence for the user."""


class NotFound(ApiError):
    """The API answered that there is no such object."""


class Api:
    """The HTTP API of one virtual host, or with None of all. Each request opens its own connection.

    Fields of a query or a body that are None are left out.
    """

    def __init__(self, url: str, *, vhost: str | None, answer_s: float | None = None) -> None:
        parts = split(url)
        self._tls = TlsOptions.parse(parse_qs(parts.query)) if parts.scheme == "https" else None
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or _PORTS[parts.scheme]
        user = unquote("guest" if parts.username is None else parts.username)
        password = unquote("guest" if parts.password is None else parts.password)
        self._login = b64encode(f"{user}:{password}".encode()).decode("ascii")
        self._vhost = vhost
        self._answer_s = answer_s
        self.address = f"{parts.scheme}://{self._host}:{self._port}"
        """The URL of the API without user and password."""

    def get(self, *path: str, **query: Any) -> Any:
        """Return the JSON at a path: `get("groups", "billing")` asks `/api/groups/{vhost}/billing`."""
        return self._ask("GET", path, query)

    def put(self, *path: str, body: dict[str, Any]) -> Any:
        return self._ask("PUT", path, {}, body)

    def patch(self, *path: str, body: dict[str, Any], **query: Any) -> Any:
        return self._ask("PATCH", path, query, body)

    def post(self, *path: str, body: dict[str, Any], **query: Any) -> Any:
        return self._ask("POST", path, query, body)

    def delete(self, *path: str, **query: Any) -> Any:
        return self._ask("DELETE", path, query)

    def close(self, *path: str, reason: str | None) -> Any:
        """Delete a connection, and tell its client the reason."""
        return self._ask("DELETE", path, {}, headers=_without_none({"X-Reason": reason}))

    def _ask(
        self,
        method: str,
        path: tuple[str, ...],
        query: dict[str, Any],
        body: Any = None,
        *,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> Any:
        # Other commands start sooner without it.
        from http.client import HTTPException, RemoteDisconnected

        resource, *names = path
        if resource not in _WITHOUT_VHOST and self._vhost is not None:
            names = [self._vhost, *names]
        target = "/".join(["/api", resource, *(quote(segment, safe="") for segment in names)])
        data = None if body is None else json.dumps(_without_none(body)).encode()
        try:
            connection = self._connect()
            try:
                all_headers = {
                    "Authorization": f"Basic {self._login}",
                    "Content-Type": "application/json",
                    **headers,
                }
                connection.request(method, f"{target}?{urlencode(_without_none(query))}", data, all_headers)
                response = connection.getresponse()
                return self._parse_answer(response, response.read())
            finally:
                connection.close()
        except (OSError, HTTPException) as error:
            if why := explained(error, plain="use http:// for it, or the broker's port for https://"):
                raise ApiError(f"no connection to {self.address}: {why} (check --http)") from error
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            if isinstance(error, RemoteDisconnected) and self._tls is None:
                reason += "; is this a port for https://?"
            raise ApiError(f"{self.address} does not answer: {reason} (check --http)") from error

    def _connect(self) -> HTTPConnection:
        from http.client import HTTPConnection, HTTPSConnection

        if self._tls is None:
            connection = HTTPConnection(self._host, self._port, timeout=_CONNECT_S)
        else:
            try:
                context = self._tls.context()
            except ValueError as error:
                raise ApiError(f"no connection to {self.address}: {error} (check --http)") from error
            connection = HTTPSConnection(self._host, self._port, timeout=_CONNECT_S, context=context)
        connection.connect()
        connection.sock.settimeout(self._answer_s)
        return connection

    def _parse_answer(self, response: HTTPResponse, data: bytes) -> Any:
        try:
            answer = json.loads(data) if data else None
        except ValueError:
            answer = {}
        if response.status < 400:
            return answer
        reason = answer.get("reason") if isinstance(answer, dict) else None
        if reason == "Login failed":
            raise ApiError("Login failed (check user and password in --http http://user:password@…)")
        if reason in (None, "Not Found"):
            refused = NotFound if response.status == 404 else ApiError
            raise refused(
                f"{self.address} answered {response.status}: check that it is Leveret and has a virtual host "
                f"'{self._vhost}'"
            )
        raise ApiError(" ".join(map(str, reason)) if isinstance(reason, list) else str(reason))


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


@contextmanager
def exit_on_error(*, as_json: bool) -> Iterator[Screen]:
    """Return the command's screen; turn an `ApiError` into one sentence on it and exit code 1."""
    screen = Screen(as_json=as_json)
    try:
        yield screen
    except ApiError as error:
        screen.fail(str(error))
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPTED) from None


@contextmanager
def missing(sentence: str) -> Iterator[None]:
    """Replace the error about an object that does not exist by a sentence that names the object."""
    try:
        yield
    except NotFound as error:
        raise ApiError(sentence) from error


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation unless `yes` is set; end the command if the answer is no."""
    if not yes and not sys.stdin.isatty():
        raise typer.BadParameter("can't ask for confirmation, because stdin is not a terminal: use --yes")
    if not yes:
        typer.confirm(question, abort=True, err=True)


def _check_http_url(url: str) -> str:
    try:
        parts = split(url)
        TlsOptions.parse(parse_qs(parts.query))
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
        callback=_check_http_url,
        help="URL of the broker's HTTP API, with the login: http://user:password@host:port, or "
        "https://user:password@host:port?cacertfile=FILE.",
    ),
]
Vhost: TypeAlias = Annotated[str, typer.Option(help="The virtual host.")]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
