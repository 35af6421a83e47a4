"""One HTTP connection: uvicorn's, with timeouts for slow clients.

This class adds what uvicorn lacks: timeouts for the header of a request, its body, and reading the answer;
the right status for a header that is too large; and an end for requests that break in the middle of an
answer. uvicorn's timeout for idle connections is not used: it is lost if an answer is sent before the end of
a body. The number of connections is limited in `leveret.server.http`.

    HEADER ──> BODY ──> ANSWER ──> IDLE ──> HEADER
                    UNSENT: the client does not read its answer
                    ENDING: closed, except for bytes not sent yet

Only `ANSWER` has no timeout: an answer may wait for the disk.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from enum import Enum, auto
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits and timeouts of HTTP clients on one port."""

    connections_max: int = 1000
    connections_per_address_max: int = 250
    header_max_bytes: int = 16 << 10
    """Largest request line with all header fields."""
    header_timeout_s: float = 10.0
    """From the start of a connection or a request to the end of its header."""
    body_timeout_s: float = 30.0
    """From the end of the header to the end of the body."""
    idle_timeout_s: float = 60.0
    """From an answer to the first byte of the next request."""
    send_timeout_s: float = 60.0
    """Time for which a client may read nothing of its answer."""
    tls_handshake_timeout_s: float = 10.0


_LINGER_S = 2.0
"""Time for which a refused client may go on sending: a close before would reset the connection."""


class _Phase(Enum):
    HEADER = auto()
    BODY = auto()
    ANSWER = auto()
    UNSENT = auto()
    IDLE = auto()
    LINGERING = auto()
    ENDING = auto()


class HttpConnection(H11Protocol):
    """The asyncio protocol of one HTTP connection."""

    def __init__(self, *, limits: HttpLimits, **uvicorn_arguments: Any) -> None:
        super().__init__(**uvicorn_arguments)
        self._limits = limits
        self._phase: _Phase | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._unsent_bytes = 0
        self._lingers = False
        """Whether the client was refused: received bytes are discarded."""

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._update_deadline()

    def data_received(self, data: bytes) -> None:
        """Feed a header in pieces: h11 checks its limit only between two pieces."""
        while data and not self._lingers and not self.transport.is_closing():
            size = len(data)
            if self.conn.their_state is h11.IDLE:
                size = max(1, self._limits.header_max_bytes - len(self.conn.trailing_data[0]))
            piece, data = data[:size], data[size:]
            super().data_received(piece)
        self._update_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        if self._deadline is not None:
            self._deadline.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._update_deadline()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._update_deadline()

    # for uvicorn

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update_deadline()

    def timeout_keep_alive_handler(self) -> None:
        """`_update_deadline` sets the timeout of idle connections instead."""

    def send_400_response(self, msg: str) -> None:
        """Refuse the request, with the status of h11's error that is being handled."""
        error = sys.exc_info()[1]
        hint = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        if hint == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
            msg = f"The header is larger than {self._limits.header_max_bytes} bytes."
        self._refuse(HTTPStatus(hint), msg)

    # deadlines

    def _update_deadline(self) -> None:
        """Set the timeout of the current phase if the phase has changed."""
        phase = self._current_phase()
        if phase is self._phase:
            return
        self._phase = phase
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        limit_s = {
            _Phase.HEADER: self._limits.header_timeout_s,
            _Phase.BODY: self._limits.body_timeout_s,
            _Phase.UNSENT: self._limits.send_timeout_s,
            _Phase.IDLE: self._limits.idle_timeout_s,
            _Phase.LINGERING: _LINGER_S,
            _Phase.ENDING: self._limits.send_timeout_s,
        }.get(phase)
        if limit_s is not None:
            self._unsent_bytes = self.transport.get_write_buffer_size()
            self._deadline = self.loop.call_later(limit_s, self._expire)

    def _current_phase(self) -> _Phase:
        if self.transport.is_closing():
            return _Phase.ENDING
        if self._lingers:
            return _Phase.LINGERING
        if self.flow.write_paused:
            return _Phase.UNSENT
        if self.conn.their_state is h11.SEND_BODY:
            return _Phase.BODY
        if self.cycle is not None and not self.cycle.response_complete:
            return _Phase.ANSWER
        if self.cycle is None or self.conn.trailing_data[0]:
            return _Phase.HEADER
        return _Phase.IDLE

    def _expire(self) -> None:
        phase, self._phase, self._deadline = self._phase, None, None
        unsent_bytes = self.transport.get_write_buffer_size()
        if phase is _Phase.IDLE or (phase is _Phase.HEADER and not self.conn.trailing_data[0]):
            # No request has begun, so nothing is answered.
            self.transport.close()
        elif phase is _Phase.HEADER:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, "The header of the request took too long.")
        elif phase is _Phase.BODY:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, "The body of the request took too long.")
        elif phase is _Phase.LINGERING:
            self.transport.close()
        elif unsent_bytes >= self._unsent_bytes:
            self.transport.abort()
            return
        self._update_deadline()

    def _refuse(self, status: HTTPStatus, sentence: str) -> None:
        """Send an error if no answer has begun, tell the application, and close the connection."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            # After an answer there is nothing to continue with.
            self.cycle.waiting_for_100_continue = False
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            has_request = self.conn.our_state is h11.SEND_RESPONSE
            body = b"" if has_request and self.scope["method"] == "HEAD" else sentence.encode()
            headers = [
                ("content-type", "text/plain; charset=utf-8"),
                ("content-length", str(len(body))),
                ("connection", "close"),
            ]
            for event in (
                h11.Response(status_code=status, headers=headers, reason=status.phrase),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self._lingers = self.transport.can_write_eof()
        if self._lingers:
            self.transport.write_eof()
        else:
            self.transport.close()
