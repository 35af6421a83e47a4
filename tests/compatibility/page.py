"""The compatibility page as text: the claims with their tests, and the deviations with their reasons.

The rule: the page is not written while a claim that needs a test has none; `missing` names these claims.
"""

from collections.abc import Iterator
from itertools import zip_longest

from tests.compatibility import arguments, messages, methods, options
from tests.compatibility.claims import Claim, Section
from tests.compatibility.evidence import ROOT, SCENARIOS, Test, all_tests, tests_for
from tests.differential.deviations import INSTEAD, REWRITES, Instead

PATH = ROOT / "docs" / "guide" / "compatibility.md"
CHAPTERS = (
    ("Methods", methods.SECTIONS + options.SECTIONS),
    ("Arguments and types", arguments.SECTIONS),
    ("Messages", messages.SECTIONS[:2]),
    ("Handshake", messages.SECTIONS[2:]),
)
SHOWN_CHARACTERS_MAX = 240
PREFACE = """\
# What of AMQP 0-9-1 and RabbitMQ works

Leveret implements AMQP 0-9-1 with RabbitMQ's extensions. Where the specification leaves a choice, it
follows RabbitMQ 3.10.8. `make docs` writes this page: do not edit it by hand, because
`tests/test_compatibility_page.py` compares it. The states and notes are tables in `tests/compatibility/`.
The tests in the last column are found in their sources, and a claim without a test is an error.

- **supported**: as in RabbitMQ, or better where the note says so.
- **accepted without effect**: no error, and no effect.
- **not supported yet**: planned. **not supported**: not planned; the note says what happens.

Tests in `tests/differential/scenarios/` run against RabbitMQ and against Leveret, and the answers are
compared line by line. Run one of them with `pytest tests/differential -k purging_a_priority_queue`. All
other tests run with `pytest <name>`. The page shows at most three tests for each claim; there are more.
"""


def missing() -> list[str]:
    """One sentence for every claim that has no test and needs one."""
    tests = all_tests()
    return [
        f"'{claim.name}' ({section.title}) is said to be {claim.state}, but no test has "
        f"{' or '.join(claim.clues)}."
        for _, sections in CHAPTERS
        for section in sections
        for claim in section.claims
        if claim.state.needs_a_test and not tests_for(claim, tests)
    ]


def text() -> str:
    """The whole page."""
    return "\n".join(_lines(all_tests()))


def _lines(tests: tuple[Test, ...]) -> Iterator[str]:
    yield PREFACE
    for title, sections in CHAPTERS:
        yield f"## {title}\n"
        for section in sections:
            yield from _table(section, tests)
    yield from _deviations()


def _table(section: Section, tests: tuple[Test, ...]) -> Iterator[str]:
    yield f"### {section.title}\n"
    head = (*section.head, "state", "note", "tests")
    yield _row(head)
    yield _row(["---"] * len(head))
    for claim in section.claims:
        yield _row(_cells(claim, tests_for(claim, tests)))
    yield ""


def _cells(claim: Claim, tests: list[Test]) -> list[str]:
    name = claim.name if " " in claim.name else f"`{claim.name}`"
    return [name, *claim.columns, claim.state, claim.note, "<br>".join(map(_link, tests))]


def _link(test: Test) -> str:
    return f"[`{test}`](../../{test.path})"


def _row(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


# --- deviations ----------------------------------------------------------------------------------------


def _deviations() -> Iterator[str]:
    yield "## Known deviations from RabbitMQ 3.10.8\n"
    yield "[`deviations.py`](../../tests/differential/deviations.py) lists the only differences that the"
    yield "differential tests allow. Both sides are checked: the test of a difference that is gone fails.\n"
    yield "Everywhere:\n"
    for rewrite in REWRITES:
        if not rewrite.reason.startswith("As above"):
            yield f"- {rewrite.reason}"
    yield "\nIn single places:\n"
    yield _row(("scenario", "RabbitMQ says", "Leveret says", "reason"))
    yield _row(["---"] * 4)
    for deviation in INSTEAD:
        yield _deviation(deviation)
    yield ""


def _deviation(deviation: Instead) -> str:
    module, _, name = deviation.scenario.partition(".")
    path = f"{SCENARIOS}{module}.py"
    rabbitmq, leveret = _answers(deviation.rabbitmq), _answers(deviation.leveret)
    return _row(
        (
            f"[`{path}::{name}`](../../{path})",
            _quoted(rabbitmq, other=leveret),
            _quoted(leveret, other=rabbitmq),
            deviation.reason,
        )
    )


def _answers(lines: tuple[str, ...]) -> list[str]:
    """Return the answers of a server, without the names of its channels and the lines of the client."""
    return [line.partition(" < ")[2] or line.strip() for line in lines if " > " not in line]


def _quoted(answers: list[str], *, other: list[str]) -> str:
    shown = [_shortened(line, line_there) for line, line_there in zip_longest(answers, other) if line]
    return "<br>".join(map(_code, shown)) or "nothing"


def _shortened(line: str, line_there: str | None) -> str:
    """A line that is too long for a table begins a little before the first difference, and ends soon."""
    if len(line) <= SHOWN_CHARACTERS_MAX:
        return line
    pairs = enumerate(zip_longest(line, line_there or ""))
    difference = next((place for place, (here, there) in pairs if here != there), 0)
    start = max(0, difference - SHOWN_CHARACTERS_MAX // 4)
    piece = line[start : start + SHOWN_CHARACTERS_MAX]
    return f"{'… ' if start else ''}{piece}{' …' if start + len(piece) < len(line) else ''}"


def _code(line: str) -> str:
    printable = line.encode("utf-8", "backslashreplace").decode().replace("|", "\\|")
    return f"`` {printable} ``"
