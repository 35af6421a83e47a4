"""Errors of pipelines.

SparkSideError
├── BadPipeline       an error in the pipeline's file
├── TooManyRejects    a threshold of [rejects] was passed
└── CheckpointInUse   another run uses the checkpoint
"""

from __future__ import annotations

from leveret.spark.errors import SparkSideError


class BadPipeline(SparkSideError):
    """`BadPipeline("orders.toml", 12, "source.queu", "is unknown", hint="did you mean 'queue'?")`."""

    def __init__(self, file: str, line: int, key: str, problem: str, *, hint: str = "") -> None:
        where = f"{file}, line {line}" if line else file
        super().__init__(f"{where}: {key} {problem}" if key else f"{where}: {problem}", hint=hint)
        self.file = file
        self.line = line
        self.key = key
        self.problem = problem


class TooManyRejects(SparkSideError):
    """Too many messages were rejected: the batch is not committed, and none of its messages is settled."""


class CheckpointInUse(SparkSideError):
    """Another run uses the checkpoint: this one has changed nothing."""
