"""TLS of AMQP and HTTP: the broker's certificate, which certificates clients must have, and whom they name.

    tls = CurrentTls(settings)      # raises `TlsError` with one sentence if a file can't be used
    context = tls.context           # for the next connection
    tls.replace(other_settings)     # open connections go on

Owns the sentences for files that are wrong. Reading certificates is left to `certificates`, clients whose
certificate is refused to `tls_refusals`. The rule: a context is made whole or not at all, and is never
changed afterwards, because OpenSSL can add an authority to a context but can't remove one.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeVar

from leveret.server.certificates import (
    Certificate,
    RevocationList,
    certificates_in,
    is_pem,
    revocation_lists_in,
)
from leveret.server.tls_refusals import TellingHandshake

T = TypeVar("T")

OFF: Final = -1
"""Port number that means: do not listen."""
NONE, WANTED, REQUIRED = "none", "wanted", "required"
_VERIFY: Final = {NONE: ssl.CERT_NONE, WANTED: ssl.CERT_OPTIONAL, REQUIRED: ssl.CERT_REQUIRED}
VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
DISTINGUISHED_NAME: Final = "distinguished_name"
_COMMON_NAME: Final = "common_name"
_ALTERNATIVE_NAME: Final = "subject_alternative_name_"
LOGIN_NAMES: Final = (
    DISTINGUISHED_NAME,
    _COMMON_NAME,
    *(f"{_ALTERNATIVE_NAME}{kind}" for kind in ("dns", "email", "uri", "ip")),
)
_DAY_S: Final = 86_400
_WARNED_S: Final = 30 * _DAY_S
"""Time before its end in which a certificate is warned about."""


class TlsError(OSError):
    """A file for TLS can't be used; the text is one sentence for the operator."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    port: int
    http_port: int
    certificate: str
    """Path of a PEM file with the certificate chain."""
    key: str
    client_authority: str = ""
    """Path of a PEM file with the authorities that issue clients' certificates."""
    client_certificates: str = NONE
    revoked: str = ""
    """Path of a PEM file with revocation lists of these authorities."""
    minimum_version: str = "1.2"
    login_from: str = DISTINGUISHED_NAME
    login_index: int = 0

    @property
    def asks_clients(self) -> bool:
        """Whether clients are asked for a certificate."""
        return self.client_certificates != NONE

    def context(self) -> ssl.SSLContext:
        """Return a context for new connections; raise `TlsError` if a file can't be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.sslobject_class = TellingHandshake
        context.minimum_version = VERSIONS[self.minimum_version]
        self._load_certificate(context)
        if self.asks_clients:
            _read(self.client_authority, "tls.client_authority", "certificate", certificates_in)
            _trust(context, self.client_authority, "tls.client_authority")
            # As in RabbitMQ, every authority in the file is trusted, also one that another has issued.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            context.verify_mode = _VERIFY[self.client_certificates]
            if self.revoked:
                _read(self.revoked, "tls.revoked", "revocation list", revocation_lists_in)
                _trust(context, self.revoked, "tls.revoked")
                context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        return context

    def _load_certificate(self, context: ssl.SSLContext) -> None:
        key = _bytes_of(self.key, "tls.key")
        chain = _read(self.certificate, "tls.certificate", "certificate", certificates_in)
        if b"ENCRYPTED" in key:
            raise TlsError(
                f"key {self.key} (tls.key) has a password, and the broker can't ask for one; write the key "
                "without its password into a file that only the broker can read"
            )
        if b"PRIVATE KEY-----" not in key:
            raise TlsError(f"{self.key} (tls.key) has no private key in PEM form")
        for number, (issued, issuer) in enumerate(pairwise(chain), 2):
            if issued.issuer != issuer.subject:
                raise TlsError(
                    f"certificate number {number} in {self.certificate} (tls.certificate) is "
                    f"'{issuer.distinguished_name}', and number {number - 1} was issued by "
                    f"'{issued.issuer_name}'; put the broker's certificate first, then that of its issuer, "
                    "and so on"
                )
        try:
            # An empty password, because otherwise OpenSSL asks for one on the terminal.
            context.load_cert_chain(self.certificate, self.key, password="")
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or str(error)
            if reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"):
                raise TlsError(
                    f"key {self.key} (tls.key) is that of another certificate than "
                    f"'{chain[0].distinguished_name}', the first in {self.certificate} (tls.certificate)"
                ) from error
            raise TlsError(
                f"certificate {self.certificate} and key {self.key} can't be used: {reason}"
            ) from error

    def digest(self) -> bytes:
        """Return a digest of the files that the Flight process reads; raise `TlsError` if one can't be."""
        hashed = hashlib.sha256()
        for path in (self.certificate, self.key, self.client_authority):
            hashed.update(hashlib.sha256(_bytes_of(path, "tls") if path else b"").digest())
        return hashed.digest()

    def warnings(self, now_s: float) -> list[str]:
        """Return a sentence for each certificate or list that is not valid now or ends soon."""
        found = [
            sentence
            for each in _read(self.certificate, "tls.certificate", "certificate", certificates_in)
            if (sentence := _date_warning(each, self.certificate, now_s))
        ]
        if not self.asks_clients:
            if self.client_authority or self.revoked:
                found.append(
                    "tls.client_certificates is none, so no client is asked for a certificate, and "
                    "tls.client_authority and tls.revoked mean nothing"
                )
            return found
        path = self.client_authority
        authorities = _read(path, "tls.client_authority", "certificate", certificates_in)
        found += [sentence for each in authorities if (sentence := _date_warning(each, path, now_s))]
        if self.revoked:
            lists = _read(self.revoked, "tls.revoked", "revocation list", revocation_lists_in)
            found += self._list_warnings(lists, authorities, now_s)
        return found

    def _list_warnings(
        self, lists: Sequence[RevocationList], authorities: Sequence[Certificate], now_s: float
    ) -> list[str]:
        found = [
            f"the revocation list of '{each.issuer_name}' in {self.revoked} (tls.revoked) has expired on "
            f"{_day(each.ends_s)}: all clients with certificates of this authority are refused"
            for each in lists
            if each.ends_s <= now_s
        ]
        issuers = {each.issuer for each in lists}
        return found + [
            f"{self.revoked} (tls.revoked) has no revocation list of '{each.distinguished_name}': all "
            "clients with certificates of this authority are refused"
            for each in authorities
            if each.subject not in issuers
        ]

    def login_name(self, der: bytes | None) -> str:
        """Return the user whom a client's certificate names, or an empty text."""
        if der is None:
            return ""
        try:
            certificate = Certificate.parse(der)
            if self.login_from == DISTINGUISHED_NAME:
                return certificate.distinguished_name
            if self.login_from == _COMMON_NAME:
                return certificate.common_name
            names = certificate.alternative_names(self.login_from.removeprefix(_ALTERNATIVE_NAME))
        except (ValueError, IndexError, StopIteration):
            return ""
        return names[self.login_index] if self.login_index < len(names) else ""


