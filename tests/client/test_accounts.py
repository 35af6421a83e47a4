"""The books notice each kind of untruth; each test is one, and the last ones are not."""

import pytest

from leveret.client.errors import ConnectionLost
from leveret.client.receipt import Receipt, Status
from tests.client.accounts import Books, Found


def receipt(number: int, status: Status, *, attempts: int = 1) -> Receipt:
    made = Receipt(
        number,
        b"",
        b"",
        b"",
        exchange="",
        routing_key="q",
        message_id=f"m{number}",
        correlation_id=None,
        started_s=0.0,
        deadline_s=30.0,
        callback=None,
    )
    made.attempts = attempts
    if status is Status.RETURNED:
        made.reply_code, made.reply_text = 312, "NO_ROUTE"
    if status is Status.LOST:
        made.cause = ConnectionLost("gone")
    if status is not Status.PENDING:
        made.resolve(status, 1.0)
    return made


def books(*receipts: Receipt, **options: bool) -> Books:
    opened = Books(**options)
    for one in receipts:
        opened.enter(one, body(one.seq))
    return opened


def body(number: int) -> bytes:
    return b"body %d" % number


def found(number: int, *, again: bool = False) -> Found:
    return Found(f"m{number}", body(number), again)


WRONG = {
    "a confirmed message that is not there": (
        [receipt(1, Status.CONFIRMED)],
        [],
        "it is not in the queue",
    ),
    "a receipt that is never resolved": (
        [receipt(1, Status.PENDING)],
        [],
        "nobody ever learnt what became of it",
    ),
    "a returned message that is there": (
        [receipt(1, Status.RETURNED)],
        [found(1)],
        "it is in the queue",
    ),
    "a refused message that is there": (
        [receipt(1, Status.NACKED)],
        [found(1)],
        "it is in the queue",
    ),
    "two copies of which neither says that it is one": (
        [receipt(1, Status.CONFIRMED, attempts=2)],
        [found(1), found(1)],
        "2 copies, and more than one of them claims to be the first",
    ),
    "a copy although it was sent once": (
        [receipt(1, Status.CONFIRMED)],
        [found(1), found(1, again=True)],
        "it was sent once, but the queue says otherwise",
    ),
    "a message that says it was sent again although it was not": (
        [receipt(1, Status.CONFIRMED)],
        [found(1, again=True)],
        "it was sent once, but the queue says otherwise",
    ),
    "a message that was never sent and is there": (
        [receipt(1, Status.LOST, attempts=0)],
        [found(1)],
        "it was never sent, and is there",
    ),
    "a body that belongs to another": (
        [receipt(1, Status.CONFIRMED)],
        [Found("m1", body(2))],
        "its body is another one",
    ),
    "a message that nobody published": (
        [],
        [found(1)],
        "m1 is in the queue, but nobody published it",
    ),
    "two messages that changed places": (
        [receipt(1, Status.CONFIRMED), receipt(2, Status.CONFIRMED)],
        [found(2), found(1)],
        "m1 came after messages that were published later",
    ),
    "one id for two messages": (
        [receipt(1, Status.LOST), receipt(1, Status.LOST)],
        [],
        "two receipts have the same message id",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_the_books_notice(what):
    receipts, queue, sentence = WRONG[what]
    (complaint,) = books(*receipts).wrong(queue)
    assert complaint.endswith(sentence)


def test_the_books_notice_a_marked_copy_where_there_must_be_none():
    queue = [found(1), found(1, again=True)]
    (complaint,) = books(receipt(1, Status.CONFIRMED, attempts=2), exactly_once=True).wrong(queue)
    assert complaint.endswith("2 copies in a queue that stores a message once")


RIGHT = {
    "every confirmed message once": (
        [receipt(1, Status.CONFIRMED), receipt(2, Status.CONFIRMED)],
        [found(1), found(2)],
    ),
    "returned and refused ones nowhere": ([receipt(1, Status.RETURNED), receipt(2, Status.NACKED)], []),
    "a lost one that is not there": ([receipt(1, Status.LOST)], []),
    "a lost one that is there": ([receipt(1, Status.LOST)], [found(1)]),
    "a confirmed one whose copy says what it is": (
        [receipt(1, Status.CONFIRMED, attempts=2)],
        [found(1), found(1, again=True)],
    ),
    "several that were sent again, in order, behind what had come through": (
        [receipt(number, Status.CONFIRMED, attempts=2) for number in (1, 2, 3)],
        [found(1), found(2), *(found(number, again=True) for number in (1, 2, 3))],
    ),
    "one that came through the second time only": (
        [receipt(1, Status.CONFIRMED, attempts=2)],
        [found(1, again=True)],
    ),
}


@pytest.mark.parametrize("what", RIGHT)
def test_the_books_are_in_order_with(what):
    receipts, queue = RIGHT[what]
    assert books(*receipts).wrong(queue) == []
