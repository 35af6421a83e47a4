"""`leveret policies`: set, listed and deleted; one sentence for what can't be."""

from tests.cli.api_commands import http, leveret  # noqa: F401  (fixtures)

LIMIT = '{"max-length": 10}'


def test_a_policy_is_set_listed_and_deleted(leveret, http):  # noqa: F811
    made = leveret("policies", "set", "limits", "^temp", LIMIT, "--priority", 3, "--apply-to", "queues")
    assert (made.code, made.err) == (0, "leveret: policy 'limits' in vhost '/' is set\n")
    listed = [line.strip().split(maxsplit=4) for line in leveret("policies", "list").out.splitlines()]
    assert listed == [
        ["name", "pattern", "apply-to", "priority", "definition"],
        ["limits", "^temp", "queues", "3", LIMIT],
    ]
    assert leveret("policies", "list", "--operator", "--json").result == []
    gone = leveret("policies", "delete", "limits", "--yes")
    assert (gone.code, gone.err) == (0, "leveret: policy 'limits' is deleted\n")


def test_an_operator_policy_is_another_one(leveret):  # noqa: F811
    made = leveret("policies", "set", "bounds", "", LIMIT, "--operator", "--json")
    assert made.result["definition"] == {"max-length": 10}
    (row,) = leveret("policies", "list", "--operator", "--json").result
    assert (row["name"], row["apply-to"], row["priority"]) == ("bounds", "all", 0)
    assert leveret("policies", "list", "--json").result == []


def test_what_can_not_be_is_one_sentence(leveret):  # noqa: F811
    for words, code, sentence in (
        (("set", "p", "^t", "{"), 2, "the definition is not JSON"),
        (("set", "p", "^t", "[]"), 2, "the definition must be a JSON object"),
        (("set", "p", "^t", '{"max-length": -1}'), 1, "-1 is not a valid maximum length"),
        (("set", "p", "^t", '{"maxlength": 1}'), 1, "are not recognised policy settings"),
        (("delete", "p", "--yes"), 1, "no policy 'p' in vhost '/'"),
        (("delete", "p"), 2, "use --yes"),
    ):
        ran = leveret("policies", *words)
        assert ran.code == code, words
        assert sentence in " ".join(ran.err.replace("\u2502", " ").split())
    assert leveret("policies", "list", "--json").result == []
