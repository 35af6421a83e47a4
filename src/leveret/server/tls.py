"""TLS for AMQP and HTTP: the certificate of the broker, and where it is shown."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Final

OFF: Final = -1
"""In the place of a port: nobody listens there."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    port: int
    http_port: int
    certificate: str
    """Path of a PEM file with the chain."""
    key: str

    def context(self) -> ssl.SSLContext:
        """TLS 1.2 or later; `OSError` if certificate and key can't be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.load_into(context)
        return context

    def load_into(self, context: ssl.SSLContext) -> None:
        """Show the certificate, as its files are now, to clients that connect from now on; or `OSError`."""
        try:
            context.load_cert_chain(self.certificate, self.key, password="")  # nobody is there to be asked
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
            raise OSError(
                f"certificate {self.certificate} and key {self.key} can't be used: {reason} (both are PEM "
                "files, the key is that of the certificate and has no password)"
            ) from error
