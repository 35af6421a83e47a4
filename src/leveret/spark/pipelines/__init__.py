"""Declared pipelines: from a queue, through SQL, into tables, with an account of every message.

    leveret pipeline run orders.toml

From Python, where steps can be functions: `Pipeline.from_toml("orders.toml").run()`. `declaration` reads a
file, `declaration_checks` checks it, `running` starts the Spark query, and `batches` works on a batch.
"""

from leveret.spark.pipelines.errors import BadPipeline, TooManyRejects
from leveret.spark.pipelines.pipeline import Pipeline, Tried
from leveret.spark.pipelines.tables import read as read_table

__all__ = ["BadPipeline", "Pipeline", "TooManyRejects", "Tried", "read_table"]
