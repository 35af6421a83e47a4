"""Values that no request, ticket or descriptor may have: each is refused with a sentence that names it."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from leveret.flight import actions, bounds, tickets
from leveret.flight.bounds import OFFSET_MAX, OutOfBounds
from leveret.flight.tickets import PieceTicket, ReadTicket, StageDescriptor

INF, NAN = float("inf"), float("nan")
OPEN = actions.Open("/", "q", "nightly", 60.0)
LEASE = actions.Lease("/", "q", "nightly", 1, 0, max_messages=5, max_bytes=5)
PLAN = actions.Plan("/", "q", "nightly", 1, 0, 1)
SNAPSHOT = actions.Snapshot("/", "q", start=0, stop=9)
FOLLOW = actions.Follow("/", "s", False, "nightly", actions.At("offset", 5))
COVER = actions.Cover("/", "s", False, "nightly", 1, {"s": (0, 5)})
COMMIT = actions.Commit("/", "w", 0, ["task"])
STAGE = StageDescriptor("/", "w", 0, "task", 60.0)
PIECE = PieceTicket("0" * 32, "told", 1, 0)
READ = ReadTicket("/", "q", 1, b"")
ADVANCE = actions.Advance("/", "s", False, "nightly", 1, {"s": 5}, max_messages=1)
SOUND = [OPEN, LEASE, PLAN, SNAPSHOT, FOLLOW, COVER, COMMIT, STAGE, PIECE, READ, ADVANCE]


@pytest.mark.parametrize("timeout_s", [INF, -INF, NAN, 1e300, -1.0, 0.0, 1e-300])
@pytest.mark.parametrize("message", [OPEN, STAGE], ids=["lease", "stage"])
def test_a_timeout_is_a_number_of_seconds_that_can_pass(message: msgspec.Struct, timeout_s: float) -> None:
    with pytest.raises(OutOfBounds, match=r"timeout_s is .*, and must be from 0.001 to 316224000.0"):
        bounds.check(msgspec.structs.replace(message, timeout_s=timeout_s))


@pytest.mark.parametrize("value", [-1, 0, 1 << 63, (1 << 64) - 1])
@pytest.mark.parametrize("name", ["max_messages", "max_bytes"])
def test_a_limit_lets_something_through(name: str, value: int) -> None:
    with pytest.raises(OutOfBounds, match=f"{name} is {value}, and must be from 1 to {OFFSET_MAX}"):
        bounds.check(msgspec.structs.replace(LEASE, **{name: value}))


@pytest.mark.parametrize("message", SOUND, ids=lambda each: type(each).__name__)
def test_whatever_is_a_number_is_checked(message: msgspec.Struct) -> None:
    """Each field by itself, those that are added tomorrow too."""
    bounds.check(message)
    checked = 0
    for name in message.__struct_fields__:
        value = getattr(message, name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            checked += 1
            for wrong in (-1, 1 << 63, -(1 << 63), INF, NAN):
                with pytest.raises(OutOfBounds, match=f"{name} is "):
                    bounds.check(msgspec.structs.replace(message, **{name: wrong}))
    assert checked or message is FOLLOW, "its only number is in its position"


@pytest.mark.parametrize(
    "message",
    [
        msgspec.structs.replace(FOLLOW, at=actions.At("offset", 1 << 63)),
        msgspec.structs.replace(FOLLOW, at=actions.At("offset", 0, {"s": -1})),
        msgspec.structs.replace(COVER, spans={"s": (0, 1 << 63)}),
        msgspec.structs.replace(ADVANCE, offsets={"s": 1 << 63}),
        msgspec.structs.replace(ADVANCE, stops={"s": -1}),
    ],
    ids=["position", "offsets", "spans", "advance", "stops"],
)
def test_numbers_inside_of_other_values_are_checked(message: msgspec.Struct) -> None:
    with pytest.raises(OutOfBounds, match="must be from"):
        bounds.check(message)


def test_a_time_before_1970_is_a_time() -> None:
    bounds.check(msgspec.structs.replace(FOLLOW, at=actions.At("time", -1)))


def test_every_request_has_its_names_checked() -> None:
    for kind in get_args(actions.Request):
        for field in msgspec.structs.fields(kind):
            if field.type is str and field.name != "why":
                made = msgspec.convert([kind.__name__, *map(sample, msgspec.structs.fields(kind))], kind)
                with pytest.raises(OutOfBounds, match=f"{field.name} has 1025 bytes"):
                    bounds.check(msgspec.structs.replace(made, **{field.name: "x" * 1025}))


def sample(field: msgspec.structs.FieldInfo) -> object:
    """Any value that a field can have."""
    if not field.required:
        return field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if field.type is actions.At:
        return ["first"]
    known = {str: "x", bytes: b"", bool: False, float: 1.0, int: 1}
    return known.get(field.type, [] if "list" in str(field.type) else {})


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (actions.Address("/", ["e"] * 1001), "exchanges has 1001 entries, and at most 1000 are allowed"),
        (actions.Commit("/", "w", 0, ["t"] * 20_001), "stages has 20001 entries, and at most 20000"),
        (actions.Reject("/", "q", "n", bytes(16 * 2049)), "2049 ranges of offsets"),
        (
            actions.RejectRead("/", "t", True, "n", {"a": bytes(16 * 1024), "b": bytes(16 * 1025)}),
            "2049 ranges",
        ),
    ],
    ids=["exchanges", "stages", "ranges", "ranges by stream"],
)
def test_a_request_has_only_so_many_parts(message: msgspec.Struct, text: str) -> None:
    with pytest.raises(OutOfBounds, match=text):
        bounds.check(message)


@pytest.mark.parametrize(
    "ranges",
    [[(5, 5)], [(5, 4)], [(5, 9), (8, 12)], [(5, 9), (1, 3)], [(0, (1 << 64) - 1)]],
    ids=["empty", "backwards", "overlapping", "out of order", "endless"],
)
def test_ranges_that_are_none_are_refused(ranges: list[tuple[int, int]]) -> None:
    with pytest.raises(OutOfBounds, match="must ascend"):
        tickets.ascending_ranges(tickets.pack_ranges(ranges))


@pytest.mark.parametrize("size_bytes", [1, 8, 15, 17, 24])
def test_bytes_that_are_no_ranges_are_refused(size_bytes: int) -> None:
    with pytest.raises(OutOfBounds, match=f"{size_bytes} bytes can't be ranges of offsets"):
        tickets.ascending_ranges(bytes(size_bytes))
