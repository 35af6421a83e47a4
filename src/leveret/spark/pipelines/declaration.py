"""A pipeline as its file declares it: `read("orders.toml")` returns a `Declaration`.

There is one class for each table of the file, with the keys of the table and their types.
`declaration_checks` checks the values together, with the help of `sql`. Every problem is a `BadPipeline`:
file, line, key, one sentence. Nothing here needs Java or a broker. `${NAME}` in a string is replaced by that
environment variable, so that passwords need not be in the file.
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
"""A name of a step, table or sink: SQL takes it without quotes."""
PipelineName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
Count = Annotated[int, msgspec.Meta(ge=1)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Settings = dict[str, str | int | float | bool]

INPUT: Final = "input"
"""The name of the parsed rows in SQL."""
MESSAGE: Final = "_message"
"""The column with the identity of a row's message, and the other facts about the message."""
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
"""The fields of column `_message`."""
FILES: Final = frozenset(("parquet", "csv", "json", "orc", "text"))
"""Formats that are written as a directory for each batch."""
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
"""`${NAME}`, or `${NAME:-default}`."""


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Superclass of the tables of a pipeline's file."""


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
    """Options of Spark's `from_json` and `from_csv`."""


class Static(Table, frozen=True, kw_only=True):
    """`[[tables]]`: data that SQL can join with, read again for each batch."""

    name: Name
    format: Text = "parquet"
    path: Text | None = None
    options: Settings = {}


class Step(Table, frozen=True, kw_only=True):
    """`[[steps]]`: a query over `input`, the tables, and the steps before it."""

    name: Name
    sql: Text


class Expectation(Table, frozen=True, kw_only=True):
    """`[[expectations]]`: a row for which the condition is not true is rejected."""

    that: Text
    """A condition in SQL; null counts as not true."""
    step: Name = INPUT
    column: Text | None = None
    """The column that the rejection names. Default: the first column of the condition."""
    reason: Text | None = None
    """The reason that the rejection gives. Default: the condition."""


class Watermark(Table, frozen=True, kw_only=True):
    """`[watermark]`: how far a row's time may be behind the latest time. Rows behind that are rejected."""

    column: Text
    """The column of a row's time: `at`, `order.placed_at`, `_message.timestamp`."""
    delay: Text
    max_ahead: Text | None = None
    """A row is rejected if its time is further ahead of its message's arrival, as with a wrong clock."""


class Dedup(Table, frozen=True, kw_only=True):
    """`[dedup]`: of rows with the same key, the first is taken."""

    columns: Annotated[list[Text], msgspec.Meta(min_length=1)]
    within: Text
    """How long a key is remembered after it was last seen, in the watermark's time or else the broker's."""
    duplicates: Literal["drop", "reject"] = "drop"


class Windows(Table, frozen=True, kw_only=True):
    """`[windows]`: rows wait until their window is complete. Windows have a length, or are sessions."""

    length: Text | None = None
    gap: Text | None = None
    """A session ends when no row came for this long."""
    by: list[Text] = []
    """Columns that identify a session's owner: `["user"]`."""


class Rejects(Table, frozen=True, kw_only=True):
    """`[rejects]`: where rejected messages go, and how many are too many."""

    exchange: str = ""
    routing_key: str = ""
    max_count: Count | None = None
    """If more messages of a batch are rejected, the pipeline stops before the batch is committed."""
    max_share: Share | None = None
    """If a larger share of a run is rejected, the pipeline stops before the batch is committed."""


class Sink(Table, frozen=True, kw_only=True, rename={"rows": "from"}):
    """`[[sinks]]`: where the rows of a step go."""

    name: Name
    rows: Name | None = None
    """The step whose rows are written. Default: the last step."""
    format: Text = "parquet"
    path: Text | None = None
    partition_by: list[Text] = []
    mode: Literal["append", "overwrite"] = "append"
    options: Settings = {}


class Trigger(Table, frozen=True, kw_only=True):
    """`[trigger]`: how often a batch begins. Default: as soon as the last batch has ended."""

    every: Text | None = None


class Spark(Table, frozen=True, kw_only=True):
    """`[spark]`: the Spark session."""

    master: Text = "local[*]"
    conf: Settings = {}
    packages: list[Text] = []
    """Maven coordinates of jars, for formats that are not part of Spark."""
    jars: list[Text] = []


