"""A pipeline as its file declares it: `read("orders.toml")` gives a checked `Declaration`.

One class per table of the file. Here is what a table may hold and of which type; what belongs together is
checked in `checks`, SQL in `sql`. Every problem is a `BadPipeline`: file, line, key, one sentence. Nothing
here needs Java, or a broker. `${NAME}` in a string is replaced by that environment variable, so that
passwords need not be in the file.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

import msgspec

from leveret.spark.pipelines.errors import BadPipeline
from leveret.spark.pipelines.toml_lines import Key, Lines

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Text = Annotated[str, msgspec.Meta(min_length=1)]
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z][A-Za-z0-9_]*$")]
"""Of steps, tables and sinks: what SQL takes without quotes."""
PipelineName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
Count = Annotated[int, msgspec.Meta(ge=1)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Settings = dict[str, str | int | float | bool]

INPUT: Final = "input"
"""The parsed rows, as SQL knows them."""
MESSAGE: Final = "_message"
"""The column that says which message a row comes from, and what else is known of it."""
OF_MESSAGE: Final = (
    "queue",
    "partition",
    "offset",
    "exchange",
    "routing_key",
    "enqueued_at",
    "priority",
    "redelivered",
    "delivery_count",
    "message_id",
    "correlation_id",
    "content_type",
    "timestamp",
    "headers",
    "properties",
)
"""What is in that column."""
FILES: Final = frozenset(("parquet", "csv", "json", "orc", "text"))
"""Formats that are written as a directory for each batch."""
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
"""`${NAME}`, or `${NAME:-what it is if that is not set}`."""


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file."""


class Source(Table, frozen=True, kw_only=True):
    """`[source]`: where messages come from; exactly one of queue, stream and topic."""

    url: Text = "amqp://guest:guest@localhost:5672"
    queue: Text | None = None
    stream: Text | None = None
    topic: Text | None = None
    max_messages: Count | None = None
    max_bytes: Text | None = None
    options: Settings = {}
    """Any other option of the source: spoolLocation, leaseTimeout, user, password, ..."""


class Parse(Table, frozen=True, kw_only=True):
    """`[parse]`: how a body becomes columns."""

    format: Literal["json", "csv", "text"] = "json"
    schema: Text | None = None
    """`id LONG NOT NULL, amount DOUBLE`; without it that of JSON is inferred once, and frozen."""
    options: Settings = {}
    """Of Spark's `from_json` and `from_csv`."""


class Static(Table, frozen=True, kw_only=True):
    """`[[tables]]`: something else that SQL can join with, read anew for each batch."""

    name: Name
    format: Text = "parquet"
    path: Text | None = None
    options: Settings = {}


class Step(Table, frozen=True, kw_only=True):
    """`[[steps]]`: a query over `input`, tables, and the steps before."""

    name: Name
    sql: Text


class Expectation(Table, frozen=True, kw_only=True):
    """`[[expectations]]`: a row for which the condition is not true is rejected."""

    that: Text
    """A condition in SQL; null counts as not true."""
    step: Name = INPUT
    column: Text | None = None
    """What to name in the rejection; without it, the first column of the condition."""
    reason: Text | None = None
    """What the rejection says; without it, the condition."""


class Watermark(Table, frozen=True, kw_only=True):
    """`[watermark]`: how far a row's time may be behind the latest one; what is later is rejected."""

    column: Text
    """A time of the parsed row: `at`, `order.placed_at`, `_message.timestamp`."""
    delay: Text
    max_ahead: Text | None = None
    """A row is rejected whose time is further ahead of when its message came: a clock that is wrong."""


class Dedup(Table, frozen=True, kw_only=True):
    """`[dedup]`: rows with the same key are one; the first is taken."""

    columns: Annotated[list[Text], msgspec.Meta(min_length=1)]
    within: Text
    """How long a key is remembered after it was last seen: by the watermark's time, or else the broker's."""
    duplicates: Literal["drop", "reject"] = "drop"


class Windows(Table, frozen=True, kw_only=True):
    """`[windows]`: rows wait until all of their window are there; either of a length, or sessions."""

    length: Text | None = None
    gap: Text | None = None
    """A session has ended when nothing came for so long."""
    by: list[Text] = []
    """Whose sessions: `["user"]`."""


