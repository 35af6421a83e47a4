"""What can go wrong between Spark and the broker, each as one sentence that says what to do.

    SparkSideError             `.sentence`: what happened; `.hint`: what to do
    ├─ BadOption               an option is unknown, missing, or does not fit the others
    ├─ BadSchema               columns that are asked for, or written, are not the ones there are
    ├─ WrongCheckpoint         the checkpoint belongs to another queue, cursor or broker
    ├─ BrokerAway              no broker answered in `brokerTimeout`
    ├─ BrokerRefused           it answered, and refused: `.code`, `.kind` as they came
    ├─ DataLost                messages that were planned are not there any more
    └─ NoJava                  Spark's Java is missing or too old

Spark shows the text of an exception and nothing else of it, so the text is the whole message. The rule:
no text holds a password, or a URL with one.
"""

from __future__ import annotations


class SparkSideError(Exception):
    """`SparkSideError("what happened", hint="what to do")`."""

    def __init__(self, sentence: str, *, hint: str = "") -> None:
        super().__init__(f"{sentence} ({hint})" if hint else sentence)
        self.sentence = sentence
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        """Errors of executors travel pickled."""
        return _again, (type(self), self.__dict__)


class BadOption(SparkSideError):
    pass


class BadSchema(SparkSideError):
    pass


class WrongCheckpoint(SparkSideError):
    pass


class BrokerAway(SparkSideError):
    """It did not answer, or could not do now what it may be asked again."""


class BrokerRefused(SparkSideError):
    def __init__(self, sentence: str, *, code: int, kind: str = "", hint: str = "") -> None:
        super().__init__(sentence, hint=hint)
        self.code = code
        self.kind = kind


class DataLost(SparkSideError):
    pass


class NoJava(SparkSideError):
    pass


def _again(kind: type[SparkSideError], state: dict[str, object]) -> SparkSideError:
    error = kind.__new__(kind)
    hint = state["hint"]
    error.args = (f"{state['sentence']} ({hint})" if hint else state["sentence"],)
    error.__dict__.update(state)
    return error
