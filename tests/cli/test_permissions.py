"""`leveret permissions`: set, listed and cleared, by name and by routing key; wrong ones are refused."""

import pytest

from tests.cli.api_commands import http, leveret  # noqa: F401  (fixtures)


@pytest.fixture(autouse=True)
def ann(leveret, tmp_path):  # noqa: F811
    file = tmp_path / "password"
    file.write_text("secret")
    assert leveret("users", "create", "ann", "--password-file", file).code == 0


def test_permissions_are_set_listed_and_cleared(leveret):  # noqa: F811
    done = leveret("permissions", "set", "ann", "--read", "^orders$")
    assert (done.code, done.err) == (0, "leveret: permissions of user 'ann' in vhost '/' are set\n")
    assert [line.split() for line in leveret("permissions", "list").out.splitlines()] == [
        ["user", "configure", "write", "read"],
        ["ann", "^orders$"],
        ["guest", ".*", ".*", ".*"],
    ]
    gone = leveret("permissions", "clear", "ann", "--yes")
    assert (gone.code, gone.err) == (0, "leveret: the permissions of user 'ann' are removed\n")
    assert [row["user"] for row in leveret("permissions", "list", "--json").result] == ["guest"]


def test_topic_permissions_are_set_listed_and_cleared(leveret):  # noqa: F811
    rights = ("--write", "^{username}", "--read", ".*")
    done = leveret("permissions", "set", "ann", "--topic", "amq.topic", *rights, "--json")
    row = {"user": "ann", "vhost": "/", "exchange": "amq.topic", "write": "^{username}", "read": ".*"}
    assert (done.code, done.result) == (0, row)
    assert leveret("permissions", "list", "--topics", "--json").result == [row]
    table = [line.split() for line in leveret("permissions", "list", "--topics").out.splitlines()]
    assert table == [["user", "exchange", "write", "read"], ["ann", "amq.topic", "^{username}", ".*"]]
    gone = leveret("permissions", "clear", "ann", "--topics", "--yes", "--json")
    assert gone.result == {"cleared": "ann", "vhost": "/"}
    assert leveret("permissions", "list", "--topics", "--json").result == []


REFUSED = [
    (("set", "new", "--read", ".*"), 1, "no user 'new'"),
    (("set", "guest", "--read", "("), 1, "read: '(' is not a regular expression"),
    (("set", "guest", "--vhost", "nope"), 1, "has a virtual host 'nope'"),
    (("set", "new", "--topic", "x", "--read", ".*"), 1, "vhost_or_user_not_found"),
    (("set", "ann", "--topic", "x", "--write", "("), 1, "write: '(' is not a regular expression"),
    (("set", "ann", "--topic", "x", "--configure", "a"), 2, "no --configure"),
    (("clear", "ann", "--yes"), 1, "user 'ann' has no permissions in vhost '/'"),
    (("clear", "ann", "--topics", "--yes"), 1, "user 'ann' has no topic permissions in vhost '/'"),
    (("clear", "ann"), 2, "use --yes"),
]


def test_what_can_not_be_is_one_sentence_and_changes_nothing(leveret):  # noqa: F811
    before = leveret("permissions", "list", "--json").result
    for words, code, sentence in REFUSED:
        ran = leveret("permissions", *words)
        assert (ran.code, ran.out) == (code, ""), words
        assert sentence in " ".join(ran.err.replace("\u2502", " ").split())
    assert leveret("permissions", "list", "--json").result == before
    assert leveret("permissions", "list", "--topics", "--json").result == []
