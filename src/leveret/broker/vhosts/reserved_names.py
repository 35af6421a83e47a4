"""Names that clients give: what is cut out of them, and which are not theirs to give."""

from __future__ import annotations

from leveret.broker.errors import AccessRefused

_LINE_ENDS = str.maketrans("", "", "\r\n")


def cleaned(name: str) -> str:
    """Line ends are dropped from the names of queues and exchanges."""
    return name.translate(_LINE_ENDS)


def check_not_default(exchange: str) -> None:
    if not exchange:
        raise AccessRefused("operation not permitted on the default exchange")


def check_not_reserved(kind: str, name: str) -> None:
    if name.startswith("amq."):
        raise AccessRefused(f"{kind} name '{name}' contains reserved prefix 'amq.*'")
