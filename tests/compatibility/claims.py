"""What a line of the compatibility page is: a name, a state, a sentence, and how to recognise its tests.

Owns the form only. What Leveret claims stands in `methods.py`, `options.py`, `arguments.py` and
`messages.py`, the one part of the page that is kept by hand; which tests show it is found by `evidence.py`.
The rule: a claim that something works (or is let through) counts for nothing without a test that talks to a
broker.
"""

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """What becomes of it; the values are the words of the page."""

    SUPPORTED = "supported"
    IGNORED = "accepted without effect"
    REFUSED = "not supported"
    LATER = "not supported yet"

    @property
    def needs_a_test(self) -> bool:
        return self in (State.SUPPORTED, State.IGNORED)


@dataclass(frozen=True, slots=True)
class Claim:
    """One line of a table.

    `clues` say how a test that is about it looks: each is a number of words that all occur in the test's
    source (names of methods, strings, `option=`), joined by " & "; one clue that fits is enough. `words`
    are parts of test names that tell a test about it from one that merely uses it.
    """

    name: str
    state: State
    note: str
    clues: tuple[str, ...]
    words: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    """Further cells, between the name and the state."""


@dataclass(frozen=True, slots=True)
class Section:
    """A table of the page."""

    title: str
    head: tuple[str, ...]
    claims: tuple[Claim, ...]


def claim(name: str, state: State, note: str, *clues: str, words: str = "") -> Claim:
    """A claim that is recognised by its own name unless there are other clues.

    >>> claim("x-expires", State.SUPPORTED, "…", words="expire unused").words
    ('expire', 'unused')
    """
    return Claim(name, state, note, clues or (name,), tuple(words.split()))
