"""Flight calls against a server that goes away, refuses, and loses messages when the test says so."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from pyarrow import flight

from leveret.flight import actions, schemas, tickets
from leveret.spark import flight_calls as calls_module
from leveret.spark.endpoint import Endpoint
from leveret.spark.errors import BrokerAway, BrokerRefused, DataLost, SparkSideError
from leveret.spark.flight_calls import Calls
from leveret.spark.options import SourceOptions
from leveret.spark.read_tasks import Messages, read_messages
from tests.processes import WAIT_S

OPTIONS = SourceOptions.parse(
    {"url": "amqp://me:s3cret@127.0.0.1:1/", "queue": "q", "brokerTimeout": "5s", "cursor": "c"}
)

LOGIN = "Basic bWU6czNjcmV0"
"""me:s3cret"""


class Pretended(flight.FlightServerBase):
    """Answers with what the test puts into `answers`; reads give the offsets that were asked for."""

    def __init__(self, location: str = "grpc+tcp://127.0.0.1:0", **tls) -> None:
        self.logins: list[str] = []
        super().__init__(location, middleware={"login": _Logins(self.logins)}, **tls)
        self.answers: list[actions.Answer | Exception] = []
        self.reads: list[list[tuple[int, int]]] = []
        self.cuts: list[Exception] = []
        """After two messages, a read ends with the next of these."""
        self.missing: set[int] = set()

    def do_action(self, context, action):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return [actions.encode(answer)]

    def do_get(self, context, ticket):
        wanted = tickets.decode_ticket(ticket.ticket)
        self.reads.append(tickets.unpack_ranges(wanted.ranges))
        offsets = [n for start, stop in self.reads[-1] for n in range(start, stop) if n not in self.missing]
        return flight.GeneratorStream(schemas.READ, self._batches(offsets))

    def _batches(self, offsets: list[int]) -> Iterator[pa.RecordBatch]:
        for number, offset in enumerate(offsets):
            if number == 2 and self.cuts:
                raise self.cuts.pop(0)
            yield pa.record_batch([[offset], [0], [0], [b""], [b"q"], [b"m%d" % offset]], schema=schemas.READ)


class _Logins(flight.ServerMiddlewareFactory):
    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self._seen = seen

    def start_call(self, info, headers):
        self._seen += headers["authorization"]
        if headers["authorization"] != [LOGIN]:
            raise flight.FlightUnauthenticatedError("who?")


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(calls_module, "find", _nobody)
    with Pretended() as server:
        yield server


def _nobody(options: object, timeout_s: float) -> Endpoint:
    raise BrokerAway("it is pretended")


def endpoint(server: Pretended, options: SourceOptions = OPTIONS) -> Endpoint:
    return Endpoint(options, "Leveret", f"grpc+tcp://127.0.0.1:{server.port}")


def messages(server: Pretended, *ranges: tuple[int, int]) -> Messages:
    return Messages(f"grpc+tcp://127.0.0.1:{server.port}", "q", 1, tickets.pack_ranges(ranges))


def away() -> flight.FlightUnavailableError:
    return flight.FlightUnavailableError("gone for lunch")


def test_a_request_is_asked_again_until_there_is_an_answer(server):
    server.answers = [away(), flight.FlightTimedOutError("slow"), actions.Done()]
    with Calls(endpoint(server)) as calls:
        assert calls.ask(actions.Release("/", "q", "c"), actions.Done) == actions.Done()


def test_a_broker_that_stays_away_is_given_up_with_a_sentence(server):
    server.answers = [away() for _ in range(100)]
    short = SourceOptions.parse({"url": OPTIONS.url, "queue": "q", "brokerTimeout": "0.1s"})
    with (
        Calls(endpoint(server, short)) as calls,
        pytest.raises(BrokerAway, match=r"127.0.0.1:1/ did not answer Flight calls for 0.1 s") as raised,
    ):
        calls.ask(actions.Release("/", "q", "c"), actions.Done)
    assert "s3cret" not in str(raised.value)


def test_a_broker_that_came_back_elsewhere_is_found(server, monkeypatch):
    monkeypatch.setattr(calls_module, "find", lambda options, timeout_s: endpoint(server))
    server.answers = [actions.Done()]
    gone = Endpoint(OPTIONS, "Leveret", "grpc+tcp://127.0.0.1:1")
    with Calls(gone) as calls:
        assert calls.ask(actions.Release("/", "q", "c"), actions.Done) == actions.Done()
        assert calls.location == f"grpc+tcp://127.0.0.1:{server.port}"


def test_a_broker_that_is_found_at_another_url_gets_the_login_of_that(server, monkeypatch):
    both = SourceOptions.parse({"url": f"amqp://other:hidden@127.0.0.1:2/,{OPTIONS.url}", "queue": "q"})
    there = Endpoint(both, "Leveret", f"grpc+tcp://127.0.0.1:{server.port}", answered=1)
    monkeypatch.setattr(calls_module, "find", lambda options, timeout_s: there)
    server.answers = [actions.Done()]
    with Calls(Endpoint(both, "Leveret", "grpc+tcp://127.0.0.1:1")) as calls:
        assert calls.ask(actions.Release("/", "q", "c"), actions.Done) == actions.Done()
    assert server.logins == [LOGIN]


@pytest.mark.real
@pytest.mark.skipif(shutil.which("openssl") is None, reason="Install openssl to make a certificate.")
def test_a_server_with_tls_is_trusted_by_the_file_that_is_given(tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "ca.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    make += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    make += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(make, check=True, capture_output=True, timeout=WAIT_S)
    pair = (certificate.read_bytes(), key.read_bytes())
    options = SourceOptions.parse({"url": OPTIONS.url, "queue": "q", "tlsCaFile": str(certificate)})
    with Pretended("grpc+tls://localhost:0", tls_certificates=[pair]) as server:
        server.answers = [actions.Done()]
        with Calls(Endpoint(options, "Leveret", f"grpc+tls://localhost:{server.port}")) as calls:
            assert calls.ask(actions.Release("/", "q", "c"), actions.Done) == actions.Done()
        stranger = Endpoint(OPTIONS, "Leveret", f"grpc+tls://localhost:{server.port}")
        with Calls(stranger) as calls, pytest.raises(BrokerRefused, match=r"is not trusted \(.* tlsCaFile"):
            calls.ask(actions.Release("/", "q", "c"), actions.Done)


def test_a_refusal_is_not_asked_again(server):
    server.answers = [actions.Refused(404, "no queue 'q'", "declare it", "gone")]
    with Calls(endpoint(server)) as calls, pytest.raises(BrokerRefused) as raised:
        calls.ask(actions.Release("/", "q", "c"), actions.Done)
    assert str(raised.value) == "no queue 'q' (declare it)"
    assert (raised.value.code, raised.value.kind) == (404, "gone")


def test_an_answer_to_another_question_is_an_error(server):
    server.answers = [actions.Done()]
    with Calls(endpoint(server)) as calls, pytest.raises(SparkSideError, match="answered Release with Done"):
        calls.ask(actions.Release("/", "q", "c"), actions.Leased)


BUSY = actions.Refused(541, "cannot write wal/1: No space left on device", "Free some space", "busy")


def test_a_broker_that_can_not_write_now_is_asked_again(server):
    server.answers = [BUSY, BUSY, actions.Done()]
    with Calls(endpoint(server)) as calls:
        assert calls.ask(actions.Release("/", "q", "c"), actions.Done) == actions.Done()


def test_and_what_it_said_is_shown_when_it_never_can(server, monkeypatch):
    monkeypatch.setattr(calls_module._Patience, "wait", lambda _: False)
    server.answers = [BUSY]
    with Calls(endpoint(server)) as calls, pytest.raises(BrokerAway, match="No space left on device"):
        calls.ask(actions.Release("/", "q", "c"), actions.Done)


def test_a_read_for_which_it_can_not_write_now_waits_and_goes_on(server):
    """What is in memory only must be written before it can be read."""
    server.cuts = [flight.FlightServerError(BUSY.text, actions.encode(BUSY))]
    rows = read_messages(messages(server, (0, 5)), OPTIONS, endpoint(server))
    assert [offset for batch in rows for offset in batch.column("offset").to_pylist()] == [0, 1, 2, 3, 4]


def test_a_stage_that_it_can_not_write_now_is_written_again_by_its_task(server):
    error = flight.FlightServerError(BUSY.text, actions.encode(BUSY))
    assert isinstance(calls_module._explained(error, endpoint(server)), BrokerAway)


def test_a_wrong_password_is_refused_without_being_shown(server):
    wrong = SourceOptions.parse({"url": "amqp://me:wr0ng@127.0.0.1:1/", "queue": "q"})
    with Calls(endpoint(server, wrong)) as calls, pytest.raises(BrokerRefused) as raised:
        calls.ask(actions.Release("/", "q", "c"), actions.Done)
    assert "refused the login" in str(raised.value)
    assert "wr0ng" not in str(raised.value)


@pytest.mark.parametrize("cut", [away, lambda: flight.FlightInternalError("RST_STREAM")])
def test_a_read_that_was_cut_goes_on_after_the_last_message(server, cut: Callable[[], Exception]):
    server.cuts = [cut(), cut()]
    rows = read_messages(messages(server, (3, 6), (8, 11)), OPTIONS, endpoint(server))
    assert [row for batch in rows for row in batch.column("offset").to_pylist()] == [3, 4, 5, 8, 9, 10]
    assert server.reads == [[(3, 6), (8, 11)], [(5, 6), (8, 11)], [(9, 11)]]


def test_a_read_that_was_cut_at_its_very_end_is_whole(server):
    server.cuts = [away()]
    rows = read_messages(messages(server, (3, 5)), OPTIONS, endpoint(server))
    assert sum(batch.num_rows for batch in rows) == 2


def test_fewer_messages_than_planned_fail_the_task_unless_that_is_allowed(server):
    server.missing = {4}
    with pytest.raises(DataLost, match="1 of 3 messages of queue 'q' that were planned are not there"):
        list(read_messages(messages(server, (3, 6)), OPTIONS, endpoint(server)))
    lenient = SourceOptions.parse({"url": OPTIONS.url, "queue": "q", "failOnDataLoss": "false"})
    rows = read_messages(messages(server, (3, 6)), lenient, endpoint(server))
    assert [batch.column("offset").to_pylist() for batch in rows] == [[3], [5]]


def test_what_the_broker_says_in_the_middle_of_a_read_is_the_error(server):
    refused = actions.Refused(404, "2 messages are gone", "look for them", "gone")
    server.cuts = [flight.FlightServerError("x", actions.encode(refused))]
    with pytest.raises(DataLost, match=r"2 messages are gone \(look for them\)"):
        list(read_messages(messages(server, (3, 9)), OPTIONS, endpoint(server)))


def test_partitions_and_endpoints_show_no_password(server):
    assert "s3cret" not in repr(messages(server, (3, 9)))
    assert "s3cret" not in repr(endpoint(server))
