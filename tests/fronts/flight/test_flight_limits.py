"""Clients that would fill the Flight process or keep the broker busy, beside a client that is served."""

from __future__ import annotations

import base64
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pika
import pyarrow as pa
import pytest
from pyarrow import flight

from leveret.amqp.properties import encode
from leveret.flight import actions, schemas, tickets
from leveret.flight.tickets import ReadTicket, StageDescriptor, pack_ranges
from leveret.fronts.flight import process, process_limits, process_protocol
from leveret.fronts.flight.broker_channel import BrokerChannel
from leveret.fronts.flight.connection_limits import ConnectionWatcher, Limits, OwnSockets
from leveret.fronts.flight.process_limits import Memory
from leveret.testing.broker import Broker
from tests.fronts.flight.flight_client import Bulk, refusal
from tests.processes import WAIT_S

pytestmark = pytest.mark.real

MIB = 1 << 20
HEADER = encode({"delivery_mode": 2}, 5)
STAGE = StageDescriptor("/", "w", 0, "task", 60.0)
NO_LIMIT = Memory(1 << 40, own_bytes=lambda pid: 0, give_back=lambda: None)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("flight") / "data", flight=True) as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        connection.channel().queue_declare("q", durable=True)
        connection.close()
        yield broker


@pytest.fixture
def bulk(broker: Broker) -> Bulk:
    return Bulk(broker.endpoint.port)


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no VmHWM")


def publish_confirmed(broker: Broker) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("", "q", b"honest")
    connection.close()


class TestBeforeALogin:
    def act(self, client: flight.FlightClient, data: bytes) -> None:
        list(client.do_action(flight.Action(actions.ACTION, data)))

    def get(self, client: flight.FlightClient, data: bytes) -> None:
        client.do_get(flight.Ticket(data)).read_all()

    def put(self, client: flight.FlightClient, data: bytes) -> None:
        descriptor = flight.FlightDescriptor.for_command(data)
        writer, _ = client.do_put(descriptor, schemas.WRITE)
        writer.close()

    @pytest.mark.parametrize("call", ["act", "get", "put"])
    def test_a_huge_request_is_not_kept_and_others_are_served(self, broker: Broker, call: str) -> None:
        before = peak_bytes(broker.endpoint.pid)
        client = flight.FlightClient(f"grpc://127.0.0.1:{broker.endpoint.port}")
        with pytest.raises(flight.FlightError):
            getattr(self, call)(client, bytes(200 * MIB))
        publish_confirmed(broker)
        assert peak_bytes(broker.endpoint.pid) - before < 100 * MIB, "half of what was sent"
        assert Bulk(broker.endpoint.port).ask(actions.Look("/", "q")).log_id


class TestRequests:
    def test_a_request_that_is_too_large_is_refused_before_the_broker_sees_it(
        self, broker: Broker, bulk: Bulk
    ) -> None:
        bulk.ask(actions.Look("/", "q"))
        syncs = broker.server.turns.syncs
        answer = bulk.ask(actions.Reject("/", "q", "nightly", bytes(57 * MIB)))
        assert (answer.code, answer.text) == (
            406,
            "a request has 59768858 bytes, and at most 4194304 are read",
        )
        assert broker.server.turns.syncs == syncs

    @pytest.mark.parametrize("timeout_s", [float("inf"), float("nan"), 1e300, -1.0])
    def test_a_timeout_that_is_none_is_refused_with_a_sentence(self, bulk: Bulk, timeout_s: float) -> None:
        text = f"timeout_s is {timeout_s}, and must be from 0.001 to 316224000.0"
        assert bulk.ask(actions.Open("/", "q", "nightly", timeout_s)) == actions.Refused(406, text)
        with pytest.raises(flight.FlightServerError) as caught:
            bulk.write(StageDescriptor("/", "w", 0, "task", timeout_s), [(b"", b"q", HEADER, b"x")])
        assert refusal(caught.value) == actions.Refused(406, text)

    def test_limits_that_are_none_are_refused_with_a_sentence(self, bulk: Bulk) -> None:
        epoch = bulk.ask(actions.Open("/", "q", "limits", 60.0)).epoch
        for limit in (0, -1, (1 << 64) - 1):
            answer = bulk.ask(actions.Lease("/", "q", "limits", epoch, 0, max_messages=limit))
            assert answer.text == f"max_messages is {limit}, and must be from 1 to 9223372036854775807"

    @pytest.mark.parametrize(
        "data", [b"\x00", bytes(24), pack_ranges([(5, 4)]), pack_ranges([(5, 9), (0, 2)])]
    )
    def test_a_ticket_whose_ranges_are_none_is_refused_with_a_sentence(self, bulk: Bulk, data: bytes) -> None:
        with pytest.raises(flight.FlightServerError) as caught:
            bulk.read(ReadTicket("/", "q", bulk.ask(actions.Look("/", "q")).log_id, data))
        assert refusal(caught.value).code == 406

    def test_a_ticket_has_a_size(self, bulk: Bulk) -> None:
        bulk.ask(actions.Look("/", "q"))
        with pytest.raises(flight.FlightServerError) as caught:
            bulk.read(ReadTicket("/", "q", 1, bytes(7 * MIB)))
        assert "and at most 6291456 are read" in refusal(caught.value).text


