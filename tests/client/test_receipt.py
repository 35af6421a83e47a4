import asyncio

import pytest

from leveret.client.errors import ConfirmTimeout
from leveret.client.receipt import MessageLost, MessageNacked, MessageReturned, PublishFailed, Receipt, Status


def receipt(**chosen: object) -> Receipt:
    about: dict[str, object] = {
        "exchange": "ex",
        "routing_key": "key",
        "message_id": "m-1",
        "correlation_id": None,
        "started_s": 10.0,
        "deadline_s": 40.0,
        "callback": None,
    }
    return Receipt(1, b"method", b"header", b"body", **{**about, **chosen})  # type: ignore[arg-type]


def resolved(status: Status, **chosen: object) -> Receipt:
    made = receipt(**chosen)
    made.resolve(status, 12.5)
    return made


def test_a_receipt_is_pending_first() -> None:
    made = receipt()
    assert made.status is Status.PENDING
    assert (made.done, made.confirmed, made.returned, made.nacked, made.lost) == (False,) * 5
    assert made.latency_s is None
    assert made.attempts == 0
    assert made.check() is made


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.PENDING])
def test_a_resolved_receipt_has_one_status_and_says_so(status: Status) -> None:
    made = resolved(status)
    assert made.done
    assert made.latency_s == 2.5
    assert made.confirmed == (status is Status.CONFIRMED)
    assert made.nacked == (status is Status.NACKED)
    assert made.lost == (status is Status.LOST)
    assert status.value in repr(made)


def test_the_bytes_are_not_kept_when_nobody_sends_them_again() -> None:
    made = resolved(Status.CONFIRMED)
    assert (made.body, made.header) == (b"", b"")


def test_a_return_is_known_before_the_confirm() -> None:
    made = receipt()
    made.reply_code, made.reply_text = 312, "NO_ROUTE"
    assert made.returned
    assert not made.done
    made.resolve(Status.RETURNED, 11.0)
    assert made.returned
    assert "312 NO_ROUTE" in repr(made)


def test_the_correlation_id_is_the_callers_or_else_the_message_id() -> None:
    assert receipt(correlation_id="mine").correlation_id == "mine"
    assert receipt().correlation_id == "m-1"


def test_a_message_id_may_be_made_when_it_is_asked_for() -> None:
    made = receipt(message_id=lambda seq: f"made-{seq}")
    assert made.message_id == made.correlation_id == "made-1"


def test_confirmed_and_sent_are_good() -> None:
    for status in (Status.CONFIRMED, Status.SENT):
        made = resolved(status)
        assert made.check() is made


def test_returned_is_raised_with_code_and_text() -> None:
    made = receipt()
    made.reply_code, made.reply_text = 312, "NO_ROUTE"
    made.resolve(Status.RETURNED, 11.0)
    with pytest.raises(
        MessageReturned, match=r"m-1 to exchange 'ex', key 'key', was returned: 312 NO_ROUTE"
    ) as caught:
        made.check()
    assert caught.value.receipt is made
    assert not caught.value.retryable
    assert caught.value.hint


def test_nacked_is_raised_with_its_reason_and_its_cause() -> None:
    cause = ConfirmTimeout("why")
    made = receipt()
    made.reason, made.cause = "404 NOT_FOUND", cause
    made.resolve(Status.NACKED, 11.0)
    with pytest.raises(MessageNacked, match="was refused: 404 NOT_FOUND") as caught:
        made.check()
    assert caught.value.__cause__ is cause
    with pytest.raises(MessageNacked, match="gave no reason"):
        resolved(Status.NACKED).check()


def test_lost_is_raised_with_its_cause() -> None:
    made = receipt()
    made.attempts, made.cause = 3, ConfirmTimeout("no confirm came")
    made.resolve(Status.LOST, 11.0)
    with pytest.raises(MessageLost, match="after 3 attempts: no confirm came") as caught:
        made.check()
    assert isinstance(caught.value, PublishFailed)
    assert caught.value.__cause__ is made.cause
    assert caught.value.retryable
    assert "no confirm came" in repr(made)


def test_the_cause_of_an_earlier_attempt_is_forgotten_when_it_is_confirmed() -> None:
    made = receipt()
    made.cause = ConfirmTimeout("once")
    made.resolve(Status.CONFIRMED, 11.0)
    assert made.cause is None


def test_any_number_of_tasks_may_wait_for_a_receipt() -> None:
    async def run() -> None:
        made = receipt()

        async def wait() -> Receipt:
            return await made

        tasks = [asyncio.create_task(wait()) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.sleep(0)
        made.resolve(Status.CONFIRMED, 11.0)
        first, second, third = await asyncio.gather(*tasks, return_exceptions=True)
        assert first is third is made
        assert isinstance(second, asyncio.CancelledError)
        assert await made is made

    asyncio.run(run())


def test_receipts_are_gathered_and_waited_for_like_other_awaitables() -> None:
    async def run() -> None:
        one, two = receipt(), receipt()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(one, 0.001)
        asyncio.get_running_loop().call_soon(one.resolve, Status.CONFIRMED, 11.0)
        asyncio.get_running_loop().call_soon(two.resolve, Status.LOST, 11.0)
        assert await asyncio.gather(one, two) == [one, two]

    asyncio.run(run())
