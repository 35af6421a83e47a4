"""Checks of paths: no table of files is inside another one, or shares a directory with the checkpoint.

A part of `declaration_checks`. Two tables in one directory would overwrite each other's `_batch=N`; a table
inside another would be read with it. Links on a local disk are followed. No Java and no file is needed.
"""

from __future__ import annotations

import os
import posixpath

from leveret.spark.pipelines.declaration import FILES, Declaration, Sink
from leveret.spark.pipelines.toml_lines import Key

Parts = tuple[str, ...]
_OWN = "give each a directory of its own"


def check(declared: Declaration) -> None:
    """Raise `BadPipeline` for the first problem."""
    earlier_sinks: list[tuple[Sink, Parts]] = []
    checkpoint = parts_of(declared.checkpoint)
    for index, sink in enumerate(declared.sinks):
        if sink.path is None:
            continue
        key, parts = ("sinks", index, "path"), parts_of(sink.path)
        _check_checkpoint(declared, key, sink, parts=parts, checkpoint=checkpoint)
        for other, other_parts in earlier_sinks:
            # whether two sinks of libraries may share a path is left to the libraries
            if FILES.isdisjoint((sink.format, other.format)):
                continue
            if parts == other_parts:
                raise declared.wrong(key, f"is also that of sink '{other.name}'", hint=_OWN)
            if _is_within(parts, other_parts) or _is_within(other_parts, parts):
                problem = f"and that of sink '{other.name}' are one inside the other"
                raise declared.wrong(key, problem, hint=_OWN)
        earlier_sinks.append((sink, parts))


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
    """Return a path in parts, with links of a local disk resolved.

    >>> parts_of("s3a://lake/orders/"), parts_of("file:///srv/../srv/lake")
    (('s3a:', 'lake', 'orders'), ('', 'srv', 'lake'))
    """
    scheme, separator, rest = path.partition(":/")
    if not separator or scheme == "file":
        return tuple(os.path.realpath(f"/{rest.lstrip('/')}" if separator else path).split("/"))
    return (f"{scheme}:", *posixpath.normpath(rest.strip("/")).split("/"))
