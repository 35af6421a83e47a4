"""Sinks that take a batch once: the name and number under which a sink knows a batch, and whether it has one.

    files      are overwritten: whatever they have of a batch is replaced when it runs again
    leveret    the broker remembers the last batch of a name that was committed
    jdbc       the last batch is noted beside the table
    others     append again, and cannot be asked

A sink of Leveret or JDBC that has a batch drops a second write of it. So the rule: rows in such a sink decide
for all sinks how the batch was judged (`recorded_rejects`).
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import SparkSession

from leveret.flight.actions import Commit, Committed
from leveret.spark.endpoint import find
from leveret.spark.errors import BrokerRefused
from leveret.spark.flight_calls import Calls
from leveret.spark.options import SinkOptions
from leveret.spark.pipelines import jdbc
from leveret.spark.pipelines.checkpoint_files import query_id
from leveret.spark.pipelines.declaration import FILES, Declaration, Sink
from leveret.spark.pipelines.declaration_checks import as_options, broker_options

_UNKNOWN_STAGE: Final = "nobody's"
"""Name of a stage that does not exist."""


def all_overwritten(declared: Declaration) -> bool:
    """Whether every sink overwrites a batch that runs again."""
    return all(sink.format in FILES for sink in declared.sinks)


def is_in_a_sink(spark: SparkSession, declared: Declaration, batch: int) -> bool:
    """Whether a sink that cannot take rows back has this batch."""
    return any(_has(spark, sink, declared, batch) for sink in declared.sinks)


def _has(spark: SparkSession, sink: Sink, declared: Declaration, batch: int) -> bool:
    if sink.format == "jdbc":
        return jdbc.has(spark, sink, declared, batch)
    return sink.format == "leveret" and _is_committed(sink, declared, batch)


def sink_options(sink: Sink, declared: Declaration, batch: int) -> dict[str, str]:
    """Return the options of a Leveret sink. The source's broker is the default, unless the sink has a URL."""
    own = as_options(sink.options)
    own_names = {name.lower() for name in own}
    of_source = {} if "url" in own_names else broker_options(declared)
    inherited = {name: value for name, value in of_source.items() if name.lower() not in own_names}
    return {**inherited, **own, **identity(declared, f"sink.{sink.name}", batch)}


def identity(declared: Declaration, purpose: str, batch: int) -> dict[str, str]:
    """Return options that make a write to Leveret happen once. A new checkpoint has a new `queryName`."""
    query = ".".join(filter(None, (declared.name, purpose, query_id(declared))))
    return {"queryName": query, "batchId": str(batch)}


def _is_committed(sink: Sink, declared: Declaration, batch: int) -> bool:
    """Ask the broker with a commit of an unknown stage, which is refused or known and changes nothing."""
    options = SinkOptions.parse(sink_options(sink, declared, batch))
    endpoint = find(options)
    if not endpoint.is_leveret:
        return False
    assert options.query_name is not None
    with Calls(endpoint) as calls:
        try:
            request = Commit(options.vhost, options.query_name, batch, [_UNKNOWN_STAGE])
            return calls.ask(request, Committed).known
        except BrokerRefused as error:
            if error.kind == "expired":
                return False
            raise
