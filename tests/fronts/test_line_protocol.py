"""A new protocol needs nothing from the AMQP front: a toy one of text lines shows it, beside AMQP clients."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from pamqp import commands

from tests.amqp.session import Core, channel_open, handshake, names_in, published, sent
from tests.fronts import line_protocol
from tests.fronts.line_protocol import LineClient
from tests.semantics.clients_seen import connections_of


@pytest.fixture
def core() -> Iterator[Core]:
    core = Core()
    yield core
    core.close()


def said(core: Core, client: LineClient, *lines: str) -> list[str]:
    """Return what the broker says when the client sends these lines in one turn."""
    core.broker.begin_turn()
    for line in lines:
        client.feed(line)
    core.settle()
    answers, client.out = client.out, []
    return answers


@pytest.fixture
def client(core: Core) -> LineClient:
    client = LineClient(core.broker)
    assert said(core, client, "LOGIN guest guest", "DECLARE q") == ["WELCOME", "DECLARED q"]
    return client


def test_a_wrong_password_is_refused(core: Core):
    assert said(core, LineClient(core.broker), "LOGIN guest wrong") == ["REFUSED"]


def test_publishes_are_confirmed_when_they_are_on_the_disk(core: Core, client: LineClient):
    core.broker.begin_turn()
    client.feed("PUBLISH q hello")
    core.broker.end_turn()
    assert client.out == []
    core.settle()
    assert client.out == ["STORED 1"]


def test_consumers_get_as_much_as_they_have_credit_for(core: Core, client: LineClient):
    said(core, client, "PUBLISH q a", "PUBLISH q b", "PUBLISH q c")
    assert said(core, client, "CONSUME q 2") == ["CONSUMING", "MESSAGE 1 a", "MESSAGE 2 b"]
    assert said(core, client, "ACK 1") == ["MESSAGE 3 c"]
    assert said(core, client, "RETURN 2") == ["MESSAGE 4 b"]


def test_messages_of_a_client_that_hangs_up_go_to_another_one(core: Core, client: LineClient):
    said(core, client, "PUBLISH q a", "CONSUME q 10")
    core.broker.begin_turn()
    client.close()
    other = LineClient(core.broker)
    assert said(core, other, "LOGIN guest guest") == ["WELCOME"]
    assert said(core, other, "CONSUME q 10") == ["CONSUMING", "MESSAGE 1 a"]


def test_errors_of_the_broker_are_said_in_the_protocols_own_words(core: Core, client: LineClient):
    assert said(core, client, "CONSUME nothing 1") == ["ERROR NotFound no queue 'nothing' in vhost '/'"]
    assert said(core, client, "ACK 7") == ["ERROR PreconditionFailed unknown delivery tag 7"]
    assert said(core, client, "PUBLISH nothing lost") == ["NOWHERE lost", "STORED 1"]


def test_messages_pass_from_one_protocol_to_another(core: Core, client: LineClient):
    amqp = core.session(prefix=handshake() + channel_open(1))
    amqp.feed(sent(1, commands.Basic.Consume, queue="q", consumer_tag="c", no_ack=True))
    said(core, client, "PUBLISH q to-amqp")
    assert b"to-amqp" in amqp.taken()
    assert names_in(amqp.feed(sent(1, commands.Basic.Cancel, consumer_tag="c"))) == ["basic.cancel-ok"]
    amqp.feed(published(1, b"to-lines"))
    assert said(core, client, "CONSUME q 1") == ["CONSUMING", "MESSAGE 1 to-lines"]


def test_its_clients_are_counted_and_shown_like_all_others(core: Core, client: LineClient):
    said(core, client, "PUBLISH q hello")
    (found,) = connections_of(core.broker)
    assert (found.name, found.peer.protocol, found.user, found.channels) == ("a line", "lines", "guest", 1)
    assert found.counters.published == 1


def test_the_toy_is_small_and_imports_the_broker_only():
    text = Path(line_protocol.__file__).read_text(encoding="utf-8")
    assert len(text.splitlines()) < 150
    imported = [node.module or "" for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    ours = [module for module in imported if module.startswith("leveret")]
    assert ours
    assert all(module.startswith("leveret.broker") for module in ours)
