"""Converts names and keys between text and bytes: UTF-8, with `surrogateescape` for other bytes."""

from __future__ import annotations


def to_bytes(name: str) -> bytes:
    """
    >>> to_bytes(to_text(b"caf\\xe9"))
    b'caf\\xe9'
    """
    return name.encode("utf-8", "surrogateescape")


def to_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
