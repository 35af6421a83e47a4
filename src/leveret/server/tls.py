"""TLS settings of AMQP and HTTP: the ports and the broker's certificate."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Final

OFF: Final = -1
"""Port number that means: do not listen."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    port: int
    http_port: int
    certificate: str
    """Path of a PEM file with the certificate chain."""
    key: str

    def context(self) -> ssl.SSLContext:
        """Return a context for TLS 1.2 or later; raise `OSError` if certificate and key can't be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.load_into(context)
        return context

    def load_into(self, context: ssl.SSLContext) -> None:
        """Read the certificate's files for connections from now on; raise `OSError` if they can't be used."""
        try:
            # An empty password, because otherwise OpenSSL asks for one on the terminal.
            context.load_cert_chain(self.certificate, self.key, password="")
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
            raise OSError(
                f"certificate {self.certificate} and key {self.key} can't be used: {reason} (both are PEM "
                "files, the key is that of the certificate and has no password)"
            ) from error