class Rejects(Table, frozen=True, kw_only=True):
    """`[rejects]`: where rejected messages go, and how many are too many."""

    exchange: str = ""
    routing_key: str = ""
    max_count: Count | None = None
    """More than that in a batch stop the pipeline before the batch is committed."""
    max_share: Share | None = None


class Sink(Table, frozen=True, kw_only=True, rename={"rows": "from"}):
    """`[[sinks]]`: where the rows of a step go."""

    name: Name
    rows: Name | None = None
    """A step; without it, the last one."""
    format: Text = "parquet"
    path: Text | None = None
    partition_by: list[Text] = []
    mode: Literal["append", "overwrite"] = "append"
    options: Settings = {}


class Trigger(Table, frozen=True, kw_only=True):
    """`[trigger]`: how often a batch begins; as soon as the last one has ended, if nothing is said."""

    every: Text | None = None


class Spark(Table, frozen=True, kw_only=True):
    """`[spark]`"""

    master: Text = "local[*]"
    conf: Settings = {}
    packages: list[Text] = []
    """Jars by their Maven coordinates, for formats that Spark does not have."""
    jars: list[Text] = []


@dataclass(frozen=True, slots=True)
class FunctionStep:
    """A step in Python: it gets the rows of `of`, and gives its own. See `pipeline.Pipeline.step`."""

    name: str
    of: str
    function: Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """All of a file, and the steps that were added to it in Python."""

    file: str
    lines: Lines
    name: str
    checkpoint: str
    source: Source
    parse: Parse
    tables: tuple[Static, ...]
    steps: tuple[Step, ...]
    expectations: tuple[Expectation, ...]
    rejects: Rejects
    sinks: tuple[Sink, ...]
    trigger: Trigger
    spark: Spark
    watermark: Watermark | None = None
    dedup: Dedup | None = None
    windows: Windows | None = None
    functions: tuple[FunctionStep, ...] = ()

    def wrong(self, key: Key, problem: str, *, hint: str = "") -> BadPipeline:
        return BadPipeline(self.file, self.lines.of(key), dotted(key), problem, hint=hint)

    @property
    def last(self) -> str:
        """What a sink gets that does not say what it wants."""
        return self.step_names[-1] if self.step_names else INPUT

    @property
    def step_names(self) -> list[str]:
        return [*(step.name for step in self.steps), *(step.name for step in self.functions)]


class _Top(msgspec.Struct, frozen=True, kw_only=True):
    """What is not in a table."""

    name: PipelineName
    checkpoint: Text


_TABLES: Final[dict[str, type[Table]]] = {
    "source": Source,
    "parse": Parse,
    "rejects": Rejects,
    "trigger": Trigger,
    "spark": Spark,
}
_OPTIONAL: Final[dict[str, type[Table]]] = {"watermark": Watermark, "dedup": Dedup, "windows": Windows}
"""Those that are not there do nothing, and have no values of their own."""
_ARRAYS: Final[dict[str, type[Table]]] = {
    "tables": Static,
    "steps": Step,
    "expectations": Expectation,
    "sinks": Sink,
}
_PATHS: Final = ("path", "checkpoint")
T = TypeVar("T", bound=msgspec.Struct)


def read(path: Path, environment: Mapping[str, str] = os.environ) -> Declaration:
    """The file's declaration, each value of its type."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadPipeline(str(path), 0, "", f"can't be read: {error}") from None
    return parse(text, file=path.name, folder=path.absolute().parent, environment=environment)


def parse(
    text: str, *, file: str, folder: Path | None = None, environment: Mapping[str, str] = os.environ
) -> Declaration:
    """Paths in it that are not absolute are those of the folder, or of where the process is."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _not_toml(file, text, error) from None
    return _Reading(file, Lines(text), folder or Path.cwd(), environment).declaration(data)


def _not_toml(file: str, text: str, error: tomllib.TOMLDecodeError) -> BadPipeline:
    said = str(error)
    found = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)", said)
    line = int(found[1]) if found and found[1] else len(text.splitlines())
    problem = said[: found.start()] if found else said
    return BadPipeline(file, line, "", f"is not TOML: {problem[:1].lower()}{problem[1:]}")


