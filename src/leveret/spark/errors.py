"""Errors between Spark and the broker, each with one sentence and a hint what to do.

    SparkSideError             `.sentence`: what happened; `.hint`: what to do
    ├─ BadOption               an option is unknown, missing, or does not fit the others
    ├─ BadSchema               the columns to read or write do not fit
    ├─ WrongCheckpoint         the checkpoint belongs to another queue, cursor or broker
    ├─ BrokerAway              no broker answered in `brokerTimeout`
    ├─ BrokerRefused           the broker refused; `.code` and `.kind` are the broker's
    ├─ DataLost                planned messages are not in the broker any more
    └─ NoJava                  Spark's Java is missing or too old

Spark shows only the text of an exception, so the text holds sentence and hint. The rule: no text holds a
password, or a URL with one.
"""

from __future__ import annotations


class SparkSideError(Exception):
    """`SparkSideError("what happened", hint="what to do")`."""

    def __init__(self, sentence: str, *, hint: str = "") -> None:
        super().__init__(f"{sentence} ({hint})" if hint else sentence)
        self.sentence = sentence
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the error with its attributes; Spark sends errors from executors to the driver."""
        return _unpickled, (type(self), self.__dict__)


class BadOption(SparkSideError):
    pass


class BadSchema(SparkSideError):
    pass


class WrongCheckpoint(SparkSideError):
    pass


class BrokerAway(SparkSideError):
    """The broker did not answer, or is busy; the request may be sent again."""


class BrokerRefused(SparkSideError):
    def __init__(self, sentence: str, *, code: int, kind: str = "", hint: str = "") -> None:
        super().__init__(sentence, hint=hint)
        self.code = code
        self.kind = kind


class DataLost(SparkSideError):
    pass


class NoJava(SparkSideError):
    pass


def _unpickled(kind: type[SparkSideError], state: dict[str, object]) -> SparkSideError:
    error = kind.__new__(kind)
    hint = state["hint"]
    error.args = (f"{state['sentence']} ({hint})" if hint else state["sentence"],)
    error.__dict__.update(state)
    return error
