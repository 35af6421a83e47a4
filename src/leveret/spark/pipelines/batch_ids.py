"""Sinks that take a batch once: by what they know it, and whether one has it.

    files      are overwritten: whatever they have of a batch is taken back when it runs again
    leveret    the broker remembers the last batch of a name that was committed
    jdbc       the last batch is noted beside the table
    others     append again, and can't be asked

A sink that has a batch drops what is written of it again. So the rule: what is in such a sink decides for all
of them how the batch was judged (`recorded_rejects`).
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
from leveret.spark.pipelines.declaration import Declaration, Sink
from leveret.spark.pipelines.declaration_checks import FILES, as_options, broker_options

_NOBODYS: Final = "nobody's"
"""A stage that is not there."""


def taken_back(declared: Declaration) -> bool:
    """Whether all sinks can be written anew, as if nothing had been written before."""
    return all(sink.format in FILES for sink in declared.sinks)


def is_in_a_sink(spark: SparkSession, declared: Declaration, batch: int) -> bool:
    """Whether one has this batch that can't give it back."""
    return any(_has(spark, sink, declared, batch) for sink in declared.sinks)


def _has(spark: SparkSession, sink: Sink, declared: Declaration, batch: int) -> bool:
    if sink.format == "jdbc":
        return jdbc.has(spark, sink, declared, batch)
    return sink.format == "leveret" and _is_committed(sink, declared, batch)


def sink_options(sink: Sink, declared: Declaration, batch: int) -> dict[str, str]:
    """Of a sink of Leveret. One that names a broker of its own has nothing of the source's."""
    own = as_options(sink.options)
    named = {name.lower() for name in own}
    of_source = {} if "url" in named else broker_options(declared)
    given = {name: value for name, value in of_source.items() if name.lower() not in named} | own
    return {**given, **identity(declared, f"sink.{sink.name}", batch)}


def identity(declared: Declaration, what: str, batch: int) -> dict[str, str]:
    """Options that make a write to Leveret happen once: a new checkpoint counts its batches anew."""
    query = ".".join(filter(None, (declared.name, what, query_id(declared))))
    return {"queryName": query, "batchId": str(batch)}


def _is_committed(sink: Sink, declared: Declaration, batch: int) -> bool:
    """Asked with a commit of what is not there: it is known, or refused, and changes nothing."""
    options = SinkOptions.parse(sink_options(sink, declared, batch))
    endpoint = find(options)
    if not endpoint.is_leveret:
        return False
    assert options.query_name is not None
    with Calls(endpoint) as calls:
        try:
            request = Commit(options.vhost, options.query_name, batch, [_NOBODYS])
            return calls.ask(request, Committed).known
        except BrokerRefused as error:
            if error.kind == "expired":
                return False
            raise