class _Reading:
    """One file on its way into classes."""

    def __init__(self, file: str, lines: Lines, folder: Path, environment: Mapping[str, str]) -> None:
        self._file = file
        self._lines = lines
        self._folder = folder
        self._environment = environment

    def declaration(self, data: dict[str, Any]) -> Declaration:
        known = {"name", "checkpoint", *_TABLES, *_OPTIONAL, *_ARRAYS}
        for key in data:
            if key not in known:
                raise self._unknown((), key, known)
        top = self._table((), {key: data[key] for key in ("name", "checkpoint") if key in data}, _Top)
        tables: dict[str, Any] = {
            name: self._table((name,), data.get(name, {}), kind) for name, kind in _TABLES.items()
        }
        tables |= {
            name: self._table((name,), data[name], kind) for name, kind in _OPTIONAL.items() if name in data
        }
        arrays: dict[str, Any] = {name: self._array(data, name, kind) for name, kind in _ARRAYS.items()}
        return Declaration(
            file=self._file,
            lines=self._lines,
            name=top.name,
            checkpoint=top.checkpoint,
            **tables,
            **arrays,
        )

    def _array(self, data: dict[str, Any], name: str, kind: type[Table]) -> tuple[Table, ...]:
        values = data.get(name, [])
        if not isinstance(values, list):
            raise self._wrong((name,), f"is one table, and there may be several: write [[{name}]]")
        return tuple(self._table((name, index), value, kind) for index, value in enumerate(values))

    def _table(self, key: Key, value: object, kind: type[T]) -> T:
        if not isinstance(value, dict):
            raise self._wrong(key, f"is not a table: write [{dotted(key)}]")
        fields = {field.encode_name for field in msgspec.structs.fields(kind)}
        for name in value:
            if name not in fields:
                raise self._unknown(key, name, fields)
        try:
            return msgspec.convert(self._placed(self._filled_in(key, value)), kind)
        except msgspec.ValidationError as error:
            raise self._invalid(key, error) from None

    def _placed(self, value: dict[str, Any]) -> dict[str, Any]:
        """With paths that are the same wherever the process is."""
        return {
            name: str(self._folder / each)
            if name in _PATHS and isinstance(each, str) and each and ":/" not in each
            else each
            for name, each in value.items()
        }

    def _filled_in(self, key: Key, value: Any) -> Any:
        """With the environment's variables in the place of their names."""
        if isinstance(value, dict):
            return {name: self._filled_in((*key, name), each) for name, each in value.items()}
        if isinstance(value, list):
            return [self._filled_in((*key, index), each) for index, each in enumerate(value)]
        if not isinstance(value, str):
            return value
        for name, otherwise in ((found[1], found[2]) for found in _VARIABLE.finditer(value)):
            if name not in self._environment and otherwise is None:
                hint = f"export {name}=..., or write the value into the file"
                raise self._wrong(key, f"needs the environment variable {name}, which is not set", hint=hint)
        return _VARIABLE.sub(lambda found: self._environment.get(found[1], found[2]), value)

    def _invalid(self, key: Key, error: msgspec.ValidationError) -> BadPipeline:
        """`Expected `str`, got `int` - at `$.queue`` in our words."""
        said, _, place = str(error).partition(" - at `$")
        inner = tuple(re.findall(r"\.([^.\[`]+)", place))
        if missing := re.search(r"missing required field `(.*)`", said):
            return self._wrong((*key, missing[1]), "is missing")
        if "matching regex" in said:
            allowed = (
                "letters, digits and _, a letter first" if key else "up to 100 letters, digits, . _ and -"
            )
            return self._wrong((*key, *inner), f"can't be a name: {allowed}")
        said = (
            said.replace("`", "'").replace("Expected", "is wrong: expected").replace("Invalid", "is wrong:")
        )
        return self._wrong((*key, *inner), said)

    def _unknown(self, key: Key, name: str, known: set[str]) -> BadPipeline:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(sorted(known))}"
        return self._wrong((*key, name), "is unknown", hint=hint)

    def _wrong(self, key: Key, problem: str, *, hint: str = "") -> BadPipeline:
        return BadPipeline(self._file, self._lines.of(key), dotted(key), problem, hint=hint)


def dotted(key: Key) -> str:
    """`sinks[1].path`, counted from one, as people do."""
    found = ""
    for part in key:
        found += f"[{part + 1}]" if isinstance(part, int) else f".{part}" if found else part
    return found