class CurrentTls:
    """The settings and the context of connections that are accepted from now on."""

    def __init__(self, settings: TlsSettings) -> None:
        self.replace(settings)

    def replace(self, settings: TlsSettings) -> None:
        """Use other settings, or changed files; raise `TlsError` and change nothing if a file is wrong."""
        self.use(settings, settings.context())

    def use(self, settings: TlsSettings, context: ssl.SSLContext) -> None:
        """Use a context that was made of these settings."""
        self.context = context
        self.settings = settings


def _bytes_of(path: str, setting: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise TlsError(f"{path} ({setting}) can't be read: {error.strerror}") from error


def _read(path: str, setting: str, what: str, parse: Callable[[bytes], list[T]]) -> list[T]:
    """Return what a PEM file has of one kind; raise `TlsError` if it has nothing of this kind."""
    data = _bytes_of(path, setting)
    try:
        found = parse(data)
    except ValueError as error:
        raise TlsError(f"{path} ({setting}) is damaged: {error}") from error
    if not found:
        problem = f"has no {what}" if is_pem(data) else "is not a PEM file"
        raise TlsError(f"{path} ({setting}) {problem}; it must be a PEM file with at least one {what}")
    return found


def _trust(context: ssl.SSLContext, path: str, setting: str) -> None:
    try:
        context.load_verify_locations(path)
    except OSError as error:
        reason = getattr(error, "reason", None) or str(error)
        raise TlsError(f"{path} ({setting}) can't be used: {reason}") from error


def _date_warning(certificate: Certificate, path: str, now_s: float) -> str:
    name = f"certificate '{certificate.distinguished_name}' in {path}"
    if now_s >= certificate.ends_s:
        return f"{name} has expired on {_day(certificate.ends_s)}: replace the file, then send SIGHUP"
    if now_s < certificate.starts_s:
        return f"{name} is not valid before {_day(certificate.starts_s)}: check the clock of this machine"
    if certificate.ends_s - now_s < _WARNED_S:
        days = int((certificate.ends_s - now_s) // _DAY_S)
        return (
            f"{name} ends in {days} days, on {_day(certificate.ends_s)}: replace the file, then send SIGHUP"
        )
    return ""


def _day(time_s: float) -> str:
    return f"{datetime.fromtimestamp(time_s, UTC):%Y-%m-%d %H:%M} UTC"
