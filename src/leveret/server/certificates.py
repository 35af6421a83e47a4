"""Reads X.509 certificates and revocation lists: names, dates, alternative names (RFC 5280).

    leaf, *rest = certificates_in(Path("cert.pem").read_bytes())
    leaf.ends_s, leaf.distinguished_name

Owns the few fields that Python's `ssl` does not tell: those of the broker's own files, and the exact order
and types of a client's name. Signatures and trust are left to OpenSSL. The rule: bytes that are no
certificate are a `ValueError`.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Final, NamedTuple

_PEM: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_CERTIFICATE: Final = b"CERTIFICATE"
_REVOCATION_LIST: Final = b"X509 CRL"
_INTEGER, _UTC_TIME, _EXTENSIONS = 0x02, 0x17, 0xA3
_TIME_TAGS: Final = (_UTC_TIME, 0x18)
_ENCODINGS: Final = {0x14: "latin-1", 0x1C: "utf-32-be", 0x1E: "utf-16-be"}
"""Encodings of T61String, UniversalString and BMPString; all other texts are UTF-8."""
_COMMON_NAME: Final = "2.5.4.3"
_SUBJECT_ALTERNATIVE_NAME: Final = "2.5.29.17"
_ALTERNATIVE_NAME_TAGS: Final = {"email": 0x81, "dns": 0x82, "uri": 0x86, "ip": 0x87}
_SHORT_NAMES: Final = {
    _COMMON_NAME: "CN",
    "2.5.4.4": "SN",
    "2.5.4.5": "SERIALNUMBER",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "2.5.4.12": "TITLE",
    "2.5.4.42": "GIVENNAME",
    "2.5.4.43": "INITIALS",
    "2.5.4.44": "GENERATIONQUALIFIER",
    "2.5.4.65": "PSEUDONYM",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
    "1.2.840.113549.1.9.1": "EMAILADDRESS",
}
"""The names that RabbitMQ prints; it prints numbers for all other kinds."""


class _Element(NamedTuple):
    """A value in DER: its tag, its content, and all of its bytes."""

    tag: int
    content: bytes
    whole: bytes


@dataclass(frozen=True, slots=True)
class Certificate:
    """`Certificate.parse(der)`."""

    subject: bytes
    issuer: bytes
    starts_s: float
    ends_s: float
    extensions: bytes

    @classmethod
    def parse(cls, der: bytes) -> Certificate:
        try:
            fields = list(_elements(next(_elements(next(_elements(der)).content)).content))
            # The version is left out if it is 1.
            if fields[0].tag != _INTEGER:
                del fields[0]
            _, _, issuer, validity, subject, *others = fields
            starts, ends = _elements(validity.content)
            extensions = b"".join(each.content for each in others if each.tag == _EXTENSIONS)
            return cls(subject.whole, issuer.whole, _time_s(starts), _time_s(ends), extensions)
        except (IndexError, StopIteration, ValueError):
            raise ValueError("the bytes are no certificate") from None

    @property
    def distinguished_name(self) -> str:
        """The subject as RabbitMQ prints it, the last part first: `CN=client,O=Example`."""
        return _printed(self.subject)

    @property
    def issuer_name(self) -> str:
        return _printed(self.issuer)

    @property
    def common_name(self) -> str:
        """All common names with commas between them, or an empty text."""
        names = (part for parts in _name_parts(self.subject) for part in parts)
        return ",".join(value for kind, value in names if kind == _COMMON_NAME)

    def alternative_names(self, kind: str) -> list[str]:
        """Return the subject's alternative names of one kind: email, dns, uri or ip."""
        found = []
        for extension in _elements(b"".join(each.content for each in _elements(self.extensions))):
            identifier, *_, value = _elements(extension.content)
            if _object_id(identifier.content) == _SUBJECT_ALTERNATIVE_NAME:
                names = _elements(next(_elements(value.content)).content)
                found += [name.content for name in names if name.tag == _ALTERNATIVE_NAME_TAGS[kind]]
        return [str(ip_address(name)) if kind == "ip" else name.decode("utf-8", "replace") for name in found]


