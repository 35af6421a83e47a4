"""Holds answers of the HTTP API against its OpenAPI document."""

import json
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from jsonschema import Draft202012Validator
from starlette.routing import Match, Route

from leveret.fronts.http.openapi import document

CHECKED_MAX_BYTES = 100_000
"""Larger answers are not compared with their schemas: that would take longer than the test."""


def check_documented(routes: Any, method: str, target: str, status: int, media: str, body: bytes) -> None:
    """Fail if a route answers with a status or a body that the document does not have."""
    method = "GET" if method == "HEAD" else method
    path = urlsplit(target).path.rstrip("/") or "/"
    scope = {"type": "http", "method": method, "path": path}
    found = [route for route in routes if route.matches(scope)[0] == Match.FULL]
    if not found or status == 500:
        # Unknown paths, wrong methods and faults are nobody's answers.
        return
    route: Route = found[0]
    answers = document()["paths"][route.path][method.lower()]["responses"]
    assert str(status) in answers, f"{method} {route.path} answered {status}, which is not documented"
    content = answers[str(status)].get("content")
    if content is None:
        assert not body, f"{method} {route.path} answered {status} with a body"
    elif body:
        assert media.split(";")[0] in content, f"{method} {route.path} answered {media}"
        if media == "application/json" and len(body) < CHECKED_MAX_BYTES:
            _validator(route.path, method.lower(), str(status)).validate(json.loads(body))


@cache
def _validator(path: str, method: str, status: str) -> Draft202012Validator:
    schema = document()["paths"][path][method]["responses"][status]["content"]["application/json"]["schema"]
    return Draft202012Validator({**schema, "components": document()["components"]})
