"""Commands that show, declare and delete queues, exchanges, bindings; on Leveret, and on a real RabbitMQ."""

import json
import time
from contextlib import closing

import pika
import pytest
from typer.testing import CliRunner

from leveret.cli.main import app
from tests.cli.api_commands import Ran, http, leveret, publish  # noqa: F401  (fixtures)


def _rows(out):
    return [line.split() for line in out.splitlines()]


@pytest.fixture
def rabbitmq_command(rabbitmq, monkeypatch):
    """Return a function that runs a command against RabbitMQ, in a virtual host of this test."""
    url = f"http://guest:guest@127.0.0.1:{rabbitmq.http_port}"
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words):
        ran = CliRunner().invoke(app, [*map(str, words), "--http", url])
        assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
        return Ran(ran.exit_code, ran.stdout, ran.stderr)

    run.vhost = f"{rabbitmq.vhost}c"
    assert run("vhosts", "create", run.vhost).code == 0
    yield run
    run("vhosts", "delete", run.vhost, "--yes")


def _declare_show_and_delete(run, vhost):
    """Run each command that changes something, and look at the result with the others."""
    here = ("--vhost", vhost)
    made = run("queues", "declare", "invoices", "--type", "quorum", "--argument", "x-max-length=5", *here)
    assert (made.code, made.err) == (0, "leveret: queue 'invoices' is there\n")
    assert run("queues", "declare", "letters", "--transient", *here).code == 0
    assert run("exchanges", "declare", "events", "--type", "topic", *here).code == 0
    assert run("exchanges", "declare", "audit", "--type", "fanout", "--internal", *here).code == 0
    assert run("bindings", "declare", "events", "invoices", "--key", "order.*", *here).code == 0
    assert run("bindings", "declare", "events", "audit", "--to-exchange", *here).code == 0

    rows = {row["name"]: row for row in run("queues", "list", "--json", *here).result}
    assert {name: row["durable"] for name, row in rows.items()} == {"invoices": True, "letters": False}
    shown = run("queues", "show", "invoices", "--json", *here).result
    assert shown["arguments"] == {"x-max-length": 5, "x-queue-type": "quorum"}
    found = run("queues", "list", "--name", "^l", "--regex", "--json", *here).result
    assert [row["name"] for row in found] == ["letters"]
    largest = ("--sort", "name", "--reverse", "--limit", 1)
    (row,) = run("queues", "list", *largest, "--json", *here).result
    assert row["name"] == "letters"
    kinds = run("exchanges", "list", "--name", "audit", "--json", *here).result
    assert [(row["type"], row["internal"]) for row in kinds] == [("fanout", True)]
    bound = run("bindings", "list", "--name", "events", "--json", *here).result
    ends = {(row["destination"], row["destination_type"], row["routing_key"]) for row in bound}
    assert ends == {("invoices", "queue", "order.*"), ("audit", "exchange", "")}
    assert len(run("bindings", "show", "events", "invoices", "--json", *here).result) == 1

    removed = run("bindings", "delete", "events", "invoices", "--key", "order.*", "--yes", *here)
    assert removed.err == "leveret: 'invoices' is not bound to 'events' by key 'order.*' any more\n"
    again = run("bindings", "delete", "events", "invoices", "--key", "order.*", "--yes", *here)
    assert again.code == 1
    assert "there is no binding of 'invoices' to 'events'" in again.err
    assert run("queues", "purge", "invoices", "--yes", *here).code == 0
    for words in (("queues", "delete", "invoices"), ("queues", "delete", "letters", "--if-empty")):
        assert run(*words, "--if-unused" if len(words) == 4 else "--yes", "--yes", *here).code == 0
    for name in ("events", "audit"):
        assert run("exchanges", "delete", name, "--yes", *here).code == 0
    gone = run("queues", "delete", "letters", "--yes", *here)
    assert (gone.code, gone.err) == (1, f"leveret: there is no queue 'letters' in vhost '{vhost}'\n")
    assert run("exchanges", "show", "events", *here).code == 1
    assert run("queues", "list", "--json", *here).result == []


def test_queues_exchanges_and_bindings_are_declared_shown_and_deleted(leveret):  # noqa: F811
    _declare_show_and_delete(leveret, "/")


@pytest.mark.real
@pytest.mark.needs_rabbitmq
def test_the_commands_work_on_rabbitmq_too(rabbitmq_command):
    _declare_show_and_delete(rabbitmq_command, rabbitmq_command.vhost)
    here = ("--vhost", rabbitmq_command.vhost)
    for resource in ("queues", "exchanges", "bindings", "connections", "channels", "consumers"):
        assert rabbitmq_command(resource, "list", *here).code == 0
    assert rabbitmq_command("top").code == 0
    status = rabbitmq_command("status")
    assert status.code == 0, status.out
    assert "RabbitMQ 3." in status.out


