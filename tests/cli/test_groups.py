"""`leveret groups`: the list, the page with its charts, and moves by hand."""

import pytest

from leveret.cli.group_page import describe
from leveret.cli.partition_chart import chart_signs
from leveret.cli.tables import Page
from tests.cli import command
from tests.cli.api_commands import http, leveret, publish  # noqa: F401  (fixtures)
from tests.fronts.http.membership import Member, group_of


@pytest.fixture
def member(leveret, http):  # noqa: F811
    """One of group billing on a topic of two partitions; it holds 0 to 9 of orders-0, 10 to 19 are ready."""
    leveret("topic", "create", "orders", "--partitions", 2)
    publish(http.broker.url, "orders-0", 20)
    member = Member(http.broker.url, "orders", "billing", prefetch=10)
    assert member.take(10) == list(range(10))
    yield member
    if member.connection.is_open:
        member.close()


def progress(api):
    return group_of(api.broker, "orders", "billing").partitions["orders-0"].cursor.progress


def partition(leveret, *words):  # noqa: F811
    (group,) = leveret("groups", "describe", "billing", "--json", *words).result
    return group["partitions"][0]


# the chart


def drawn(cells, *, start=0, size=1, stuck=None):
    window = {"start": start, "size": size, "stop": start + size * len(cells), "cells": cells}
    return "".join(sign.glyph for sign in chart_signs(window, stuck=stuck))


def test_each_state_has_its_sign():
    assert drawn([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]) == "█>~·"
    assert drawn([]) == ""


def test_the_lowest_in_flight_is_marked():
    assert drawn([[0, 1, 0, 0], [0, 1, 0, 0]], start=7, stuck=8) == ">!"
    assert drawn([[3, 1, 0, 0], [4, 0, 0, 0], [0, 2, 0, 2]], start=100, size=4, stuck=103) == "!█>"


def test_of_many_offsets_in_a_cell_the_one_that_wants_to_be_seen_is():
    assert drawn([[9_999, 1, 0, 0]]) == ">"
    assert drawn([[9_999, 0, 1, 0]]) == "~"
    assert drawn([[9_999, 0, 0, 1]]) == "·"
    assert drawn([[1, 1, 1, 1]]) == ">"
    assert drawn([[0, 0, 1, 9]]) == "~"


def test_a_stuck_one_outside_of_the_chart_marks_nothing():
    assert drawn([[1, 0, 0, 0]], start=10, stuck=3) == "█"
    assert drawn([[1, 0, 0, 0]], start=10, stuck=30) == "█"


# looking


def test_the_list_is_a_table(leveret, http, member):  # noqa: F811
    member.ack(1, 2, stream="orders-0")
    member.take(2)
    member.nack(3, stream="orders-0", requeue=False)
    member.take(1)
    http.broker.wait_until_depth("%DLQ%billing", 1)
    leveret("groups", "create", "audit", "--subject", "orders", "--mode", "orderly")
    leveret("groups", "pause", "audit")
    ran = leveret("groups")
    assert (ran.code, ran.err) == (0, "")
    assert [" ".join(line.split()) for line in ran.out.splitlines()] == [
        "group subject mode members lag in flight delayed dead",
        "audit orders orderly, paused 0 20 0 0 0",
        "billing orders concurrent 1 17 10 0 1",
    ]
    assert [each["name"] for each in leveret("groups", "--json").result] == ["audit", "billing"]


def test_without_groups_it_says_so(leveret):  # noqa: F811
    ran = leveret("groups")
    assert (ran.code, ran.out, ran.err) == (0, "", "leveret: there are no groups in vhost '/'\n")
    assert leveret("groups", "--json").result == []


def test_a_page_shows_where_each_partition_stands_and_who_holds_it_up(leveret, http, member):  # noqa: F811
    member.ack(1, 2, 4, 5, stream="orders-0")
    member.nack(3, stream="orders-0")
    http.broker.wait_until(lambda: len(progress(http).delayed) == 1, "one is delayed")
    member.take(5)
    ran = leveret("groups", "describe", "billing")
    lines = ran.out.splitlines()
    assert (ran.code, ran.err) == (0, "")
    assert lines[0] == (
        "billing on orders: concurrent, 1 member, lag 16, 10 in flight, 1 delayed, 0 dead letters"
    )
    assert lines[1].startswith(
        "max_span 2000, consume_timeout 15m, max_reconsume 16, delays 1s 5s 10s 30s 1m"
    )
    (row,) = [line for line in lines if line.rstrip().endswith("10  all")]
    assert member.tag in row
    assert "orders-0  lag 16, low 0, watermark 0, highest 14, end 20, 10 in flight, 1 delayed, " in ran.out
    assert "4 settled above 2 holes" in ran.out
    assert "  !██~██>>>>>>>>>·····  0 to 19" in lines
    (stuck,) = [line for line in lines if line.startswith("  0 is with")]
    assert f"{member.tag} since 20" in stuck
    assert stuck.endswith("and holds up the watermark (attempt 1)")
    (delayed,) = [line for line in lines if line.startswith("  3 is redelivered at 20")]
    assert delayed.endswith("(1 attempt, last error: sent back by its member)")
    assert "orders-1  lag 0, end 0" in lines
    assert lines[-1].startswith("█ settled   > in flight   ~ delayed   · waiting   ! stuck")


