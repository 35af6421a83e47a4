"""Calls to the broker's Flight endpoint: repeated while the broker is away, explained when it refuses.

Every request may be sent twice (see `flight.actions`), so a lost request is sent again until `brokerTimeout`.
A read continues behind the last message that came. The endpoint is looked up before each new try, because a
broker that comes back may have another Flight port. Callers decide what an answer means.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, TypeGuard, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from leveret.flight import actions, schemas, tickets
from leveret.spark import ranges
from leveret.spark.endpoint import Endpoint, find
from leveret.spark.errors import BrokerAway, BrokerRefused, SparkSideError

AnswerT = TypeVar("AnswerT", bound=actions.Answer)

_AWAY: Final = (
    flight.FlightUnavailableError,
    flight.FlightTimedOutError,
    flight.FlightInternalError,
    flight.FlightCancelledError,
)
_DENIED: Final = (flight.FlightUnauthenticatedError, flight.FlightUnauthorizedError)
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0
_ANSWER_S: Final = 30.0
_LIVENESS: Final = [
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),
    ("grpc.enable_retries", 0),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]
"""Keepalives show that a connection was cut silently; gRPC's own retries are off, since `Calls` retries."""


class Calls:
    """`Calls(find(options)).ask(Open(...), Opened)`; `close()` it, or use it in a `with` block."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._client: flight.FlightClient | None = None

    def __enter__(self) -> Calls:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def location(self) -> str:
        assert self._endpoint.location is not None, "this broker has no Flight endpoint"
        return self._endpoint.location

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def ask(self, request: actions.Request, kind: type[AnswerT]) -> AnswerT:
        """Return the answer, which must be of this kind; raise `BrokerRefused` if the broker refuses."""
        action = flight.Action(actions.ACTION, actions.encode(request))
        patience = _Patience(self._endpoint)
        while True:
            try:
                results = self._connected().do_action(action, self._call_options(_ANSWER_S))
                answer = actions.decode_answer(next(iter(results)).body.to_pybytes())
                if not _is_busy(answer) or not patience.wait():
                    break
            except (flight.FlightError, pa.ArrowException, OSError) as error:
                self._give_up_or_wait(error, patience)
        if isinstance(answer, actions.Refused):
            raise refusal(answer)
        if not isinstance(answer, kind):
            name = type(answer).__name__
            raise SparkSideError(
                f"the broker answered {type(request).__name__} with {name}, not {kind.__name__}",
                hint="use one version of Leveret for Spark and broker",
            )
        return answer

    def read(self, ticket: tickets.ReadTicket) -> Iterator[pa.RecordBatch]:
        """Yield batches of messages, offsets ascending, each message once, also across lost connections."""
        patience = _Patience(self._endpoint)
        while True:
            try:
                encoded = flight.Ticket(tickets.encode(ticket))
                for chunk in self._connected().do_get(encoded, self._call_options()):
                    batch = chunk.data
                    if batch.num_rows:
                        last = batch.column(0)[-1].as_py()
                        ticket = msgspec.structs.replace(ticket, ranges=ranges.after(ticket.ranges, last))
                        patience = _Patience(self._endpoint)
                        yield batch
                return
            except (flight.FlightError, pa.ArrowException, OSError) as error:
                self._give_up_or_wait(error, patience)
            if not ticket.ranges:
                return

    def piece(self, ticket: tickets.PieceTicket) -> Iterator[pa.RecordBatch]:
        """Yield the batches of one piece of a store snapshot; if the call fails, Spark retries the task."""
        encoded = flight.Ticket(tickets.encode(ticket))
        try:
            for chunk in self._connected().do_get(encoded, self._call_options()):
                yield chunk.data
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise _explained(error, self._endpoint) from None

    def stage(self, descriptor: tickets.StageDescriptor, batches: Iterable[pa.RecordBatch]) -> int:
        """Stage batches of `schemas.WRITE`, which can be read once only, and return the number of rows."""
        count = 0
        try:
            encoded = flight.FlightDescriptor.for_command(tickets.encode(descriptor))
            writer, answers = self._connected().do_put(encoded, schemas.WRITE, self._call_options())
            with writer:
                for batch in batches:
                    writer.write_batch(batch)
                    count += batch.num_rows
                writer.done_writing()
                while answers.read() is not None:
                    pass
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise _explained(error, self._endpoint) from None
        return count

    # the connection

    def _connected(self) -> flight.FlightClient:
        if self._client is None:
            certificates = self._certificates() if self.location.startswith("grpc+tls") else {}
            self._client = flight.FlightClient(self.location, generic_options=_LIVENESS, **certificates)
        return self._client

    def _certificates(self) -> dict[str, bytes]:
        """Return the authorities to trust, and the client's certificate if the URL names one."""
        tls = self._endpoint.login.tls_options
        files = {"tls_root_certs": self._endpoint.options.tls_ca_file or tls.ca_file}
        if tls.certificate_file:
            files |= {"cert_chain": tls.certificate_file, "private_key": tls.key_file or tls.certificate_file}
        return {name: Path(file).read_bytes() for name, file in files.items() if file}

    def _call_options(self, timeout_s: float | None = None) -> flight.FlightCallOptions:
        login = self._endpoint.login
        encoded = base64.b64encode(f"{login.user}:{login.password}".encode())
        return flight.FlightCallOptions(timeout=timeout_s, headers=[(b"authorization", b"Basic " + encoded)])

    def _give_up_or_wait(self, error: Exception, patience: _Patience) -> None:
        refused = _refused(error)
        final = refused is not None or not isinstance(error, _AWAY) or _is_not_trusted(error)
        if final and not _is_busy(refused):
            raise _explained(error, self._endpoint) from None
        self.close()
        if not patience.wait():
            raise _explained(error, self._endpoint) from None
        self._endpoint = patience.find_again() or self._endpoint