class TestWrites:
    def send(self, bulk: Bulk, rows: pa.RecordBatch, options: pa.ipc.IpcWriteOptions | None = None) -> None:
        command = flight.FlightDescriptor.for_command(tickets.encode(STAGE))
        call = flight.FlightCallOptions(headers=bulk.headers, timeout=WAIT_S, write_options=options)
        writer, _ = bulk.client.do_put(command, schemas.WRITE, call)
        writer.write_batch(rows)
        writer.close()

    def test_a_batch_that_points_outside_of_itself_is_refused(self, broker: Broker, bulk: Bulk) -> None:
        """Offsets of a column are the client's: read as they are, they would show the process's memory."""
        pid = broker.endpoint.pid
        edges = np.array([0, 5], np.int32)
        column = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(edges), pa.py_buffer(b"short")])
        sound = pa.array([b""], pa.binary())
        rows = pa.record_batch([sound, column, sound, sound], schema=schemas.WRITE)
        edges[1] = 1 << 30  # afterwards: pyarrow would make no such batch
        with pytest.raises(flight.FlightServerError) as caught:
            self.send(bulk, rows)
        assert refusal(caught.value).text.startswith("rows can't be read: ")
        assert broker.endpoint.pid == pid

    def test_writers_are_held_back_when_memory_is_short_like_publishers(
        self, broker: Broker, bulk: Bulk
    ) -> None:
        turns, stages = broker.server.turns, broker.server.broker.vhosts["/"].batches()
        rows = [(b"", b"q", HEADER, bytes(5))] * 10_000
        broker.set_alarm("memory", on=True)
        broker.wait_until(lambda: turns.held_back, "publishers are held back")
        try:
            with ThreadPoolExecutor(1) as writer:
                written = writer.submit(bulk.write, StageDescriptor("/", "held", 0, "task", 60.0), rows)
                broker.wait_until(lambda: turns._waiting, "the answer waits")
                publish = threading.Thread(target=publish_confirmed, args=(broker,), daemon=True)
                assert staged(broker, stages) == 2000, "one slice of the five"
                broker.set_alarm("memory", on=False)
                written.result(WAIT_S)
                publish.start()
                publish.join(WAIT_S)
        finally:
            broker.set_alarm("memory", on=False)
        assert staged(broker, stages) == 10_000

    def test_staged_rows_count_as_memory(self, broker: Broker, bulk: Bulk) -> None:
        before = broker.call(lambda: broker.server.broker.memory_bytes)
        rows = [(b"", b"q", HEADER, bytes(10_000))] * 100
        bulk.write(StageDescriptor("/", "counted", 0, "task", 60.0), rows)
        grown = broker.call(lambda: broker.server.broker.memory_bytes) - before
        assert grown >= 1_000_000


def staged(broker: Broker, stages: object) -> int:
    return broker.call(
        lambda: sum(part.rows for parts in stages._stages.values() for part in parts if part.query == "held")
    )


def test_the_process_of_the_endpoint_is_one_of_the_brokers_helpers(broker: Broker) -> None:
    assert broker.server.helpers() == [broker.endpoint.pid]


