"""A group's way through a partition as one line of cells.

    !██~██>>>>····

Owns which sign stands for what, and which of several states in a cell is shown: the one that wants to be
seen. Pure functions of what the HTTP API says of a partition's `window`; colours and the rest of the page are
left to `group_page`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple


class Sign(NamedTuple):
    glyph: str
    ascii: str
    """Where the terminal has no other."""
    style: str
    meaning: str


SETTLED: Final = Sign("█", "#", "green", "settled")
IN_FLIGHT: Final = Sign(">", ">", "blue", "in flight")
DELAYED: Final = Sign("~", "~", "yellow", "delayed")
WAITING: Final = Sign("·", ".", "dim", "waiting")
STUCK: Final = Sign("!", "!", "bold red", "stuck: the lowest in flight")
SIGNS: Final = (SETTLED, IN_FLIGHT, DELAYED, WAITING, STUCK)


def picture(window: Mapping[str, Any], *, stuck: int | None) -> list[Sign]:
    """A sign for each cell; `stuck` is the lowest offset in flight.

    >>> window = {"start": 8, "size": 2, "cells": [[0, 1, 1, 0], [2, 0, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1]]}
    >>> "".join(sign.glyph for sign in picture(window, stuck=8))
    '!█~·'
    """
    at = None if stuck is None else (stuck - window["start"]) // window["size"]
    return [STUCK if place == at else _sign(cell) for place, cell in enumerate(window["cells"])]


def _sign(cell: Sequence[int]) -> Sign:
    """Of settled, in flight, delayed and waiting offsets in it, what says most."""
    _, in_flight, delayed, waiting = cell
    if in_flight:
        return IN_FLIGHT
    if delayed:
        return DELAYED
    return WAITING if waiting else SETTLED
