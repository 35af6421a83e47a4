"""`leveret vhosts` and `leveret limits`: what they print, and one sentence for what can't be."""

from tests.cli.api_commands import http, leveret  # noqa: F401  (fixtures)


def _rows(out):
    return [line.split() for line in out.splitlines()]


def test_a_virtual_host_is_created_listed_and_deleted(leveret, http):  # noqa: F811
    made = leveret("vhosts", "create", "v", "--description", "Invoices", "--tag", "a", "--tag", "b")
    assert (made.code, made.err) == (0, "leveret: virtual host 'v' is there\n")
    assert _rows(leveret("vhosts", "list").out) == [
        ["name", "description", "tags", "default_queue_type", "messages"],
        ["/", "Default", "virtual", "host", "undefined", "0"],
        ["v", "Invoices", "a,", "b", "undefined", "0"],
    ]
    changed = leveret("vhosts", "create", "v", "--default-queue-type", "quorum", "--json")
    assert changed.result == {
        "vhost": "v",
        "description": "",
        "tags": [],
        "default_queue_type": "quorum",
    }
    assert [row["default_queue_type"] for row in leveret("vhosts", "list", "--json").result] == [
        "undefined",
        "quorum",
    ]
    gone = leveret("vhosts", "delete", "v", "--yes")
    assert (gone.code, gone.err) == (0, "leveret: virtual host 'v' is deleted\n")
    assert [row["name"] for row in leveret("vhosts", "list", "--json").result] == ["/"]


def test_limits_are_set_listed_and_cleared(leveret):  # noqa: F811
    made = leveret("limits", "set", "max-queues", 100, "--vhost", "/")
    assert (made.code, made.err) == (0, "leveret: max-queues of vhost '/' is 100\n")
    made = leveret("limits", "set", "max-channels", 7, "--user", "guest", "--json")
    assert made.result == {"user": "guest", "limit": "max-channels", "value": 7}
    assert _rows(leveret("limits", "list").out) == [
        ["of", "name", "limit", "value"],
        ["vhost", "/", "max-queues", "100"],
        ["user", "guest", "max-channels", "7"],
    ]
    assert leveret("limits", "list", "--user", "guest", "--json").result == [
        {"user": "guest", "value": {"max-channels": 7}}
    ]
    assert leveret("limits", "list", "--vhost", "/", "--json").result == [
        {"vhost": "/", "value": {"max-queues": 100}}
    ]
    gone = leveret("limits", "clear", "max-queues", "--vhost", "/")
    assert (gone.code, gone.err) == (0, "leveret: vhost '/' has no max-queues\n")
    assert leveret("limits", "clear", "max-channels", "--user", "guest", "--json").code == 0
    assert leveret("limits", "list", "--json").result == []


def test_what_can_not_be_is_one_sentence(leveret):  # noqa: F811
    for words, code, sentence in (
        (("vhosts", "delete", "nope", "--yes"), 1, "has a virtual host 'nope'"),
        (("vhosts", "delete", "/"), 2, "use --yes"),
        (("vhosts", "create", "v", "--default-queue-type", "x"), 1, "'x' is not a type of queue"),
        (("limits", "set", "max-queues", 1), 2, "give either --vhost or --user"),
        (("limits", "clear", "max-queues", "--vhost", "/", "--user", "guest"), 2, "give either"),
        (("limits", "set", "max-foo", 1, "--vhost", "/"), 1, 'Unrecognised terms [{<<"max-foo">>,1}]'),
        (("limits", "set", "max-channels", 1, "--user", "nope"), 1, "no_such_user nope"),
        (("limits", "set", "max-queues", 1, "--vhost", "nope"), 1, "vhost_not_found"),
    ):
        ran = leveret(*words)
        assert ran.code == code, words
        assert sentence in " ".join(ran.err.replace("\u2502", " ").split())
