"""`GET /api/openapi.json`: a description of the HTTP API as an OpenAPI 3.1 document.

Owns the form of the document, and the statuses that operations of a kind share. What each route takes and
answers is in `api_operations`, types are in `api_schemas`. As every other route it needs a login.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leveret import __version__
from leveret.broker.access.accounts import User
from leveret.broker.product import NAME
from leveret.fronts.http.api_operations import OPERATIONS, Operation
from leveret.fronts.http.api_schemas import SCHEMAS, key_of, reference
from leveret.fronts.http.cross_site import READS
from leveret.fronts.http.endpoints import Endpoints
from leveret.fronts.http.json_replies import reply

_IN_PATH: Final = re.compile(r"{(\w+)}")
_REASONS: Final = {
    200: "Done",
    201: "Made",
    204: "Done",
    400: "The request is not valid, and has changed nothing",
    401: "The login failed, or the user lacks a right",
    403: "A page of another site sent the request",
    404: "There is no such object",
    413: "The body is too large",
    501: "The kind of queue does not support the operation",
    503: "Not possible at present",
}
_DESCRIPTION: Final = (
    "Paths and fields are those of RabbitMQ's management API. Names in paths are escaped: the virtual host "
    "`/` is `%2F`. Each user needs one of the tags management, policymaker, monitoring and administrator. "
    "The scopes of an operation name the tag that it needs. Users see the virtual hosts for which they have "
    "permissions."
)


class OpenApi:
    def routes(self, make: Endpoints) -> list[Route]:
        return [Route("/api/openapi.json", make.reading(self.show))]

    def show(self, request: Request, user: User) -> Response:
        return reply(document())


@cache
def document() -> dict[str, Any]:
    """Return the document. Callers must not change it."""
    return {
        "openapi": "3.1.0",
        "info": {"title": f"{NAME} HTTP API", "version": __version__, "description": _DESCRIPTION},
        "paths": {
            path: {method.lower(): _described(path, method, each) for method, each in operations.items()}
            for path, operations in OPERATIONS.items()
        },
        "components": {
            "schemas": {key_of(name): schema for name, schema in SCHEMAS.items()},
            "securitySchemes": {
                "password": {"type": "http", "scheme": "basic"},
                "token": {"type": "http", "scheme": "bearer", "description": "From `POST /api/login`."},
            },
        },
    }


def _described(path: str, method: str, operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": _IN_PATH.sub(r"by_\1", f"{method.lower()}{path}").replace("/", "_"),
        "parameters": [
            *(
                {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
                for name in _IN_PATH.findall(path)
            ),
            *(
                {"name": name, "in": "query", "description": what, "schema": schema}
                for name, (schema, what) in (operation.query or {}).items()
            ),
        ],
        "responses": {
            str(status): _answer(status, operation) for status in sorted(statuses(path, method, operation))
        },
        "security": [] if operation.is_open else [{way: _tags(operation)} for way in ("password", "token")],
    }
    if operation.body:
        content = {"application/json": {"schema": reference(operation.body)}}
        needed = bool(SCHEMAS[operation.body].get("required"))
        described["requestBody"] = {"required": needed, "content": content}
    return described


def _tags(operation: Operation) -> list[str]:
    return [operation.tag] if operation.tag else []


def statuses(path: str, method: str, operation: Operation) -> set[int]:
    """Return the statuses that an operation may answer."""
    found = {*operation.more}
    if operation.answers is not None:
        found.add(200)
    else:
        found |= {*operation.done} or ({201, 204} if method == "PUT" else {204})
    if not operation.is_open:
        found.add(401)
    if method not in READS:
        # Any body may be too large, also one that is not needed.
        found |= {400, 403, 413, 503}
    if operation.query:
        found.add(400)
    if "{" in path:
        found |= {400, 404}
    return found


def _answer(status: int, operation: Operation) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": _REASONS[status]}
    if status == 204 or (status == 201 and operation.answers is None):
        return answer
    is_check = status == 503 and operation.answers is not None and 503 in operation.more
    is_answer = status < 400 or is_check
    schema = operation.answers if is_answer else reference("problem")
    media_type = operation.media_type if is_answer else "application/json"
    if is_check:
        schema = {"anyOf": [schema, reference("problem")]}
    return answer | {"content": {media_type: {"schema": schema}}}
