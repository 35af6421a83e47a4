"""What the Flight process and the broker say to each other: typed, of bounded size, and never code."""

from __future__ import annotations

import pickle
import socket
import threading
import typing

import msgspec
import pytest

from leveret.fronts.flight import endpoint, process_protocol
from leveret.fronts.flight.broker_channel import BrokerChannel
from leveret.storage.ack_set import AckSet
from leveret.storage.log_view import LogView
from leveret.storage.segment import SegmentInfo
from tests.processes import WAIT_S

SEGMENTS = (SegmentInfo(0, 1, 4096, 20, 25, 3, 1_000, 2_000, (1 << 64) - 1, 5), SegmentInfo(26))
VIEW = LogView(7, "logs/7", SEGMENTS, 30)
QUESTIONS = [
    process_protocol.Ready(4711),
    process_protocol.Failed("the port is taken"),
    process_protocol.Noted("two connections were closed"),
    process_protocol.Login("ann", b"\xff\x00", "127.0.0.1", True),
    process_protocol.Ask("ann", b"\x01"),
    process_protocol.View("ann", "/", "q", 7, 0, (1 << 63) - 1),
    process_protocol.Stage("ann", b"\x01", [(b"", b"q", b"\xff", b"body")], 2000),
    process_protocol.Checkpoint("ann"),
    process_protocol.MayRead("ann", "/", "q"),
    process_protocol.MayAudit("ann"),
]
REPLIES = [
    process_protocol.LoggedIn(False),
    process_protocol.Answered(b"\x01"),
    process_protocol.Viewed(VIEW, AckSet().encode()),
    process_protocol.Checkpointed(12, {"connection 1": 30}),
    process_protocol.PermissionsChanged(3),
    process_protocol.Retire(),
]


def test_every_message_is_read_as_it_was_said() -> None:
    assert {type(each) for each in QUESTIONS} == set(typing.get_args(process_protocol.Question))
    assert {type(each) for each in REPLIES} == set(typing.get_args(process_protocol.Reply))
    for number, question in enumerate(QUESTIONS):
        assert process_protocol.read_question(body_of(process_protocol.frame(number, question))) == (
            number,
            question,
        )
    for number, reply in enumerate(REPLIES):
        assert process_protocol.read_reply(body_of(process_protocol.frame(number, reply))) == (number, reply)


def test_a_view_keeps_its_types() -> None:
    _, reply = process_protocol.read_reply(
        body_of(process_protocol.frame(1, process_protocol.Viewed(VIEW, b"")))
    )
    assert isinstance(reply, process_protocol.Viewed)
    assert reply.view.without(["logs/7/msgs.00000000000000000000-1"]).segments == SEGMENTS[1:]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xc1", id="a byte that MessagePack has not"),
        pytest.param(msgspec.msgpack.encode((1, ["Ask", "ann"])), id="a field is missing"),
        pytest.param(msgspec.msgpack.encode((1, ["Ask", "ann", 5])), id="a field of another type"),
        pytest.param(msgspec.msgpack.encode((1, ["Shout", "ann"])), id="an unknown message"),
        pytest.param(msgspec.msgpack.encode((1, "Ask")), id="no message"),
        pytest.param(msgspec.msgpack.encode((1, ["Answered", b""])), id="a message of the other direction"),
        pytest.param(msgspec.msgpack.encode((1, ["Noted", "x"])).replace(b"x", b"\xff"), id="no UTF-8"),
        pytest.param(b"\x91" * 100_000, id="arrays without an end"),
        pytest.param(pickle.dumps((1, process_protocol.Noted("x"))), id="a pickle"),
    ],
)
def test_what_is_no_question_is_refused_with_a_sentence(body: bytes) -> None:
    with pytest.raises(process_protocol.WireError, match=r"^a message that can't be read: "):
        process_protocol.read_question(body)


def test_a_view_is_data_of_known_types_and_no_pickle() -> None:
    forged = msgspec.msgpack.encode((1, ["Viewed", pickle.dumps(VIEW), b""]))
    with pytest.raises(process_protocol.WireError, match="can't be read"):
        process_protocol.read_reply(forged)


def test_a_frame_that_is_too_large_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    most_bytes = process_protocol.question_bytes_max(1 << 20)
    assert (
        process_protocol.body_bytes(process_protocol.LENGTH.pack(most_bytes), most_bytes=most_bytes)
        == most_bytes
    )
    sentence = f"a message of {most_bytes + 1} bytes is larger than the limit of {most_bytes}"
    with pytest.raises(process_protocol.WireError, match=sentence):
        process_protocol.body_bytes(process_protocol.LENGTH.pack(most_bytes + 1), most_bytes=most_bytes)
    monkeypatch.setattr(process_protocol, "FRAME_BYTES_MAX", 100)
    with pytest.raises(process_protocol.WireError, match="larger than the limit of 100"):
        process_protocol.frame(1, process_protocol.Noted("x" * 100))


def test_an_answer_that_is_too_large_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_protocol, "FRAME_BYTES_MAX", 200)
    _, reply = process_protocol.read_reply(body_of(endpoint._frame(1, process_protocol.Answered(bytes(300)))))
    assert isinstance(reply, process_protocol.Answered)
    assert b"the broker's answer is a message of 3" in reply.answer


def test_a_broker_that_sends_what_is_no_message_is_told_so_and_left() -> None:
    """The process ends then, and is started again; none of its calls waits for an answer any longer."""
    ours, brokers = socket.socketpair()
    with ours, brokers:
        brokers.settimeout(WAIT_S)
        line = BrokerChannel(ours)
        line.send_start_result(process_protocol.Ready(1))
        listening = threading.Thread(target=line.listen, daemon=True)
        listening.start()
        brokers.sendall(process_protocol.LENGTH.pack(1) + b"\xc1")
        listening.join(WAIT_S)
        assert not listening.is_alive()
        with brokers.makefile("rb") as stream:
            said = [
                process_protocol.read_question(stream.read(process_protocol.LENGTH.unpack(stream.read(4))[0]))
                for _ in range(2)
            ]
    assert isinstance(said[1][1], process_protocol.Noted)
    assert said[1][1].text.startswith(
        "answers of the broker can't be read any more: a message that can't be read"
    )


def body_of(frame: bytes) -> bytes:
    return frame[process_protocol.LENGTH.size :]
