"""The audit on a terminal: the verdict first, and only lists with entries."""

import re

import msgspec
import pytest

from leveret.audit.findings import Findings
from leveret.audit.terminal import ROWS_MAX, Part, summary
from tests.audit import examples


def titled(findings: Findings, begin: str) -> Part:
    (titled,) = (part for part in summary(findings) if part.title.startswith(begin))
    return titled


def test_the_verdict_comes_first_and_gives_the_figures():
    assert summary(examples.well())[0].title == (
        "Every message is accounted for: 257,941 published to 3 queues, 248,211 confirmed, "
        "none lost, none twice."
    )


def test_the_verdict_counts_what_is_lost_and_doubled():
    assert summary(examples.lost_and_doubled())[0].title == "3 messages are lost and 1 is doubled."


@pytest.mark.parametrize(
    ("lost", "doubled", "damaged", "sentence"),
    [
        (1, 0, 0, "1 message is lost."),
        (0, 1, 0, "1 message is doubled."),
        (0, 2_000, 0, "2,000 messages are doubled."),
        (1, 2, 1, "1 message is lost, 2 are doubled and 1 file could not be read."),
        (0, 0, 2, "No message is known to be lost or doubled, but 2 files could not be read."),
    ],
)
def test_the_verdict_names_lost_doubled_and_damaged(lost, doubled, damaged, sentence):
    account = examples.account(examples.ORDERS, published=5_000, lost=lost, doubled=doubled)
    findings = examples.empty(queues=[account], damage=["segment"] * damaged)
    assert summary(findings)[0].title == sentence


def test_a_broker_without_messages_has_a_verdict_and_nothing_else():
    assert summary(examples.empty()) == [Part("There is no message to account for.")]


def test_queues_without_an_audit_window_are_a_reservation():
    assert summary(examples.well())[0].more.startswith("1 of 3 queues has no audit window")
    audited = [msgspec.structs.replace(account, audited=True) for account in examples.well().queues]
    assert summary(msgspec.structs.replace(examples.well(), queues=audited))[0].more == ""


def test_a_queue_with_lost_messages_comes_first():
    wrong = examples.account(examples.MAIL, published=4, lost=1)
    findings = examples.empty(queues=[examples.account(examples.ORDERS, published=900), wrong])
    part = titled(findings, "Queues")
    assert [row[0] for row in part.rows] == ["mail.outgoing", "orders"]


def test_a_queue_is_a_row_with_its_figures():
    part = titled(examples.well(), "Queues")
    row = dict(zip(part.columns, part.rows[0], strict=True))
    assert row == {
        "queue": "orders",
        "published": 200_000,
        "confirmed": 200_000,
        "delivered": 200_000,
        "done": 198_950,
        "otherwise": 1_049,
        "ready": 0,
        "in flight": 1,
        "lost": 0,
        "doubled": 0,
    }


def test_a_hole_says_who_holds_it_and_for_how_long():
    part = titled(examples.well(), "Holes")
    group = "orders.topic.0, group billing"
    assert part.rows[0] == (
        group,
        "51,200",
        "in flight",
        "billing-2",
        "2026-09-15 11:42:48",
        "47 min 12 s",
        2,
    )
    assert part.rows[1][:4] == (group, "51,210 to 51,215", "ready", "nobody")


def test_lost_and_doubled_messages_are_listed():
    lost, doubled = (
        titled(examples.lost_and_doubled(), "Lost"),
        titled(examples.lost_and_doubled(), "Doubled"),
    )
    assert [row[1] for row in lost.rows] == [17, 18, 140_002]
    assert doubled.rows[0][:3] == ("orders", 99_100, "settled as done 2 times")


def test_the_slowest_stretch_comes_first():
    part = titled(examples.well(), "The slowest 5 min")
    assert part.rows[0][:2] == ("mail.outgoing", "publish to settlement")


def test_the_advice_with_most_gain_comes_first():
    part = titled(examples.well(), "Advice")
    assert [row[0] for row in part.rows] == ["worker-3 (ctag1.a0)", "worker-1 (ctag1.3f)"]
    assert part.rows[0][3] == "6.8 × as fast"


def test_empty_lists_are_left_out():
    findings = examples.empty(queues=[examples.account(examples.ORDERS, published=7)])
    assert [part.title for part in summary(findings)][1:] == ["Queues and groups"]


def test_a_long_list_is_cut_and_the_rest_is_counted():
    part = titled(examples.many(), "Holes")
    assert len(part.rows) == ROWS_MAX
    assert part.more == "and 990 more in the report"


def test_lost_messages_that_the_audit_did_not_list_are_counted():
    account = examples.account(examples.ORDERS, published=5_000, lost=1_200)
    findings = examples.empty(queues=[account], lost=[examples.message(examples.ORDERS, 3, "lost")])
    assert titled(findings, "Lost: 1,200 messages").more == "and 1,199 more in the report"


def test_holes_that_the_audit_did_not_list_are_counted():
    whole = msgspec.structs.replace(examples.many(), holes_count=70_000)
    assert titled(whole, "Holes").more == f"and {70_000 - ROWS_MAX:,} more in the report"


def test_every_row_has_a_cell_for_each_column():
    for findings in (examples.lost_and_doubled(), examples.nasty(), examples.many()):
        for part in summary(findings):
            assert {len(row) for row in part.rows} <= {len(part.columns)}


def test_names_are_short_and_printable():
    cells = [cell for part in summary(examples.nasty()) for row in part.rows for cell in row]
    names = [cell for cell in cells if isinstance(cell, str)]
    assert all(name.isprintable() for name in names)
    assert any(re.fullmatch("n{20}…n{19}", name) for name in names)
    "".join(names).encode()