class TestOneProcess:
    """The process without a broker: whoever asks for a login gets one."""

    @pytest.fixture
    def serve(self, tmp_path: Path) -> Iterator[Callable[..., int]]:
        servers: list[process.FlightProcess] = []
        ours, brokers = socket.socketpair()

        def start(limits: Limits | None = None, calls_max: int = 512, unverified_max: int = 64) -> int:
            settings = process_protocol.ProcessSettings(
                directory=str(tmp_path),
                host="127.0.0.1",
                port=0,
                tls_certificate=None,
                tls_key=None,
                message_max_bytes=MIB,
                memory_max_bytes=1 << 40,
                limits=replace(limits or Limits(), calls_max=calls_max, unverified_calls_max=unverified_max),
            )
            line = BrokerChannel(ours)
            line.send_start_result(process_protocol.Ready(0))
            threading.Thread(target=line.listen, daemon=True).start()
            threading.Thread(target=let_in, args=(brokers,), daemon=True).start()
            servers.append(process.FlightProcess(settings, line, NO_LIMIT))
            return servers[0].port

        with ours, brokers:
            yield start
            for each in servers:
                each.shutdown()
            brokers.shutdown(socket.SHUT_RDWR)

    def test_a_socket_that_says_nothing_is_closed(self, serve: Callable[..., int]) -> None:
        with socket.create_connection(("127.0.0.1", serve(Limits(unknown_s=0.2))), timeout=WAIT_S) as silent:
            while silent.recv(4096):
                pass

    def test_a_call_without_a_login_that_is_never_finished_is_closed(self, serve: Callable[..., int]) -> None:
        """What an HTTP/2 client says first, and then nothing more."""
        with socket.create_connection(("127.0.0.1", serve(Limits(unknown_s=0.2))), timeout=WAIT_S) as slow:
            slow.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
            while slow.recv(4096):
                pass

    def test_a_client_that_was_quiet_for_too_long_is_connected_anew_by_its_next_call(
        self, serve: Callable[..., int]
    ) -> None:
        port = serve(Limits(silent_s=0.2))
        bulk = Bulk(port)
        assert bulk.ask(actions.Look("/", "q")).text == "nothing is here"
        wait_until(lambda: not connections_to(port))
        assert bulk.ask(actions.Look("/", "q")).text == "nothing is here"

    def test_calls_beyond_so_many_are_told_to_come_later(self, serve: Callable[..., int]) -> None:
        port = serve(calls_max=2)
        assert refused(port) == "nothing is here"
        writers: list[flight.FlightStreamWriter] = []

        def are_too_many() -> bool:
            """Begin one more write: the look before may still have had its slot when the last one came."""
            writers.append(begun_write(Bulk(port)))
            return "2 calls are under way" in refused(port)

        wait_until(are_too_many)
        for writer in writers:
            with pytest.raises(flight.FlightError):
                writer.close()
        wait_until(lambda: refused(port) == "nothing is here")

    def test_strangers_take_no_place_from_clients_and_soon_have_to_go(
        self, serve: Callable[..., int]
    ) -> None:
        port = serve(Limits(unknown_s=3600.0, crowded_s=0.1), unverified_max=2)
        assert refused(port) == "nothing is here"
        with ExitStack() as stack:

            def knock() -> socket.socket:
                made = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=WAIT_S))
                made.sendall(begun_call("mallory:guess"))
                return made

            first = knock()
            wait_until(lambda: knock() and is_over(first))
            assert refused(port) == "nothing is here"


def test_a_process_with_far_too_much_memory_says_so_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few bytes that a client has compressed can become gigabytes before anybody sees them."""
    ours, brokers = socket.socketpair()
    with ours, brokers:
        line = BrokerChannel(ours)
        line.send_start_result(process_protocol.Ready(1))
        memory = Memory(1000, own_bytes=lambda pid: 1001, give_back=lambda: None)
        monkeypatch.setattr(process_limits.os, "_exit", lambda code: (_ for _ in ()).throw(SystemExit(code)))
        guard = process_limits._Guard(1, ConnectionWatcher(Limits()), line, memory)
        with pytest.raises(SystemExit):
            guard.run()
        stream = brokers.makefile("rb")
        said = [
            process_protocol.read_question(stream.read(process_protocol.LENGTH.unpack(stream.read(4))[0]))[1]
            for _ in range(2)
        ]
    assert said[1] == process_protocol.Noted("the process exits: its memory exceeds 1000 bytes")


def begun_write(bulk: Bulk) -> flight.FlightStreamWriter:
    command = flight.FlightDescriptor.for_command(tickets.encode(STAGE))
    writer, _ = bulk.client.do_put(command, schemas.WRITE, bulk.options)
    return writer


def is_over(connection: socket.socket) -> bool:
    """Whether the other side has closed it; what it has said before is passed over."""
    while select.select([connection], [], [], 0)[0]:
        if not connection.recv(4096):
            return True
    return False


def begun_call(login: str) -> bytes:
    """A write of which the headers come, and nothing more: HTTP/2 as a client would send it."""
    token = "Basic " + base64.b64encode(login.encode()).decode()
    fields = {":method": "POST", ":scheme": "http", ":path": "/arrow.flight.protocol.FlightService/DoPut"}
    fields |= {":authority": "localhost", "te": "trailers", "content-type": "application/grpc"}
    fields |= {"authorization": token}
    headers = b"".join(
        b"\x00" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()
        for name, value in fields.items()
    )
    settings = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    frame = len(headers).to_bytes(3) + b"\x01\x04" + (1).to_bytes(4) + headers
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings + frame


def connections_to(port: int) -> list[object]:
    with OwnSockets(port).accepted() as found:
        return list(found)


def let_in(end: socket.socket) -> None:
    """The broker's end: every login is good, and nothing else is possible."""
    with suppress(OSError, ValueError), end.makefile("rb") as stream:  # until the test closes its end
        while len(head := stream.read(process_protocol.LENGTH.size)) == process_protocol.LENGTH.size:
            number, question = process_protocol.read_question(
                stream.read(process_protocol.LENGTH.unpack(head)[0])
            )
            if isinstance(question, process_protocol.Login):
                end.sendall(process_protocol.frame(number, process_protocol.LoggedIn(True)))
            elif number:
                refused = process_protocol.Answered(actions.encode(actions.Refused(404, "nothing is here")))
                end.sendall(process_protocol.frame(number, refused))


def refused(port: int) -> str:
    try:
        return Bulk(port).ask(actions.Look("/", "q")).text
    except flight.FlightError as error:
        return str(error)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
