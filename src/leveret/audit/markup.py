"""HTML and SVG out of Python: what is not `Safe` is escaped, so that no name can become markup.

Owns escaping and how elements are written; what is in them is left to the callers. The rule: `Safe(...)` is
called only here, and by `report` on the style sheet.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Final

from leveret.audit.wording import plain

_VOID: Final = frozenset(("meta", "link", "br"))


class Safe(str):
    """Markup; anything else is text."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str | float | None) -> Safe:
    """An element. `class_` is `class`, `aria_label` is `aria-label`; an attribute that is None is left out.

    >>> tag("td", "<b>", tag("br"), class_="name", title='"', colspan=2)
    '<td class="name" title="&quot;" colspan="2">&lt;b&gt;<br></td>'
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = "" if name in _VOID else f"{joined(children)}</{name}>"
    return Safe(f"<{name}{written}>{inside}")


def joined(children: Iterable[str]) -> Safe:
    return Safe("".join(each if isinstance(each, Safe) else escape(plain(each)) for each in children))


def _attribute(value: str | float) -> str:
    """Places in drawings need no more than two digits."""
    return escape(plain(value)) if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
