"""Clients whose certificate is refused: what they are told, and the log lines about them.

Owns the sentence for each reason, and the limit on lines: whoever can reach the port can fail as often as
they like. The rule: errors that no operator can do anything about, as those of scanners, are not logged.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

log = logging.getLogger("leveret")

_LINES_MAX: Final = 10
"""Lines in `_PERIOD_S`."""
_PERIOD_S: Final = 60.0
_NO_CERTIFICATE: Final = "PEER_DID_NOT_RETURN_A_CERTIFICATE"
_TOLD: Final = ("UNSUPPORTED_PROTOCOL", "NO_SHARED_CIPHER")
_REASONS: Final = {
    3: "tls.revoked has no revocation list of the authority that issued it",
    7: "its signature is wrong",
    9: "it is not valid yet",
    10: "it has expired",
    12: "the revocation list of its authority has expired; renew tls.revoked",
    18: "it is signed by itself, and is not in tls.client_authority",
    19: "its authority is not in tls.client_authority",
    20: "its authority is not in tls.client_authority",
    21: "its authority is not in tls.client_authority",
    23: "it is revoked",
    26: "it is not made for clients (extended key usage)",
}
"""By OpenSSL's X509_V_ERR numbers."""


def refusal(error: ssl.SSLError) -> str:
    """Return why a client's certificate is refused, or an empty text if the error is of another kind."""
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = _REASONS.get(error.verify_code, error.verify_message)
        return f"the client's certificate is refused: {reason}"
    return "the client has no certificate, and one is required" if error.reason == _NO_CERTIFICATE else ""


when_refused: ContextVar[Callable[[ssl.SSLError], None]] = ContextVar("when_refused")
"""Called in the context of a connection when its handshake fails."""


class TellingHandshake(ssl.SSLObject):
    """A TLS handshake that tells the client why it failed.

    asyncio closes the socket without sending the alert that OpenSSL has written. After a wait for bytes it
    sends everything, so a failure is first shown as such a wait. It ends when the client hangs up or sends
    more, and at last with the timeout of the handshake.
    """

    _failure: ssl.SSLError | None = None

    def do_handshake(self) -> None:
        if self._failure is not None:
            raise self._failure
        try:
            super().do_handshake()
        except ssl.SSLError as error:
            if not refusal(error) and error.reason not in _TOLD:
                raise
            self._failure = error
            when_refused.get()(error)
            raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, str(error)) from error


class RefusalLog:
    """`refusals.note("10.0.0.7", error)`; at most ten lines a minute are logged."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns seconds."""
        self._clock = clock
        self._began_s = float("-inf")
        self._count = 0

    def note(self, address: str, error: ssl.SSLError) -> None:
        sentence = refusal(error)
        if not sentence:
            return
        now_s = self._clock()
        if now_s - self._began_s >= _PERIOD_S:
            if self._count > _LINES_MAX:
                log.warning("%d more TLS clients were refused", self._count - _LINES_MAX)
            self._began_s, self._count = now_s, 0
        self._count += 1
        if self._count <= _LINES_MAX:
            log.warning("%s: %s", address, sentence)
        if self._count == _LINES_MAX:
            log.warning("further refused TLS clients are counted, and not logged for %d s", int(_PERIOD_S))
