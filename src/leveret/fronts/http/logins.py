"""`/api/login`: bearer tokens for pages and scripts that should not keep a password.

    POST   /api/login    with a name and a password in `Authorization: Basic …`:
                         {"token": "…", "expires_in": 3600, "user": "ann", "tags": ["monitoring"]}
    DELETE /api/login    ends the token of the request; with a name and a password all tokens of the user

Other requests may have `Authorization: Bearer …` instead of a password. The rules: a token is in no cookie,
because browsers send cookies for foreign pages, too; and only a password gets a token, so that nobody stays
logged in for longer than a token lives. Which tokens are valid is left to `leveret.broker.access.tokens`.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leveret.broker.access.accounts import User
from leveret.broker.broker import Broker
from leveret.fronts.http.auth import token_in
from leveret.fronts.http.endpoints import Endpoints
from leveret.fronts.http.errors import NotAuthorised
from leveret.fronts.http.json_replies import reply, text
from leveret.fronts.http.request_bodies import Body, check_fields


class LoginsApi:
    def __init__(self, broker: Broker, *, token_life_s: float) -> None:
        self._tokens = broker.logins.tokens
        self._token_life_s = token_life_s

    def routes(self, make: Endpoints) -> list[Route]:
        return [
            make.by_method("/api/login", POST=make.changing(self.log_in), DELETE=make.changing(self.log_out))
        ]

    def log_in(self, request: Request, user: User, body: Body) -> Response:
        check_fields(body, ())
        if _token_of(request) is not None:
            raise NotAuthorised("A token is given for a name and a password, not for another token.")
        content = {
            "token": self._tokens.issue(user, life_s=self._token_life_s),
            "expires_in": int(self._token_life_s),
            "user": text(user.name),
            "tags": [text(tag) for tag in sorted(user.tags)],
        }
        # The answer holds a secret (RFC 6749, section 5.1).
        return reply(content, headers={"cache-control": "no-store"})

    def log_out(self, request: Request, user: User, body: Body) -> Response:
        word = _token_of(request)
        if word is None:
            self._tokens.end_all(user)
        else:
            self._tokens.end(word)
        return Response(status_code=204)


def _token_of(request: Request) -> str | None:
    return token_in(request.headers.get("authorization", ""))
