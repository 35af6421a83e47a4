"""The encryption of one connection, in the words that RabbitMQ has for it.

OpenSSL's `ECDHE-RSA-AES256-GCM-SHA384` is `ecdhe_rsa`, `aes_256_gcm` and `aead`. With TLS 1.3 the key
exchange is not a part of the cipher: it is `any`.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from datetime import UTC, datetime

from leveret.broker.sessions.session import TlsView
from leveret.server.certificates import Certificate


def tls_view(connection: ssl.SSLObject) -> TlsView:
    """Return the view of a connection whose TLS handshake is done."""
    name, version, _ = connection.cipher() or ("", "", 0)
    exchange, cipher, mac = cipher_parts(name)
    view = TlsView((connection.version() or version).lower(), exchange, cipher, mac)
    der = connection.getpeercert(binary_form=True)
    if der is None:
        return view
    with suppress(ValueError):
        certificate = Certificate.parse(der)
        validity = f"{_time(certificate.starts_s)} - {_time(certificate.ends_s)}"
        return view._replace(
            subject=certificate.distinguished_name, issuer=certificate.issuer_name, validity=validity
        )
    return view


def cipher_parts(name: str) -> tuple[str, str, str]:
    """Return key exchange, cipher and hash of one of OpenSSL's ciphers.

    >>> cipher_parts("ECDHE-RSA-AES256-GCM-SHA384"), cipher_parts("TLS_AES_128_GCM_SHA256")
    (('ecdhe_rsa', 'aes_256_gcm', 'aead'), ('any', 'aes_128_gcm', 'aead'))
    >>> cipher_parts("ECDHE-ECDSA-CHACHA20-POLY1305"), cipher_parts("AES128-SHA")
    (('ecdhe_ecdsa', 'chacha20_poly1305', 'aead'), ('rsa', 'aes_128_cbc', 'sha'))
    """
    words = name.lower().replace("_", "-").split("-")
    if words[0] == "tls":
        exchange, rest = "any", words[1:]
    else:
        begin = next((number for number, word in enumerate(words) if word[:3] in _CIPHERS), len(words))
        exchange, rest = "_".join(words[:begin]) or "rsa", words[begin:]
    if rest and rest[0] in ("aes128", "aes256"):
        rest[:1] = ["aes", rest[0][3:]]
    mac = rest.pop() if rest and rest[-1].startswith("sha") else ""
    is_aead = bool({"gcm", "ccm", "ccm8", "poly1305"} & set(rest))
    return exchange, "_".join(rest) if is_aead else "_".join([*rest, "cbc"]), "aead" if is_aead else mac


_CIPHERS = ("aes", "cha", "cam", "ari")
"""The beginnings of ciphers' names, behind those of key exchanges."""


def _time(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
