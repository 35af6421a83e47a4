"""What a refusal of the broker means to a query, in a sentence for users of Spark."""

from __future__ import annotations

from leveret.flight import actions
from leveret.spark.errors import BrokerRefused, DataLost, SparkSideError
from leveret.spark.flight_calls import AnswerT, Calls
from leveret.spark.options import SourceOptions


def ask(calls: Calls, request: actions.Request, kind: type[AnswerT], options: SourceOptions) -> AnswerT:
    """Return the broker's answer to a request of a query; raise its refusal as `explained`."""
    try:
        return calls.ask(request, kind)
    except BrokerRefused as error:
        raise explained(error, options) from None


def explained(error: BrokerRefused, options: SourceOptions) -> SparkSideError:
    """Return the error to show instead of this one, or `error` itself if nothing can be added."""
    source = options.described
    match error.kind:
        case "fenced":
            sentence = f"another run of this query has taken over cursor '{options.cursor}' of {source}"
            hint = "one query at a time has a cursor: stop the other, or give this one a cursor of its own"
        case "settled":
            sentence = f"a batch of {source} can't be read again, its messages are acked: {error.sentence}"
            hint = (
                "that happens with asynchronous progress tracking, which can't be used here, and with an "
                "old copy of a checkpoint; start with a new checkpoint to go on with what is in the queue"
            )
        case "expired":
            sentence = (
                f"a batch of {source} can't be read again, its lease ran out and its messages went back "
                f"to the queue: {error.sentence}"
            )
            hint = (
                "start with a new checkpoint, rows of the last batch may then come twice; a longer "
                "leaseTimeout lets a query be away for longer"
            )
        case "gone":
            return DataLost(error.sentence, hint=error.hint)
        case _:
            return error
    return BrokerRefused(sentence, code=error.code, kind=error.kind, hint=hint)