def test_lists_are_tables_with_separators_of_thousands(leveret, http):  # noqa: F811
    leveret("queues", "declare", "orders")
    publish(http.broker.url, "orders", 1100)
    head, row = _rows(leveret("queues", "list").out)
    assert head == ["name", "type", "ready", "unacked", "delayed", "consumers", "in/s", "out/s"]
    assert row[:6] == ["orders", "classic", "1,100", "0", "0", "0"]
    shown = leveret("queues", "show", "orders").out
    assert ["messages_ready", "1,100"] in _rows(shown)


def test_a_list_longer_than_a_page_is_whole(leveret, http, monkeypatch):  # noqa: F811
    monkeypatch.setattr("leveret.cli.resources._PAGE_MAX", 2)
    for number in range(5):
        leveret("queues", "declare", f"q{number}")
    names = lambda *words: [row["name"] for row in leveret("queues", "list", *words, "--json").result]  # noqa: E731
    assert names("--name", "q") == ["q0", "q1", "q2", "q3", "q4"]
    assert names("--limit", 3) == ["q0", "q1", "q2"]
    assert names("--limit", 9) == ["q0", "q1", "q2", "q3", "q4"]


def test_clients_are_listed_shown_and_closed(leveret, http, monkeypatch):  # noqa: F811
    leveret("queues", "declare", "orders")
    parameters = pika.URLParameters(http.broker.url)
    parameters.client_properties = {"connection_name": "billing"}
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.basic_qos(prefetch_count=7)
    channel.basic_consume("orders", lambda *_: None, consumer_tag="first")
    (row,) = leveret("connections", "list", "--json").result
    name = row["name"]
    assert leveret("connections", "list", "--name", "nobody", "--json").result == []
    monkeypatch.setattr("leveret.cli.tables._PIPE_WIDTH", 80)
    line = leveret("connections", "list").out.splitlines()[1]
    assert line.startswith(name), "it is not cut, because other commands need it"
    assert "billing" in line
    assert leveret("connections", "show", name, "--json").result["user"] == "guest"
    (channel_row,) = leveret("channels", "list", "--json").result
    assert leveret("channels", "show", channel_row["name"], "--json").result["consumer_count"] == 1
    assert _rows(leveret("consumers", "list", "--name", "first").out)[1][:2] == ["orders", "first"]
    assert leveret("consumers", "show", "first", "--json").result[0]["prefetch_count"] == 7
    closed = leveret("connections", "close", name, "--reason", "maintenance", "--yes")
    assert (closed.code, closed.err) == (0, f"leveret: connection '{name}' is closed\n")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="maintenance"):
        connection.process_data_events(10)


def test_what_a_client_has_named_does_not_reach_the_terminal(leveret, http):  # noqa: F811
    name = "a\x1b[31mb"
    leveret("queues", "declare", name)
    for words in (("list",), ("show", name)):
        out = leveret("queues", *words).out
        assert "a?[31mb" in out
        assert "\x1b" not in out


def test_tables_fit_a_terminal_and_long_names_are_cut(leveret, monkeypatch):  # noqa: F811
    from leveret.cli import tables

    leveret("queues", "declare", "orders-" * 20)
    leveret("exchanges", "declare", "events-" * 20)
    leveret("bindings", "declare", "events-" * 20, "orders-" * 20, "--key", "key." * 50)
    monkeypatch.setattr(tables, "_PIPE_WIDTH", 80)
    for resource in ("queues", "exchanges", "bindings"):
        lines = leveret(resource, "list", "--name", "e").out.splitlines()
        assert len(lines) < 12, "one line for each row"
        assert max(map(len, lines)) <= 80
        assert any("…" in line or "..." in line for line in lines)


def test_watch_shows_a_list_again_until_ctrl_c(leveret, monkeypatch):  # noqa: F811
    leveret("queues", "declare", "orders")
    waits = []

    def wait(seconds):
        waits.append(seconds)
        if len(waits) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", wait)
    ran = leveret("queues", "list", "--watch", 3, "--json")
    assert (ran.code, waits) == (0, [3, 3])
    assert [[row["name"] for row in json.loads(line)] for line in ran.out.splitlines()] == [["orders"]] * 2


def test_status_is_one_screen_and_fails_with_an_alarm(leveret, http):  # noqa: F811
    with closing(pika.BlockingConnection(pika.URLParameters(http.broker.url))):
        ran = leveret("status")
    assert ran.code == 0
    assert len(ran.out.splitlines()) < 24
    for part in ("Leveret", "No alarms, no damage found.", "connections 1,", "memory", "listener"):
        assert part in ran.out
    assert leveret("status", "--json").result["overview"]["product_name"] == "Leveret"
    core = http.broker.server.broker
    http.broker.call(lambda: core.set_alarm("memory", on=True))
    short = leveret("status")
    assert short.code == 1
    assert "! the memory alarm of leveret@" in short.out
    assert leveret("status", "--json").code == 1