def test_a_page_of_many_delays_lists_some_and_counts_the_rest(leveret, http, member):  # noqa: F811
    for offset in range(10):
        member.nack(offset, stream="orders-0")
    http.broker.wait_until(lambda: len(progress(http).delayed) == 10, "all are delayed")
    shown = leveret("groups", "describe", "billing", "--limit", 3).out
    assert shown.count("is redelivered at") == 3
    assert "  and 7 more are delayed\n" in shown


def test_orderly_members_show_what_they_own(leveret, http, member):  # noqa: F811
    others = [Member(http.broker.url, "orders", "audit", mode="orderly") for _ in range(3)]
    lines = leveret("groups", "describe", "audit").out.splitlines()
    for other in others:
        other.close()
    owned = sorted(
        line.split()[-1] for line in lines if "ctag" in line and " UTC, " in line and " is " not in line
    )
    assert owned == ["none", "orders-0", "orders-1"]
    assert sum(", owned by " in line for line in lines) == 2


def test_a_name_on_several_subjects_is_several_pages(leveret, http, member):  # noqa: F811
    leveret("groups", "create", "billing", "--subject", "orders-1")
    shown = leveret("groups", "describe", "billing").out
    assert shown.count("billing on orders") == 2
    assert leveret("groups", "describe", "billing", "--subject", "orders-1").out.count("billing on") == 1
    ran = leveret("groups", "pause", "billing")
    assert (ran.code, "say which one is meant" in ran.err) == (1, True)
    assert leveret("groups", "pause", "billing", "--subject", "orders-1").code == 0


def test_nothing_that_a_client_says_reaches_the_terminal_as_it_is(capsys, leveret, http, member):  # noqa: F811
    (group,) = leveret("groups", "describe", "billing", "--json").result
    group["partitions"][0]["stuck"]["error"] = "\x1b[2J\x1b]0;mine\x07"
    group["members"][0]["id"] = "\x1b[31mred"
    describe(Page(), group)
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "last error: ?[2J?]0;mine?" in shown


def test_a_page_says_when_nobody_knows_who_holds_it_up(capsys, leveret, http, member):  # noqa: F811
    (group,) = leveret("groups", "describe", "billing", "--json").result
    group["partitions"][0]["stuck"].update(member=None, since_ms=None)
    describe(Page(), group)
    assert "  0 is in flight and holds up the watermark; too many are in flight" in capsys.readouterr().out


def test_as_a_process_it_draws_into_a_pipe(leveret, http, member):  # noqa: F811
    where = f"http://guest:guest@127.0.0.1:{http.listener.port}"
    ran = command.leveret("groups", "describe", "billing", "--http", where, url=http.broker.url)
    assert (ran.code, ran.err) == (0, "")
    assert "  !>>>>>>>>>··········  0 to 19" in ran.lines
    assert all(len(line) < 300 for line in ran.lines)


# making, changing, deleting


def test_a_group_is_made_changed_and_deleted(leveret, http, member):  # noqa: F811
    made = leveret("groups", "create", "late", "--subject", "orders", "--start", "15", "--delays", "1s 5m")
    assert (made.code, made.err) == (0, "leveret: group 'late' reads 'orders', lag 5\n")
    changed = leveret(
        "groups", "set", "late", "--max-span", 7, "--consume-timeout", "90s", "--max-reconsume", -1, "--json"
    )
    assert changed.result["settings"] == {
        "mode": "concurrent",
        "max_span": 7,
        "consume_timeout_ms": 90_000,
        "max_reconsume": -1,
        "delays": [1000, 300_000],
        "first_level": 1,
        "paused": False,
    }
    assert leveret("groups", "set", "late", "--consume-timeout", "0").err == (
        "leveret: group 'late' changed: consume_timeout_ms\n"
    )
    assert leveret("groups", "delete", "late", "--yes").err == "leveret: group 'late' is deleted\n"
    assert [each["name"] for each in leveret("groups", "--json").result] == ["billing"]


def test_a_new_group_starts_where_it_is_told_to(leveret, http, member):  # noqa: F811
    for start, lag in {"first": 20, "last": 0, "15": 5, "1h": 20, "2999-01-01T00:00Z": 0}.items():
        made = leveret("groups", "create", f"from {start}", "--subject", "orders", "--start", start, "--json")
        assert made.result["lag"] == lag, start


# moving


SEEKS = [
    (("--to-last", "--reason", "a bad release"), 20),
    (("--to-first",), 0),
    (("--to-offset", 7, "--partition", "orders-0"), 7),
    (("--to-time", "1h"), 0),
    (("--to-time", "2999-01-01T00:00:00+01:00"), 20),
]


