"""Names that clients choose: removes line ends from them, and refuses reserved and unencodable names."""

from __future__ import annotations

from leveret.broker.errors import AccessRefused, PreconditionFailed

_LINE_ENDS = str.maketrans("", "", "\r\n")


def cleaned(name: str) -> str:
    """Return the name of a queue or exchange without line ends."""
    return name.translate(_LINE_ENDS)


def check_not_default(exchange: str) -> None:
    if not exchange:
        raise AccessRefused("operation not permitted on the default exchange")


def check_not_reserved(kind: str, name: str) -> None:
    if name.startswith("amq."):
        raise AccessRefused(f"{kind} name '{name}' contains reserved prefix 'amq.*'")


def check_text(what: str, text: str) -> None:
    """Raise if a string from JSON holds half of a surrogate pair, which UTF-8 can't encode."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise PreconditionFailed(f"{what} is not valid text: {text!r}") from None
