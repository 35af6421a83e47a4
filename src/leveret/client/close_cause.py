"""Whom a channel was closed for: nobody says so, and it matters to everybody who was on it.

The broker stops at the publish that it closes the channel for: what came before it may be stored, what came
after it is not. Who it was is known if it was alone, or if the broker names an exchange to which only one
was on its way. If the exchange was there and is gone, it was one of those to it, the last at the latest. If
nobody can tell, each must be sent alone. Everything here is said of receipts; sending is left to the
sender.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from leveret.amqp import properties
from leveret.client.errors import ChannelClosed, ClientError
from leveret.client.message import REPUBLISHED
from leveret.client.receipt import Doubt, Receipt

_NOT_FOUND: Final = 404
_PRECONDITION_FAILED: Final = 406
_EXCHANGE: Final = re.compile(r"exchange '(.*?)' in vhost")


class Judgement(NamedTuple):
    """What becomes of the receipts that were on a channel."""

    refused: list[Receipt]
    """The culprit."""
    lost: list[Receipt]
    """Perhaps it, perhaps stored before it."""
    again: list[Receipt]
    """The others."""
    exchange: str | None = None
    """What is not there any more."""
    alone: bool = False
    """The others must be sent one at a time."""


def judge(cut: Sequence[Receipt], error: ChannelClosed, *, in_doubt: bool) -> Judgement:
    """`in_doubt`: somebody was on the channel who is not among these."""
    if len(cut) == 1 and not in_doubt:
        return Judgement(list(cut), [], [])
    exchange = _exchange_in(error.text)
    candidates = [number for number, receipt in enumerate(cut) if receipt.exchange == exchange]
    if in_doubt or not candidates or (len(candidates) > 1 and error.code != _NOT_FOUND):
        doubt(cut, Doubt.SUSPECT, error)
        return Judgement([], [], list(cut), alone=True)
    last = candidates[-1]
    doubt(cut[:last], Doubt.SUSPECT, error)
    gone = set(candidates)
    again = [receipt for number, receipt in enumerate(cut) if number not in gone]
    return Judgement([cut[last]], [cut[number] for number in candidates[:-1]], again, exchange)


def doubt(receipts: Iterable[Receipt], why: Doubt, error: ClientError) -> None:
    """They may be stored: they are marked before they go out again.

    An attempt that was returned is not in doubt: it stored nothing, whether its confirm came or not.
    """
    for receipt in receipts:
        was_returned = bool(receipt.reply_code)
        receipt.reply_code, receipt.reply_text = 0, ""
        receipt.cause = error
        if was_returned:
            continue
        if not receipt.doubt:
            receipt.header = properties.with_headers(receipt.header, {REPUBLISHED: True})
        receipt.doubt |= why


def certainly_refused(receipt: Receipt, cause: ClientError | None) -> bool:
    """Whether a refusal says all. A 406 is about the message itself, which fared no better before."""
    itself = isinstance(cause, ChannelClosed) and cause.code == _PRECONDITION_FAILED
    return not receipt.doubt & (Doubt.CUT_OFF if itself else Doubt.CUT_OFF | Doubt.SUSPECT)


def _exchange_in(text: str) -> str | None:
    """The exchange that an error of the broker's is about."""
    found = _EXCHANGE.search(text)
    if found is None:
        return None
    return "" if found.group(1) == "amq.default" else found.group(1)
