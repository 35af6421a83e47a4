"""Where sinks write: no table is in another one, or shares a place with the checkpoint.

A part of `checks`. Two tables of files in one directory would overwrite each other's `_batch=N`; a table that
is in another one would be read with it. Links of a local disk are followed. No Java is needed, and nothing
of what is there is read.
"""

from __future__ import annotations

import os
import posixpath

from leveret.spark.pipelines.declaration import FILES, Declaration, Sink
from leveret.spark.pipelines.toml_lines import Key

Parts = tuple[str, ...]
_OWN = "give each a directory of its own"


def check(declared: Declaration) -> None:
    """Raises `BadPipeline` for the first problem."""
    before: list[tuple[Sink, Parts]] = []
    checkpoint = parts_of(declared.checkpoint)
    for index, sink in enumerate(declared.sinks):
        if sink.path is None:
            continue
        key, parts = ("sinks", index, "path"), parts_of(sink.path)
        _check_checkpoint(declared, key, sink, parts=parts, checkpoint=checkpoint)
        for other, theirs in before:
            if FILES.isdisjoint((sink.format, other.format)):
                continue  # whether two may write there, their library knows
            if parts == theirs:
                raise declared.wrong(key, f"is also that of sink '{other.name}'", hint=_OWN)
            if _is_within(parts, theirs) or _is_within(theirs, parts):
                what = f"and that of sink '{other.name}' are one inside the other"
                raise declared.wrong(key, what, hint=_OWN)
        before.append((sink, parts))


def _check_checkpoint(
    declared: Declaration, key: Key, sink: Sink, *, parts: Parts, checkpoint: Parts
) -> None:
    if _is_within(parts, checkpoint):
        raise declared.wrong(key, "is inside the checkpoint", hint=_OWN)
    if sink.format in FILES and _is_within(checkpoint, parts):
        raise declared.wrong(key, "has the checkpoint inside it", hint=_OWN)


def _is_within(inner: Parts, outer: Parts) -> bool:
    return inner[: len(outer)] == outer


def parts_of(path: str) -> Parts:
    """
    >>> parts_of("s3a://lake/orders/"), parts_of("file:///srv/../srv/lake")
    (('s3a:', 'lake', 'orders'), ('', 'srv', 'lake'))
    """
    scheme, separator, rest = path.partition(":/")
    if not separator or scheme == "file":
        return tuple(os.path.realpath(f"/{rest.lstrip('/')}" if separator else path).split("/"))
    return (f"{scheme}:", *posixpath.normpath(rest.strip("/")).split("/"))
