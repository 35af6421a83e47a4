"""TLS of a client: what a URL's query says about it, and one sentence for each way in which it fails.

    amqps://broker.example/?cacertfile=ca.pem&certfile=me.pem&keyfile=me.key&auth_mechanism=external

The names are those of RabbitMQ's clients: `cacertfile`, `certfile`, `keyfile`, `verify` (`verify_peer` or
`verify_none`) and `server_name_indication` (a host name, or `disable` for any). The rule: without options,
the system's authorities are trusted, and the certificate must be that of the host.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_ANY_HOST: Final = "disable"
_VERIFY: Final = ("verify_peer", "verify_none")
_NOT_TRUSTED: Final = (
    "its authority is not trusted, or the broker does not send the certificates between it and a trusted "
    "authority; trust the authority with cacertfile in the URL"
)
_CERTIFICATE_PROBLEMS: Final = {
    7: "its signature is wrong",
    9: "it is not valid yet; check the clock of this machine",
    10: "it has expired; the broker needs another one",
    18: "it is signed by itself, and is not trusted; trust it with cacertfile in the URL",
    19: "its authority signs itself, and is not trusted; trust the authority with cacertfile in the URL",
    20: _NOT_TRUSTED,
    21: _NOT_TRUSTED,
    23: "it is revoked",
    26: "it is not made for servers (extended key usage)",
}
"""By OpenSSL's X509_V_ERR numbers. Those of a wrong host have a text of OpenSSL that names the host."""
_REFUSALS: Final = {
    "CERTIFICATE_REQUIRED": "it wants a certificate of this client; give certfile and keyfile in the URL",
    "HANDSHAKE_FAILURE": "it wants a certificate of this client, or no cipher is common to both",
    "CERTIFICATE_EXPIRED": "the certificate of this client has expired",
    "CERTIFICATE_REVOKED": "the certificate of this client is revoked",
    "UNKNOWN_CA": "it does not know the authority of this client's certificate",
    "BAD_CERTIFICATE": "the certificate of this client is not valid",
    "UNSUPPORTED_CERTIFICATE": "the certificate of this client is not made for clients",
    "CERTIFICATE_UNKNOWN": "the certificate of this client is not accepted",
    "DECRYPT_ERROR": "the key of this client is that of another certificate",
    "PROTOCOL_VERSION": "it wants another version of TLS",
}
"""By the end of the names of alerts (RFC 8446, section 6.2)."""
_PLAIN_ANSWERS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL")


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """`TlsOptions.parse(parse_qs("cacertfile=ca.pem"))`; the files are PEM files, and are read late."""

    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    verifies: bool = True
    server_name: str = ""

    @classmethod
    def parse(cls, query: Mapping[str, list[str]]) -> TlsOptions:
        given = {name: values[0] for name, values in query.items()}
        verify = given.get("verify", _VERIFY[0])
        if verify not in _VERIFY:
            raise ValueError(f"verify is {' or '.join(_VERIFY)}, not {verify!r}")
        if given.get("keyfile") and not given.get("certfile"):
            raise ValueError("keyfile needs certfile, the certificate of the key")
        return cls(
            ca_file=given.get("cacertfile", ""),
            certificate_file=given.get("certfile", ""),
            key_file=given.get("keyfile", ""),
            verifies=verify == _VERIFY[0],
            server_name=given.get("server_name_indication", ""),
        )

    def context(self) -> ssl.SSLContext:
        """Return a context; raise `ValueError` with one sentence if a file can't be used."""
        context = ssl.create_default_context()
        if self.ca_file:
            try:
                context = ssl.create_default_context(cafile=self.ca_file)
            except OSError as error:
                raise ValueError(f"cacertfile {self.ca_file} can't be used: {_reason(error)}") from error
        if not self.verifies or self.server_name == _ANY_HOST:
            context.check_hostname = False
        if not self.verifies:
            context.verify_mode = ssl.CERT_NONE
        if self.certificate_file:
            try:
                # An empty password, because otherwise OpenSSL asks for one on the terminal.
                context.load_cert_chain(self.certificate_file, self.key_file or None, password="")
            except (OSError, ValueError) as error:
                key = f" with key {self.key_file}" if self.key_file else ""
                sentence = f"certfile {self.certificate_file}{key} can't be used: {_reason(error)}"
                raise ValueError(sentence) from error
        return context

    def name_of(self, host: str) -> str:
        """Return the name that the broker's certificate must have."""
        return host if self.server_name in ("", _ANY_HOST) else self.server_name


def explained(error: BaseException, *, plain: str) -> str:
    """Return why TLS failed, as the end of a sentence; an empty text for other errors.

    `plain` says what to do about a port that does not speak TLS.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        # OpenSSL's own texts for a wrong host begin so: "Hostname mismatch, certificate is not valid for …".
        problem = _CERTIFICATE_PROBLEMS.get(error.verify_code, error.verify_message.rstrip("."))
        return f"the broker's certificate is refused: {problem}"
    if not isinstance(error, ssl.SSLError):
        return ""
    reason = error.reason or ""
    if reason in _PLAIN_ANSWERS:
        return f"the port does not speak TLS; {plain}"
    for alert, meaning in _REFUSALS.items():
        if reason.endswith(alert):
            return f"the broker refused the TLS handshake: {meaning}"
    return f"TLS failed: {reason or error}"


def _reason(error: Exception) -> str:
    """Return why a file can't be used; OpenSSL has a name for it and no sentence."""
    sentences = {
        "KEY_VALUES_MISMATCH": "the key is that of another certificate",
        "KEY_TYPE_MISMATCH": "the key is that of another certificate",
        "NO_CERTIFICATE_ASSIGNED": "the key is that of another certificate",
        "NO_CERTIFICATE_OR_CRL_FOUND": "there is no certificate in PEM form in it",
        "BAD_DECRYPT": "the key has a password",
        "BAD_PASSWORD_READ": "the key has a password",
    }
    reason = getattr(error, "reason", None)
    if reason is None and "PEM lib" in str(error):
        return "there is no certificate or no key without a password in PEM form"
    return sentences.get(reason or "", reason or getattr(error, "strerror", None) or str(error))
