import inspect
import pickle

import pytest

from leveret.client import errors
from leveret.client.errors import ChannelClosed, ClientError, ConnectionLost, Difference, TopologyMismatch

KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, ClientError) and not kind.__name__.startswith("_")
]
RETRYABLE = {
    "NotConnected",
    "ChannelsExhausted",
    "ConnectionBlocked",
    "ConnectionLost",
    "ConfirmTimeout",
    "WindowFull",
    "MessageNacked",
    "MessageLost",
    "ConfirmsFailed",
    "PublishInterrupted",
    "HandlerTimeout",
    "NoReply",
    "QueueLocked",
    "SeenFailed",
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_says_whether_to_try_again(kind: type[ClientError]) -> None:
    assert kind.retryable is (kind.__name__ in RETRYABLE)


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_is_in_the_tree_of_the_docstring(kind: type[ClientError]) -> None:
    assert errors.__doc__ is not None
    assert f" {kind.__name__} " in errors.__doc__


WITHOUT_HINT = {"ClientError", "ConnectionLost", "ChannelClosed", "PublishFailed", "HandlerTimeout"}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.__name__ not in WITHOUT_HINT])
def test_errors_that_a_user_can_do_something_about_say_what(kind: type[ClientError]) -> None:
    assert kind.hint


def test_a_hint_is_part_of_what_is_shown() -> None:
    assert str(ClientError("it broke")) == "it broke"
    assert str(ClientError("it broke", hint="mend it")) == "it broke (mend it)"
    assert ClientError("it broke", hint="mend it").sentence == "it broke"


def test_a_hint_that_is_given_replaces_that_of_the_kind() -> None:
    assert str(errors.WindowFull("no room", hint="wait")) == "no room (wait)"
    assert errors.WindowFull.hint != "wait"


@pytest.mark.parametrize("code", [403, 404, 405, 406])
def test_a_closed_channel_has_a_hint_for_each_of_the_brokers_codes(code: int) -> None:
    error = ChannelClosed("closed", code=code, text="why")
    assert (error.code, error.text) == (code, "why")
    assert error.hint


def test_a_code_without_a_hint_is_shown_as_it_is() -> None:
    assert str(ChannelClosed("closed", code=599)) == "closed"


def test_a_lost_connection_keeps_what_the_broker_said() -> None:
    error = ConnectionLost("closed", code=320, text="CONNECTION_FORCED")
    assert (error.code, error.text, error.retryable) == (320, "CONNECTION_FORCED", True)


def test_a_difference_is_a_sentence() -> None:
    difference = Difference("queue 'q'", "durable", "true", "false")
    assert str(difference) == "queue 'q': durable is declared as true, but it is false"
    assert TopologyMismatch("different", differences=(difference,)).differences == (difference,)


def test_login_and_blocked_are_ways_of_not_being_connected() -> None:
    assert issubclass(errors.LoginRefused, errors.NotConnected)
    assert issubclass(errors.ConnectionBlocked, errors.NotConnected)
    assert not errors.LoginRefused.retryable


@pytest.mark.parametrize("error", [ClientError("a", hint="b"), errors.NotConnected("a")])
def test_errors_go_to_other_processes(error: ClientError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))


def test_errors_with_the_words_of_the_broker_go_to_other_processes() -> None:
    again = pickle.loads(pickle.dumps(ChannelClosed("closed", code=404, text="why")))
    assert (again.code, again.text, str(again)) == (
        404,
        "why",
        "closed (declare it first, in the topology for example)",
    )