@dataclass(frozen=True, slots=True)
class FunctionStep:
    """A step in Python: it gets the rows of `of` and returns its own. See `pipeline.Pipeline.step`."""

    name: str
    of: str
    function: Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """The content of a pipeline's file, and the steps that were added to it in Python."""

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
        """Name of the last step: the default input of a sink."""
        return self.step_names[-1] if self.step_names else INPUT

    @property
    def step_names(self) -> list[str]:
        return [*(step.name for step in self.steps), *(step.name for step in self.functions)]


class _Top(msgspec.Struct, frozen=True, kw_only=True):
    """The keys outside of all tables."""

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
"""Tables without default values: a missing table turns its feature off."""
_ARRAYS: Final[dict[str, type[Table]]] = {
    "tables": Static,
    "steps": Step,
    "expectations": Expectation,
    "sinks": Sink,
}
_PATHS: Final = ("path", "checkpoint")
T = TypeVar("T", bound=msgspec.Struct)


def read(path: Path, environment: Mapping[str, str] = os.environ) -> Declaration:
    """Return the declaration in a file, each value of its type."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadPipeline(str(path), 0, "", f"can't be read: {error}") from None
    return parse(text, file=path.name, folder=path.absolute().parent, environment=environment)


def parse(
    text: str, *, file: str, folder: Path | None = None, environment: Mapping[str, str] = os.environ
) -> Declaration:
    """Return the declaration in a text. Relative paths start at the folder, or the working directory."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _not_toml(file, text, error) from None
    return _Reading(file, Lines(text), folder or Path.cwd(), environment).declaration(data)


def _not_toml(file: str, text: str, error: tomllib.TOMLDecodeError) -> BadPipeline:
    message = str(error)
    match = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)", message)
    line = int(match[1]) if match and match[1] else len(text.splitlines())
    problem = message[: match.start()] if match else message
    return BadPipeline(file, line, "", f"is not TOML: {problem[:1].lower()}{problem[1:]}")


class _Reading:
    """Reads one file into the classes above."""

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
            return msgspec.convert(self._with_absolute_paths(self._with_variables(key, value)), kind)
        except msgspec.ValidationError as error:
            raise self._invalid(key, error) from None

    def _with_absolute_paths(self, table: dict[str, Any]) -> dict[str, Any]:
        return {
            name: str(self._folder / value)
            if name in _PATHS and isinstance(value, str) and value and ":/" not in value
            else value
            for name, value in table.items()
        }

    def _with_variables(self, key: Key, value: Any) -> Any:
        """Return a value with each `${NAME}` in it replaced by the environment variable."""
        if isinstance(value, dict):
            return {name: self._with_variables((*key, name), inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [self._with_variables((*key, index), inner) for index, inner in enumerate(value)]
        if not isinstance(value, str):
            return value
        for name, default in ((match[1], match[2]) for match in _VARIABLE.finditer(value)):
            if name not in self._environment and default is None:
                hint = f"export {name}=..., or write the value into the file"
                raise self._wrong(key, f"needs the environment variable {name}, which is not set", hint=hint)
        return _VARIABLE.sub(lambda match: self._environment.get(match[1], match[2]), value)

    def _invalid(self, key: Key, error: msgspec.ValidationError) -> BadPipeline:
        """Return an error with msgspec's message, like `Expected `str`, got `int` - at `$.queue``."""
        message, _, place = str(error).partition(" - at `$")
        inner = tuple(re.findall(r"\.([^.\[`]+)", place))
        if missing := re.search(r"missing required field `(.*)`", message):
            return self._wrong((*key, missing[1]), "is missing")
        if "matching regex" in message:
            allowed = (
                "letters, digits and _, a letter first" if key else "up to 100 letters, digits, . _ and -"
            )
            return self._wrong((*key, *inner), f"can't be a name: {allowed}")
        message = message.replace("`", "'")
        message = message.replace("Expected", "is wrong: expected").replace("Invalid", "is wrong:")
        return self._wrong((*key, *inner), message)

    def _unknown(self, key: Key, name: str, known: set[str]) -> BadPipeline:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(sorted(known))}"
        return self._wrong((*key, name), "is unknown", hint=hint)

    def _wrong(self, key: Key, problem: str, *, hint: str = "") -> BadPipeline:
        return BadPipeline(self._file, self._lines.of(key), dotted(key), problem, hint=hint)


def dotted(key: Key) -> str:
    """Return a key as text, counted from one: `sinks[1].path`."""
    text = ""
    for part in key:
        text += f"[{part + 1}]" if isinstance(part, int) else f".{part}" if text else part
    return text
