"""What is wrong with a pipeline: the file, the line, the key, and one sentence."""

from __future__ import annotations

from leveret.spark.errors import SparkSideError


class BadPipeline(SparkSideError):
    """`BadPipeline("orders.toml", 12, "source.queu", "is no key of it", hint="did you mean 'queue'?")`."""

    def __init__(self, file: str, line: int, key: str, problem: str, *, hint: str = "") -> None:
        where = f"{file}, line {line}" if line else file
        super().__init__(f"{where}: {key} {problem}" if key else f"{where}: {problem}", hint=hint)
        self.file = file
        self.line = line
        self.key = key
        self.problem = problem


class TooManyRejects(SparkSideError):
    """A threshold was passed: the batch is not committed, and nothing of it is settled."""


class CheckpointInUse(SparkSideError):
    """Another run of the pipeline is going on: nothing of it was touched."""