def test_status_shows_a_plain_user_a_part(leveret, http):  # noqa: F811
    http.ask("PUT", "/api/users/ann", body={"password": "secret", "tags": "management"})
    http.ask("PUT", "/api/permissions/%2F/ann", body={"configure": "", "write": "", "read": ""})
    ran = leveret("status", "--http", f"http://ann:secret@127.0.0.1:{http.listener.port}")
    assert (ran.code, ran.err) == (0, "")
    assert "Only what this user may see" in ran.out
    assert leveret("top", "--http", f"http://ann:secret@127.0.0.1:{http.listener.port}").code == 0


def test_messages_are_shown_and_go_back_unless_they_are_removed(leveret, http):  # noqa: F811
    leveret("queues", "declare", "orders")
    publish(http.broker.url, "orders", 3)
    ran = leveret("messages", "get", "orders", "--count", 2)
    assert (ran.code, ran.err) == (0, "leveret: 2 messages shown and put back\n")
    assert ran.out.splitlines()[:2] == ["(default) / orders  1 byte", "0"]
    (first,) = leveret("messages", "get", "orders", "--json").result
    assert (first["payload"], first["redelivered"]) == ("0", True)
    assert leveret("messages", "get", "orders", "--count", 9, "--remove").code == 0
    empty = leveret("messages", "get", "orders")
    assert (empty.out, empty.err) == ("", "leveret: queue 'orders' is empty\n")


def test_a_payload_does_not_reach_the_terminal_as_it_is(leveret, http):  # noqa: F811
    leveret("queues", "declare", "orders")
    with closing(pika.BlockingConnection(pika.URLParameters(http.broker.url))) as connection:
        properties = pika.BasicProperties(headers={"from\x1b": "\x1b[31m"}, message_id="17")
        connection.channel().basic_publish("", "orders", "\x1b[2Jä\nb".encode(), properties)
    out = leveret("messages", "get", "orders", "--truncate", 100).out
    assert "\x1b" not in out
    assert out.splitlines()[1:] == ["  headers.from?: ?[31m", "  message_id: 17", "?[2Jä", "b"]


def test_top_shows_the_fullest_queue_first(leveret, http):  # noqa: F811
    for name, count in (("few", 1), ("many", 5)):
        leveret("queues", "declare", name)
        publish(http.broker.url, name, count)
    ran = leveret("top", "--sort", "ready")
    assert ran.code == 0
    lines = ran.out.splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("name"))
    assert [line.split()[0] for line in lines[head + 1 :]] == ["many", "few"]
    assert "messages 6, ready 6, unacked 0" in ran.out
    assert len(leveret("top", "--json").result["queues"]) == 2


def test_what_can_not_be_is_one_sentence(leveret):  # noqa: F811
    leveret("queues", "declare", "orders")
    for words, code, sentence in (
        (("queues", "declare", "orders", "--transient"), 1, "inequivalent arg 'durable' for queue 'orders'"),
        (("queues", "declare", "q", "--argument", "x"), 2, "is not NAME=VALUE"),
        (("queues", "delete", "orders"), 2, "use --yes"),
        (("queues", "purge", "nope", "--yes"), 1, "there is no queue 'nope' in vhost '/'"),
        (("queues", "show", "nope"), 1, "there is no queue 'nope' in vhost '/'"),
        (("queues", "list", "--vhost", "nope"), 1, "has a virtual host 'nope'"),
        (("queues", "list", "--name", "(", "--regex"), 1, "parameters are invalid"),
        (("bindings", "list", "--name", "(", "--regex"), 2, "is not a regular expression"),
        (("bindings", "declare", "nope", "orders"), 1, "no exchange 'nope' in vhost"),
        (("bindings", "show", "amq.direct", "orders"), 1, "no binding of 'orders' to 'amq.direct'"),
        (("exchanges", "declare", "e", "--type", "x"), 1, "x"),
        (("connections", "close", "nobody", "--yes"), 1, "there is no connection 'nobody'"),
        (("connections", "close", "nobody", "--reason", "Ä", "--yes"), 2, "printable ASCII"),
        (("messages", "get", "nope"), 1, "no queue 'nope'"),
        (("messages", "get", "orders", "--remove", "--reject"), 2, "not both"),
        (("top", "--sort", "nope"), 2, "'nope' is none of in/s, out/s"),
        (("channels", "show", "nope"), 1, "there is no channel 'nope'"),
        (("consumers", "show", "nope"), 1, "there is no consumer 'nope'"),
    ):
        ran = leveret(*words)
        assert ran.code == code, (words, ran.err)
        assert sentence in " ".join(ran.err.replace("\u2502", " ").split()), (words, ran.err)
