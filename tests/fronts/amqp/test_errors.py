"""Each error of the broker has a code in each protocol that has codes."""

from leveret.broker.errors import BrokerError, Locked, QueryRefused
from leveret.fronts.amqp.errors import AMQP_ERRORS, as_amqp
from leveret.fronts.flight.answers import CODES, refused


def test_every_error_of_the_broker_has_an_amqp_error_and_a_code_for_flight() -> None:
    kinds = set(BrokerError.__subclasses__())
    assert set(AMQP_ERRORS) == set(CODES) == kinds
    assert {kind: AMQP_ERRORS[kind].code for kind in kinds} == CODES


def test_the_sentence_is_told_with_the_name_of_the_code() -> None:
    error = as_amqp(Locked("cannot obtain exclusive access to locked queue 'q' in vhost '/'."))
    assert error.code == 405
    assert error.reply_text.startswith("RESOURCE_LOCKED - cannot obtain exclusive access")


def test_a_refused_lease_tells_flight_its_kind_and_amqp_its_sentence() -> None:
    error = QueryRefused("gone", "it is gone", hint="Start again.")
    told = refused(error)
    assert (told.code, told.text, told.hint, told.kind) == (406, "it is gone", "Start again.", "gone")
    assert as_amqp(error).reply_text == "PRECONDITION_FAILED - it is gone"