def test_a_group_is_sent_somewhere_else(leveret, http, member):  # noqa: F811
    for words, low in SEEKS:
        ran = leveret("groups", "seek", "billing", *words)
        assert ran.code == 0, words
        assert ran.err.startswith(f"leveret: group 'billing' continues from: orders-0 at {low}")
        assert partition(leveret)["low"] == low


def test_a_message_is_skipped(leveret, http, member):  # noqa: F811
    ran = leveret("groups", "skip", "billing", 0, "--partition", "orders-0", "--reason", "it loops for ever")
    assert (ran.code, ran.err) == (
        0,
        "leveret: offset 0 of 'orders-0' is settled; the watermark is at 1\n",
    )
    assert partition(leveret)["stuck"]["offset"] == 1


def test_a_group_is_paused_and_goes_on(leveret, http, member):  # noqa: F811
    assert leveret("groups", "pause", "billing").err == "leveret: group 'billing' is paused\n"
    member.ack(0, stream="orders-0")
    member.take_none()
    assert "concurrent, paused" in leveret("groups", "describe", "billing").out
    assert leveret("groups", "resume", "billing").err == "leveret: group 'billing' is resumed\n"
    assert member.take(1) == [10]


def test_dead_letters_are_redriven(leveret, http, member):  # noqa: F811
    for offset in (2, 4):
        member.nack(offset, stream="orders-0", requeue=False)
    http.broker.wait_until_depth("%DLQ%billing", 2)
    first = leveret("groups", "redrive", "billing", "--limit", 1)
    assert (first.code, first.err) == (0, "leveret: 1 message redriven, 1 left\n")
    assert leveret("groups", "redrive", "billing", "--json").result == {"redriven": 1, "gone": 0, "left": 0}


REFUSED = [
    (("describe", "nope"), 1, "no group 'nope' in vhost '/'"),
    (("describe", "billing", "--subject", "nope"), 1, "no group 'billing' on 'nope' in vhost '/'"),
    (("create", "new", "--subject", "nope"), 1, "no stream or topic 'nope' in vhost '/'"),
    (("create", "new"), 2, "Missing option '--subject'"),
    (("create", "new", "--subject", "orders", "--mode", "fast"), 1, "it can be concurrent or orderly"),
    (("create", "new", "--subject", "orders", "--start", "soon"), 1, "it must be first, last, an offset"),
    (("set", "billing"), 2, "give at least one setting to change"),
    (("set", "billing", "--max-span", 0), 1, "max_span is 0; it must be a whole number of at least 1"),
    (("set", "billing", "--delays", ""), 1, "a group needs at least one delay"),
    (("set", "billing", "--delays", "-1s"), 1, "delays contains '-1s'"),
    (("set", "billing", "--consume-timeout", "soon"), 2, "'soon' is not a duration"),
    (("set", "billing", "--mode", "orderly"), 1, "only while it has no members"),
    (("seek", "billing"), 2, "give exactly one of"),
    (("seek", "billing", "--to-first", "--to-last"), 2, "give exactly one of"),
    (
        ("seek", "billing", "--to-offset", 900, "--partition", "orders-0"),
        1,
        "offset 900 is beyond the end 20 of 'orders-0'",
    ),
    (("seek", "billing", "--to-offset", -1, "--partition", "orders-0"), 1, "offset -1 is below 0"),
    (("seek", "billing", "--to-offset", 1), 1, "has 2 partitions: say which one is meant"),
    (
        ("seek", "billing", "--to-first", "--partition", "nope"),
        1,
        "no partition 'nope' of group 'billing'",
    ),
    (("seek", "billing", "--to-time", "soon"), 1, 'time is "soon"'),
    (("skip", "billing", 0, "--partition", "orders-0"), 2, "Missing option '--reason'"),
    (("skip", "billing", 0, "--partition", "orders-0", "--reason", ""), 1, "a skip needs a reason"),
    (("skip", "billing", 99, "--partition", "orders-0", "--reason", "x"), 1, "is beyond the end 20"),
    (("redrive", "nope"), 1, "no group 'nope'"),
    (("redrive", "billing", "--limit", 0), 2, "--limit"),
    (("delete", "nope", "--yes"), 1, "no group 'nope'"),
    (("delete", "billing"), 2, "use --yes"),
    (("--vhost", "/", "describe", "billing"), 2, "put options after the command 'describe'"),
    (
        (
            "--http",
            "ftp://127.0.0.1",
        ),
        2,
        "an HTTP URL starts with http:// or https://",
    ),
]


def test_what_can_not_be_is_one_sentence_and_changes_nothing(leveret, http, member):  # noqa: F811
    before = partition(leveret)
    for words, code, sentence in REFUSED:
        ran = leveret("groups", *words)
        assert (ran.code, ran.out) == (code, ""), words
        assert sentence in ran.err, words
        assert code == 2 or (ran.err.startswith("leveret: ") and ran.err.count("\n") == 1)
        assert partition(leveret) == before
