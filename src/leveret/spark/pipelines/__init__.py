"""Declared pipelines: from a queue, through SQL, into tables, with an account of every message.

    leveret pipeline run orders.toml

or from Python, where steps can be functions: `Pipeline.from_toml("orders.toml").run()`. `declaration` is
what a file may say, `checks` what it must hold; `running` is the query that it becomes.
"""

from leveret.spark.pipelines.errors import BadPipeline, TooManyRejects
from leveret.spark.pipelines.pipeline import Pipeline, Tried
from leveret.spark.pipelines.tables import read as read_table

__all__ = ["BadPipeline", "Pipeline", "TooManyRejects", "Tried", "read_table"]
