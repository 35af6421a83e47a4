"""`leveret users`: made, listed and deleted, and one sentence for what can't be."""

import pika
import pytest

from tests.cli.api_commands import http, leveret  # noqa: F401  (fixtures)


@pytest.fixture
def password(tmp_path):
    file = tmp_path / "password"
    file.write_text("s\u00e9cret:1\nnot this\n")
    return file


def test_a_user_is_made_permitted_listed_and_deleted(leveret, http, password):  # noqa: F811
    made = leveret("users", "create", "spark", "--password-file", password, "--tag", "monitoring")
    assert (made.code, made.out) == (0, "")
    assert made.err == "leveret: user 'spark' can log in with this password\n"
    may = leveret("permissions", "set", "spark", "--read", "^orders$")
    assert (may.code, may.err) == (0, "leveret: permissions of user 'spark' in vhost '/' are set\n")
    assert [line.split() for line in leveret("users", "list").out.splitlines()] == [
        ["user", "tags", "configure", "write", "read"],
        ["guest", "administrator", ".*", ".*", ".*"],
        ["spark", "monitoring", "^orders$"],
    ]
    credentials = pika.PlainCredentials("spark", "s\u00e9cret:1")
    place = pika.ConnectionParameters("127.0.0.1", http.broker.port, credentials=credentials)
    pika.BlockingConnection(place).close()
    gone = leveret("users", "delete", "spark", "--yes")
    assert (gone.code, gone.err) == (0, "leveret: user 'spark' is deleted\n")


def test_everything_is_there_as_json(leveret, password):  # noqa: F811
    made = leveret("users", "create", "spark", "--password-file", password, "--json")
    assert (made.code, made.err, made.result) == (0, "", {"user": "spark", "tags": []})
    rights = {"user": "spark", "vhost": "/", "configure": "", "write": "", "read": ".*"}
    assert leveret("permissions", "set", "spark", "--read", ".*", "--json").result == rights
    listed = leveret("users", "list", "--json").result
    assert listed[1] == {"name": "spark", "tags": [], "permissions": rights}
    assert leveret("users", "delete", "spark", "--yes", "--json").result == {"deleted": "spark"}


REFUSED = [
    (("create", "new"), 2, "stdin is not a terminal: use --password-file"),
    (("create", "new", "--password-file", "/nowhere"), 2, "the password can't be read"),
    (("create", "new", "--password-file", "/dev/null"), 1, "a password has at least one character"),
    (("delete", "new", "--yes"), 1, "no user 'new'"),
    (("delete", "guest", "--yes"), 1, "'guest' is the only administrator"),
    (("delete", "guest"), 2, "use --yes"),
]


def test_what_can_not_be_is_one_sentence_and_changes_nothing(leveret):  # noqa: F811
    before = leveret("users", "list", "--json").result
    for words, code, sentence in REFUSED:
        ran = leveret("users", *words)
        assert (ran.code, ran.out) == (code, "")
        assert sentence in " ".join(ran.err.replace("\u2502", " ").split())
    assert leveret("users", "list", "--json").result == before
