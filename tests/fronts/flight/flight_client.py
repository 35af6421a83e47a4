"""A client of the Flight endpoint, bare: one call, one answer."""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa
from pyarrow import flight

from leveret.flight import actions, schemas, tickets
from leveret.flight.tickets import ReadTicket, StageDescriptor


class Bulk:
    """`Bulk(port).ask(actions.Open(...))`."""

    def __init__(self, port: int, user: str = "guest", password: str = "guest", **options: Any) -> None:
        scheme = "grpc+tls" if options else "grpc+tcp"
        self.client = flight.FlightClient(f"{scheme}://127.0.0.1:{port}", **options)
        token = base64.b64encode(f"{user}:{password}".encode())
        self.headers = [(b"authorization", b"Basic " + token)]
        self.options = flight.FlightCallOptions(headers=self.headers, timeout=30)

    def ask(self, request: actions.Request) -> Any:
        """The answer; a refusal is one too."""
        action = flight.Action(actions.ACTION, actions.encode(request))
        (result,) = self.client.do_action(action, self.options)
        return actions.decode_answer(result.body.to_pybytes())

    def read(self, ticket: ReadTicket) -> pa.Table:
        return self.client.do_get(flight.Ticket(tickets.encode(ticket)), self.options).read_all()

    def write(self, descriptor: StageDescriptor, rows: list[tuple[bytes, bytes, bytes, bytes]]) -> None:
        """The size of a body is put into its content header."""
        sized = [
            (exchange, key, header[:4] + len(body).to_bytes(8) + header[12:], body)
            for exchange, key, header, body in rows
        ]
        self.write_as_they_are(descriptor, sized)

    def write_as_they_are(
        self, descriptor: StageDescriptor, rows: list[tuple[bytes, bytes, bytes, bytes]]
    ) -> None:
        command = flight.FlightDescriptor.for_command(tickets.encode(descriptor))
        writer, _ = self.client.do_put(command, schemas.WRITE, self.options)
        columns = [pa.array(column, pa.binary()) for column in zip(*rows, strict=True)]
        writer.write_batch(pa.record_batch(columns, schema=schemas.WRITE))
        writer.close()


def refusal(error: flight.FlightError) -> actions.Refused:
    """What the broker said, where a call failed."""
    answer = actions.decode_answer(error.extra_info)
    assert isinstance(answer, actions.Refused)
    return answer