@dataclass(frozen=True, slots=True)
class RevocationList:
    """A list (CRL) of the certificates that an issuer has revoked."""

    issuer: bytes
    ends_s: float
    """When the issuer has a newer list; infinity if the list does not tell."""

    @classmethod
    def parse(cls, der: bytes) -> RevocationList:
        try:
            fields = list(_elements(next(_elements(next(_elements(der)).content)).content))
            if fields[0].tag == _INTEGER:
                del fields[0]
            issuer, times = fields[1], [each for each in fields[2:4] if each.tag in _TIME_TAGS]
            return cls(issuer.whole, _time_s(times[1]) if len(times) > 1 else float("inf"))
        except (IndexError, StopIteration, ValueError):
            raise ValueError("the bytes are no revocation list") from None

    @property
    def issuer_name(self) -> str:
        return _printed(self.issuer)


def is_pem(data: bytes) -> bool:
    return _PEM.search(data) is not None


def certificates_in(pem: bytes) -> list[Certificate]:
    """Return the certificates of a PEM file in their order; raise `ValueError` if one can't be read."""
    return [Certificate.parse(der) for der in _blocks(pem, _CERTIFICATE)]


def revocation_lists_in(pem: bytes) -> list[RevocationList]:
    """Return the revocation lists of a PEM file; raise `ValueError` if one can't be read."""
    return [RevocationList.parse(der) for der in _blocks(pem, _REVOCATION_LIST)]


def _blocks(pem: bytes, kind: bytes) -> list[bytes]:
    return [b64decode(match[2]) for match in _PEM.finditer(pem) if match[1] == kind]


def _elements(data: bytes) -> Iterator[_Element]:
    position = 0
    while position < len(data):
        start, tag, length = position, data[position], data[position + 1]
        position += 2
        if length & 0x80:
            count = length & 0x7F
            length = int.from_bytes(data[position : position + count], "big")
            position += count
        stop = position + length
        if stop > len(data):
            raise ValueError("a value is longer than the bytes around it")
        yield _Element(tag, data[position:stop], data[start:stop])
        position = stop


def _time_s(element: _Element) -> float:
    text = element.content.decode("ascii")
    if element.tag == _UTC_TIME:
        # RFC 5280, section 4.1.2.5.1: years from 50 on are those of the 20th century.
        text = ("19" if text >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _name_parts(name: bytes) -> list[list[tuple[str, str]]]:
    """Return kind and value of each part of a name, in the order of the certificate."""
    relative_names = _elements(next(_elements(name)).content)
    return [[_name_part(part) for part in _elements(relative.content)] for relative in relative_names]


def _name_part(part: _Element) -> tuple[str, str]:
    kind, value = _elements(part.content)
    return _object_id(kind.content), value.content.decode(_ENCODINGS.get(value.tag, "utf-8"), "replace")


def _printed(name: bytes) -> str:
    """Return a name as RabbitMQ prints it (`rabbit_cert_info:format_rdn_sequence`)."""
    return ",".join(
        "+".join(f"{_SHORT_NAMES.get(kind, kind)}={_escaped(value)}" for kind, value in parts)
        for parts in reversed(_name_parts(name))
    )


def _escaped(value: str) -> str:
    r"""Escape a value as RabbitMQ does, with all bytes outside of printable ASCII (RFC 4514, section 2.4).

    >>> _escaped("Acme, Inc."), _escaped(" #1 "), _escaped("Jörg")
    ('Acme\\, Inc.', '\\ #1\\ ', 'J\\C3\\B6rg')
    """
    data = value.encode()
    escaped = "".join(
        f"\\{chr(byte)}" if byte in b'"+,;<>\\' else chr(byte) if 32 <= byte < 126 else f"\\{byte:02X}"
        for byte in data
    )
    if escaped[:1] in (" ", "#"):
        escaped = f"\\{escaped}"
    return f"{escaped[:-1]}\\ " if len(data) > 1 and escaped.endswith(" ") else escaped


def _object_id(content: bytes) -> str:
    """
    >>> _object_id(b"\\x55\\x04\\x03")
    '2.5.4.3'
    """
    numbers, number = [], 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))
