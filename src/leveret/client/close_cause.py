"""Which publish the broker closed a channel for: AMQP does not say, but every receipt depends on it.

The broker stops at the publish that it closes the channel for. Publishes before it may be stored, publishes
after it are not. This module names the culprit where that is certain, and keeps the doubts of receipts.
Sending is left to the sender, which sends the other messages again. If no culprit is named, the sender
sends each message alone: then the next channel that is closed has only one publish on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from leveret.amqp import properties
from leveret.client.errors import ChannelClosed, ClientError
from leveret.client.message import REPUBLISHED
from leveret.client.receipt import Doubt, Receipt

_NOT_FOUND: Final = 404
_PRECONDITION_FAILED: Final = 406
_EXCHANGE: Final = re.compile(r"exchange '(.*?)' in vhost")


def find_culprit(unconfirmed: Sequence[Receipt], error: ChannelClosed) -> int | None:
    """Return the index of the publish to blame, which the broker certainly did not store, or None.

    With one publish on the channel, the answer is that publish. Otherwise the broker must name an exchange.
    If one publish went to that exchange, the answer is that publish. If the exchange is missing, the answer
    is the last publish to it: either the broker stopped there, or it had stopped before.
    """
    if len(unconfirmed) == 1:
        return 0
    match = _EXCHANGE.search(error.text)
    if match is None:
        return None
    exchange = "" if match.group(1) == "amq.default" else match.group(1)
    candidates = [index for index, receipt in enumerate(unconfirmed) if receipt.exchange == exchange]
    if len(candidates) == 1 or (candidates and error.code == _NOT_FOUND):
        return candidates[-1]
    return None


def mark_doubt(receipts: Iterable[Receipt], doubt: Doubt, error: ClientError) -> None:
    """Mark messages that may be stored, before they are sent again.

    An attempt that was returned leaves no doubt: it stored nothing, whether its confirm came or not.
    """
    for receipt in receipts:
        was_returned = bool(receipt.reply_code)
        receipt.reply_code, receipt.reply_text = 0, ""
        receipt.cause = error
        if was_returned:
            continue
        if not receipt.doubt:
            receipt.header = properties.with_headers(receipt.header, {REPUBLISHED: True})
        receipt.doubt |= doubt


def certainly_refused(receipt: Receipt, cause: ClientError | None) -> bool:
    """Return whether a refusal of this attempt proves that no earlier attempt stored the message.

    A 406 is about the message itself, so the broker refused it in earlier attempts on closed channels too.
    """
    is_about_message = isinstance(cause, ChannelClosed) and cause.code == _PRECONDITION_FAILED
    return not receipt.doubt & (Doubt.CUT_OFF if is_about_message else Doubt.CUT_OFF | Doubt.SUSPECT)
