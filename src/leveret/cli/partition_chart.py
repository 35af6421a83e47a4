"""A group's progress through a partition as one line of signs.

    !██~██>>>>····

Owns what each sign stands for, and which of several states in a cell is shown: the one that most needs
attention. Pure functions of `window`, as the HTTP API describes a partition; colours and the rest of the page
are left to `group_page`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple


class Sign(NamedTuple):
    glyph: str
    ascii: str
    """Replaces `glyph` on a terminal without Unicode."""
    style: str
    meaning: str


SETTLED: Final = Sign("█", "#", "green", "settled")
IN_FLIGHT: Final = Sign(">", ">", "blue", "in flight")
DELAYED: Final = Sign("~", "~", "yellow", "delayed")
WAITING: Final = Sign("·", ".", "dim", "waiting")
STUCK: Final = Sign("!", "!", "bold red", "stuck: the lowest in flight")
SIGNS: Final = (SETTLED, IN_FLIGHT, DELAYED, WAITING, STUCK)


def chart_signs(window: Mapping[str, Any], *, stuck: int | None) -> list[Sign]:
    """Return a sign for each cell; `stuck` is the lowest offset in flight.

    >>> window = {"start": 8, "size": 2, "cells": [[0, 1, 1, 0], [2, 0, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1]]}
    >>> "".join(sign.glyph for sign in chart_signs(window, stuck=8))
    '!█~·'
    """
    stuck_cell = None if stuck is None else (stuck - window["start"]) // window["size"]
    return [STUCK if number == stuck_cell else _sign(cell) for number, cell in enumerate(window["cells"])]


def _sign(cell: Sequence[int]) -> Sign:
    """Choose the sign of a cell from its counts of settled, in flight, delayed and waiting offsets."""
    _, in_flight, delayed, waiting = cell
    if in_flight:
        return IN_FLIGHT
    if delayed:
        return DELAYED
    return WAITING if waiting else SETTLED
