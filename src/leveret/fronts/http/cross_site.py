"""Refuses requests that change something and were sent by a page of another site.

A browser that knows a user's name and password sends them with every request to this address, also with a
form of a foreign page (cross-site request forgery). The browser says so in `Sec-Fetch-Site` and `Origin`,
which a page can't change; programs send neither. Answers have no CORS headers, so that foreign pages can't
read them either.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from leveret.fronts.http.errors import Problem

READS: Final = frozenset(("GET", "HEAD", "OPTIONS"))
"""Methods that change nothing."""


def check_site(headers: Mapping[str, str]) -> None:
    """Raise unless the request comes from a program, from the address bar or from a page of this broker.

    >>> check_site({"host": "localhost:15672", "origin": "http://localhost:15672"})
    """
    site = headers.get("sec-fetch-site", "none")
    origin = headers.get("origin")
    if site not in ("none", "same-origin") or (origin is not None and not _is_here(origin, headers)):
        raise Problem(
            403,
            "forbidden",
            "A page of another site sent this request. Only pages of this address may change something.",
        )


def _is_here(origin: str, headers: Mapping[str, str]) -> bool:
    try:
        return urlsplit(origin).netloc.lower() == headers.get("host", "").lower() != ""
    except ValueError:
        return False
