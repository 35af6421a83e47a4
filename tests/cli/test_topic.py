"""`leveret topic`: made, listed, shown and deleted, and one sentence for what can't be."""

import os
import subprocess
import sys

import pytest

from tests.cli.api_commands import http, leveret, publish  # noqa: F401  (fixtures)
from tests.processes import WAIT_S


def test_a_topic_is_made_shown_and_deleted(leveret, http):  # noqa: F811
    made = leveret("topic", "create", "orders", "--partitions", 2, "--max-age", "7D", "--max-bytes", 10**9)
    assert (made.code, made.out, made.err) == (0, "", "leveret: topic 'orders' has 2 partitions\n")
    publish(http.broker.url, "orders-1", 3)
    leveret("groups", "create", "billing", "--subject", "orders")
    listed = leveret("topic", "list").out.splitlines()
    assert [line.split() for line in listed] == [
        ["topic", "partitions", "messages", "bytes", "max", "age", "max", "bytes", "groups"],
        ["orders", "2", "3", listed[1].split()[3], "7D", "1,000,000,000", "billing"],
    ]
    shown = [line.split() for line in leveret("topic", "show", "orders").out.splitlines()]
    assert shown[0] == ["partition", "first", "end", "messages", "bytes", "readers"]
    assert shown[2][:4] == ["orders-1", "0", "3", "3"]
    assert shown[-1] == ["billing", "concurrent", "3"]
    leveret("groups", "delete", "billing", "--yes")
    gone = leveret("topic", "delete", "orders", "--yes")
    assert (gone.code, gone.err) == (0, "leveret: topic 'orders' is deleted\n")
    assert leveret("topic", "list").err == "leveret: there are no topics in vhost '/'\n"


def test_everything_is_there_as_json(leveret):  # noqa: F811
    made = leveret("topic", "create", "orders", "--partitions", 2, "--json")
    assert (made.code, made.err) == (0, "")
    assert [each["stream"] for each in made.result["partitions"]] == ["orders-0", "orders-1"]
    assert leveret("topic", "show", "orders", "--json").result == made.result
    assert [each["partitions"] for each in leveret("topic", "list", "--json").result] == [2]
    assert leveret("topic", "delete", "orders", "--yes", "--json").result == {"deleted": "orders"}
    assert leveret("topic", "list", "--json").result == []


BOOKS = {"people": ((), rb"B\xfccher"), "programs": (("--json",), rb'"name": "B\u00fccher"')}


@pytest.mark.parametrize(("asked", "said"), BOOKS.values(), ids=BOOKS)
def test_letters_that_an_output_does_not_have_are_written_as_numbers(leveret, asked, said):  # noqa: F811
    leveret("topic", "create", "B\u00fccher", "--partitions", 2)
    command = [sys.executable, "-m", "leveret", "topic", "list", *asked]
    strict = os.environ | {"PYTHONIOENCODING": "ascii:strict"}
    ran = subprocess.run(command, env=strict, capture_output=True, timeout=WAIT_S)
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert said in ran.stdout


def test_the_same_command_makes_it_grow_and_can_be_repeated(leveret):  # noqa: F811
    leveret("topic", "create", "orders", "--partitions", 2)
    assert leveret("topic", "create", "orders", "--partitions", 3).code == 0
    assert leveret("topic", "create", "orders").err == "leveret: topic 'orders' has 3 partitions\n"


REFUSED = [
    (("create", "orders", "--partitions", 1), 1, "has 2 partitions: they can't become fewer"),
    (("create", "new", "--partitions", 0), 1, "a topic has 1 to 1024 partitions, not 0"),
    (("create", "new", "--max-age", "soon"), 1, "invalid arg 'x-max-age'"),
    (("create", "new", "--max-age", ""), 1, "invalid arg 'x-max-age'"),
    (("create", "amq.new"), 1, "exchange name 'amq.new' contains reserved prefix 'amq.*'"),
    (("show", "new"), 1, "no topic 'new' in vhost '/'"),
    (("show", "new", "--vhost", "nope"), 1, "has a virtual host 'nope'"),
    (("delete", "new", "--yes"), 1, "no topic 'new' in vhost '/'"),
    (("delete", "orders"), 2, "use --yes"),
    (("create",), 2, "Missing argument"),
    (("create", "new", "--partitions", "many"), 2, "--partitions"),
    (("list", "--http", "amqp://127.0.0.1"), 2, "an HTTP URL starts with http:// or https://"),
    (("list", "--http", "http://127.0.0.1:port"), 2, "the URL's port is no number"),
    (("list", "--http", "http://me:secret#word@127.0.0.1"), 2, "percent-encode / # ? @"),
    (("list", "--http", "http://me:secret[word@127.0.0.1"), 2, "percent-encode / # ? @"),
]


def test_what_can_not_be_is_one_sentence_and_changes_nothing(leveret):  # noqa: F811
    leveret("topic", "create", "orders", "--partitions", 2)
    before = leveret("topic", "list", "--json").result
    for words, code, sentence in REFUSED:
        ran = leveret("topic", *words)
        assert (ran.code, ran.out) == (code, "")
        assert sentence in ran.err
        assert "secret" not in ran.err
        assert code == 2 or (ran.err.startswith("leveret: ") and ran.err.count("\n") == 1)
        assert leveret("topic", "list", "--json").result == before


def test_a_broker_that_is_not_there_is_said_without_the_password(leveret):  # noqa: F811
    ran = leveret("topic", "list", "--http", "http://ann:secret@127.0.0.1:1")
    assert ran.code == 1
    assert ran.err == ("leveret: http://127.0.0.1:1 does not answer: Connection refused (check --http)\n")


def test_a_wrong_password_is_said(leveret, http):  # noqa: F811
    ran = leveret("topic", "list", "--http", f"http://guest:wrong@127.0.0.1:{http.listener.port}")
    assert (ran.code, "Login failed" in ran.err) == (1, True)


def test_a_name_may_hold_any_character(leveret):  # noqa: F811
    name = "a/b ü%"
    assert leveret("topic", "create", name).code == 0
    assert leveret("topic", "show", name, "--json").result["name"] == name
    assert leveret("topic", "delete", name, "--yes").code == 0