class _Patience:
    """Waits for a broker that is away, with growing pauses, until `brokerTimeout`."""

    def __init__(self, endpoint: Endpoint, clock: Callable[[], float] = time.monotonic) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._deadline_s: float | None = None
        self._pause_s = _FIRST_PAUSE_S

    def wait(self) -> bool:
        """Pause and return True; return False if `brokerTimeout` has passed since the first failure."""
        now_s = self._clock()
        if self._deadline_s is None:
            self._deadline_s = now_s + self._endpoint.options.broker_timeout_s
        if now_s >= self._deadline_s:
            return False
        time.sleep(min(self._pause_s, self._deadline_s - now_s))
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
        return True

    def find_again(self) -> Endpoint | None:
        """Return the broker's present endpoint; None if it does not answer or has no Flight endpoint yet."""
        try:
            return find(self._endpoint.options, timeout_s=_LONGEST_PAUSE_S)
        except BrokerAway:
            return None


def refusal(refused: actions.Refused) -> SparkSideError:
    """Return a refusal as an error. A busy broker counts as away, so callers try again."""
    if _is_busy(refused):
        return BrokerAway(refused.text, hint=refused.hint)
    return BrokerRefused(refused.text, code=refused.code, kind=refused.kind, hint=refused.hint)


def _is_busy(answer: actions.Answer | None) -> TypeGuard[actions.Refused]:
    """Return whether the broker can't write for the time being, for example because its disk is full."""
    return isinstance(answer, actions.Refused) and answer.kind == "busy"


def _is_not_trusted(error: Exception) -> bool:
    """Return whether TLS refused the certificate, which gRPC reports like a broker that is away."""
    return isinstance(error, _AWAY) and "certificate verify failed" in str(error).lower().replace("_", " ")


def _refused(error: Exception) -> actions.Refused | None:
    """Return the broker's refusal that the error carries; None if the error has another origin."""
    encoded = getattr(error, "extra_info", None)
    if not encoded:
        return None
    try:
        answer = actions.decode_answer(encoded)
    except msgspec.DecodeError:
        return None
    return answer if isinstance(answer, actions.Refused) else None


def _explained(error: Exception, endpoint: Endpoint) -> SparkSideError:
    refused = _refused(error)
    if refused is not None:
        return refusal(refused)
    where = endpoint.options.where
    if isinstance(error, _DENIED):
        hint = "check user, password and permissions"
        return BrokerRefused(f"the broker at {where} refused the login for Flight", code=403, hint=hint)
    if _is_not_trusted(error):
        return BrokerRefused(
            f"the certificate of the Flight endpoint of {where} is not trusted",
            code=403,
            hint="set option tlsCaFile to the certificate of its issuer, on driver and executors",
        )
    if isinstance(error, _AWAY):
        waited_s = endpoint.options.broker_timeout_s
        return BrokerAway(
            f"the broker at {where} did not answer Flight calls for {waited_s:g} s",
            hint="check that it runs and that its Flight port can be reached from here; see brokerTimeout",
        )
    return SparkSideError(f"the broker at {where} failed: {str(error).partition('. Detail:')[0]}")
