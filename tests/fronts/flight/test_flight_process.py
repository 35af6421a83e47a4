"""The Flight process where it begins and where its broker ends: clients come at any time, and try again."""

from __future__ import annotations

import base64
import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pyarrow import flight

from leveret.flight import actions, tickets
from leveret.fronts.flight import process, process_protocol
from leveret.fronts.flight.process import BrokerChannel, FlightProcess
from leveret.fronts.flight.process_limits import Memory
from leveret.testing.broker import Broker
from tests.fronts.flight.flight_client import Bulk
from tests.processes import WAIT_S, wait_until

LOGIN = process_protocol.Login("guest", b"guest", "127.0.0.1", True)
NO_LIMIT = Memory(1 << 40, own_bytes=lambda pid: 0, give_back=lambda: None)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The line's, and the broker's."""
    ours, brokers = socket.socketpair()
    with ours, brokers:
        brokers.settimeout(WAIT_S)
        yield ours, brokers


def next_question(end: socket.socket) -> tuple[int, process_protocol.Question]:
    size = process_protocol.LENGTH.unpack(end.recv(process_protocol.LENGTH.size, socket.MSG_WAITALL))[0]
    return process_protocol.read_question(end.recv(size, socket.MSG_WAITALL))


def test_the_broker_hears_that_the_process_is_ready_before_anybody_asks_it_anything(ends):
    ours, brokers = ends
    line = BrokerChannel(ours)
    asking = threading.Thread(target=lambda: line.ask(LOGIN), daemon=True)
    asking.start()
    assert not select.select([brokers], [], [], 0.2)[0]

    line.send_start_result(process_protocol.Ready(4711))
    assert next_question(brokers) == (0, process_protocol.Ready(4711))
    number, question = next_question(brokers)
    assert question == LOGIN

    threading.Thread(target=line.listen, daemon=True).start()
    brokers.sendall(process_protocol.frame(number, process_protocol.LoggedIn(True)))
    asking.join(WAIT_S)
    assert not asking.is_alive()


def test_who_asks_for_a_broker_that_is_gone_is_told_to_try_again(ends):
    """The process ends then too; a call may come in between."""
    ours, brokers = ends
    line = BrokerChannel(ours)
    line.send_start_result(process_protocol.Ready(4711))
    brokers.close()
    with pytest.raises(flight.FlightUnavailableError):
        line.ask(LOGIN)


def test_nobody_is_served_by_a_process_that_is_not_complete(ends, tmp_path, monkeypatch):
    """What it takes is there before its port is: here a client knocks while its pictures are made."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    said: list[Exception] = []

    class Knocking(process.StoreSnapshots):
        def __init__(self, directory: str, **more: Any) -> None:
            super().__init__(directory, **more)
            said.append(knock(port))

    monkeypatch.setattr(process, "StoreSnapshots", Knocking)
    server = FlightProcess(settings(tmp_path, port), BrokerChannel(ends[0]), NO_LIMIT)
    try:
        assert [type(each) for each in said] == [flight.FlightUnavailableError]
    finally:
        server.shutdown()


def knock(port: int) -> Exception:
    login = b"Basic " + base64.b64encode(b"guest:guest")
    options = flight.FlightCallOptions(timeout=2.0, headers=[(b"authorization", login)])
    with (
        flight.FlightClient(f"grpc://127.0.0.1:{port}") as client,
        pytest.raises(flight.FlightError) as refused,
    ):
        list(client.do_action(flight.Action("leveret", b""), options))
    return refused.value


def settings(directory: Path, port: int) -> process_protocol.ProcessSettings:
    return process_protocol.ProcessSettings(
        directory=str(directory),
        host="127.0.0.1",
        port=port,
        tls_certificate=None,
        tls_key=None,
        message_max_bytes=1 << 20,
        memory_max_bytes=1 << 40,
    )


@pytest.mark.real
def test_a_process_that_says_something_unreadable_is_started_again(tmp_path, monkeypatch, caplog):
    """Whoever asks then has an answer, in place of waiting for one that never comes."""
    with Broker(tmp_path / "data", flight=True) as broker:
        first, read = broker.endpoint.pid, process_protocol.read_question

        def read_once(body: bytes) -> tuple[int, process_protocol.Question]:
            monkeypatch.setattr(process_protocol, "read_question", read)
            raise process_protocol.WireError("not like this")

        monkeypatch.setattr(process_protocol, "read_question", read_once)
        with pytest.raises(flight.FlightError):
            Bulk(broker.endpoint.port).ask(actions.Snapshot("/", "q"))
        deadline_s = time.monotonic() + WAIT_S
        while not answered(broker.endpoint.port):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        assert broker.endpoint.pid != first
    assert "sent an invalid message" in caplog.text


def answered(port: int) -> bool:
    try:
        return Bulk(port).ask(actions.Snapshot("/", "nowhere")).code == 404
    except flight.FlightError:
        return False


@pytest.mark.real
def test_a_port_that_the_process_of_a_killed_broker_still_has_is_waited_for(tmp_path):
    with Broker(tmp_path / "data", flight=True) as broker:
        port = broker.endpoint.port
        broker.stop()
        with socket.create_server(("127.0.0.1", port)) as taken:
            threading.Timer(0.5, lambda: taken.shutdown(socket.SHUT_RDWR) or taken.close()).start()
            broker.start()
        assert broker.endpoint.port == port


@pytest.mark.real
def test_a_replaced_process_ends_its_running_reads_and_another_takes_the_next_calls(tmp_path):
    bodies = [b"%07d" % number * 20_000 for number in range(300)]
    with Broker(tmp_path / "data", flight=True) as broker:
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            channel.queue_declare("q", durable=True)
            for body in bodies:
                channel.basic_publish("", "q", body, pika.BasicProperties(delivery_mode=2))
        broker.wait_until_depth("q", len(bodies))
        endpoint, log_id = broker.endpoint, broker.server.broker.vhosts["/"].queues["q"].log.id
        first = endpoint.pid
        bulk = Bulk(endpoint.port)
        ticket = flight.Ticket(
            tickets.encode(tickets.ReadTicket("/", "q", log_id, tickets.pack_ranges([(0, len(bodies))])))
        )
        reader = bulk.client.do_get(ticket, bulk.options)
        read = reader.read_chunk().data.column("body").to_pylist()
        broker.call(lambda: endpoint.replace(endpoint.settings, 1 << 40))
        wait_until(lambda: len(endpoint.pids) == 2, "another process listens")
        assert endpoint.pid != first
        assert answered(endpoint.port)
        for chunk in reader:
            read += chunk.data.column("body").to_pylist()
        assert read == bodies
        wait_until(lambda: endpoint.pids == [endpoint.pid], "the first process has ended")
