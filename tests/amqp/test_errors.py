import inspect

import pytest

from leveret.amqp import errors
from leveret.amqp.errors import AmqpError, ChannelException, ConnectionException, LoginRefused, NotFound

CONCRETE = [
    each
    for each in vars(errors).values()
    if inspect.isclass(each)
    and issubclass(each, AmqpError)
    and each not in (AmqpError, ChannelException, ConnectionException)
]
# RabbitMQ's table (rabbit_framing): what is a soft error, and what a hard one.
SOFT = {
    311: "CONTENT_TOO_LARGE",
    403: "ACCESS_REFUSED",
    404: "NOT_FOUND",
    405: "RESOURCE_LOCKED",
    406: "PRECONDITION_FAILED",
}
HARD = {
    320: "CONNECTION_FORCED",
    501: "FRAME_ERROR",
    502: "SYNTAX_ERROR",
    503: "COMMAND_INVALID",
    504: "CHANNEL_ERROR",
    505: "UNEXPECTED_FRAME",
    506: "RESOURCE_ERROR",
    530: "NOT_ALLOWED",
    540: "NOT_IMPLEMENTED",
    541: "INTERNAL_ERROR",
}


def test_every_code_is_there_once_and_closes_what_it_should() -> None:
    soft = {each.code: each.name for each in CONCRETE if issubclass(each, ChannelException)}
    hard = {
        each.code: each.name
        for each in CONCRETE
        if issubclass(each, ConnectionException) and each is not LoginRefused
    }
    assert (soft, hard) == (SOFT, HARD)
    assert len(CONCRETE) == len(SOFT) + len(HARD) + 1


def test_a_refused_login_closes_the_connection_though_its_code_is_a_channels() -> None:
    assert (LoginRefused.code, LoginRefused.name) == (403, "ACCESS_REFUSED")
    assert issubclass(LoginRefused, ConnectionException)


def test_the_text_on_the_wire_begins_with_the_name() -> None:
    error = NotFound("no queue 'q' in vhost '/'")
    assert error.reply_text == "NOT_FOUND - no queue 'q' in vhost '/'"
    assert (str(error), error.method) == ("no queue 'q' in vhost '/'", (0, 0))


@pytest.mark.parametrize("filler", ["x", "é", "\udcff", "🐇"])
def test_a_text_that_is_too_long_is_cut_to_what_a_short_string_holds(filler: str) -> None:
    text = NotFound(filler * 300).reply_text
    assert len(text.encode("utf-8", "surrogateescape")) == 255
    assert text.startswith(f"NOT_FOUND - {filler}")
    assert text.endswith("...")


def test_a_text_of_just_the_right_size_is_whole() -> None:
    sentence = "x" * (255 - len("NOT_FOUND - "))
    assert NotFound(sentence).reply_text == f"NOT_FOUND - {sentence}"
