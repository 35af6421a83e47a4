"""What the Flight process and the broker say to each other: typed, of bounded size, and never code."""

from __future__ import annotations

import pickle
import socket
import threading
import typing

import msgspec
import pytest

from leveret.fronts.flight import endpoint, wire
from leveret.fronts.flight.broker_line import BrokerLine
from leveret.storage.ackset import AckSet
from leveret.storage.segment import SegmentInfo
from leveret.storage.view import LogView
from tests.processes import WAIT_S

SEGMENTS = (SegmentInfo(0, 1, 4096, 20, 25, 3, 1_000, 2_000, (1 << 64) - 1, 5), SegmentInfo(26))
VIEW = LogView(7, "logs/7", SEGMENTS, 30)
QUESTIONS = [
    wire.Ready(4711),
    wire.Failed("the port is taken"),
    wire.Noted("two connections were closed"),
    wire.Login("ann", b"\xff\x00", "127.0.0.1", True),
    wire.Ask("ann", b"\x01"),
    wire.View("ann", "/", "q", 7, 0, (1 << 63) - 1),
    wire.Stage("ann", b"\x01", [(b"", b"q", b"\xff", b"body")], 2000),
    wire.Checkpoint("ann"),
    wire.MayRead("ann", "/", "q"),
    wire.MayAudit("ann"),
]
REPLIES = [
    wire.LoggedIn(False),
    wire.Answered(b"\x01"),
    wire.Viewed(VIEW, AckSet().encode()),
    wire.Checkpointed(12, {"connection 1": 30}),
    wire.RightsChanged(3),
]


def test_every_message_is_read_as_it_was_said() -> None:
    assert {type(each) for each in QUESTIONS} == set(typing.get_args(wire.Question))
    assert {type(each) for each in REPLIES} == set(typing.get_args(wire.Reply))
    for number, question in enumerate(QUESTIONS):
        assert wire.read_question(body_of(wire.frame(number, question))) == (number, question)
    for number, reply in enumerate(REPLIES):
        assert wire.read_reply(body_of(wire.frame(number, reply))) == (number, reply)


def test_a_view_keeps_its_types() -> None:
    _, reply = wire.read_reply(body_of(wire.frame(1, wire.Viewed(VIEW, b""))))
    assert isinstance(reply, wire.Viewed)
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
        pytest.param(pickle.dumps((1, wire.Noted("x"))), id="a pickle"),
    ],
)
def test_what_is_no_question_is_refused_with_a_sentence(body: bytes) -> None:
    with pytest.raises(wire.WireError, match=r"^a message that can't be read: "):
        wire.read_question(body)


def test_a_view_is_data_of_known_types_and_no_pickle() -> None:
    forged = msgspec.msgpack.encode((1, ["Viewed", pickle.dumps(VIEW), b""]))
    with pytest.raises(wire.WireError, match="can't be read"):
        wire.read_reply(forged)


def test_a_frame_that_is_too_large_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    most_bytes = wire.question_bytes_max(1 << 20)
    assert wire.body_bytes(wire.LENGTH.pack(most_bytes), most_bytes=most_bytes) == most_bytes
    sentence = f"a message of {most_bytes + 1} bytes, where at most {most_bytes} are read"
    with pytest.raises(wire.WireError, match=sentence):
        wire.body_bytes(wire.LENGTH.pack(most_bytes + 1), most_bytes=most_bytes)
    monkeypatch.setattr(wire, "FRAME_BYTES_MAX", 100)
    with pytest.raises(wire.WireError, match="where at most 100 are read"):
        wire.frame(1, wire.Noted("x" * 100))


def test_an_answer_that_is_too_large_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "FRAME_BYTES_MAX", 200)
    _, reply = wire.read_reply(body_of(endpoint._frame(1, wire.Answered(bytes(300)))))
    assert isinstance(reply, wire.Answered)
    assert b"the broker's answer is a message of 3" in reply.answer


def test_a_broker_that_sends_what_is_no_message_is_told_so_and_left() -> None:
    """The process ends then, and is started again; none of its calls waits for an answer any longer."""
    ours, brokers = socket.socketpair()
    with ours, brokers:
        brokers.settimeout(WAIT_S)
        line = BrokerLine(ours)
        line.tell(wire.Ready(1))
        listening = threading.Thread(target=line.listen, daemon=True)
        listening.start()
        brokers.sendall(wire.LENGTH.pack(1) + b"\xc1")
        listening.join(WAIT_S)
        assert not listening.is_alive()
        with brokers.makefile("rb") as stream:
            said = [wire.read_question(stream.read(wire.LENGTH.unpack(stream.read(4))[0])) for _ in range(2)]
    assert isinstance(said[1][1], wire.Noted)
    assert said[1][1].text.startswith("the broker has sent a message that can't be read")


def body_of(frame: bytes) -> bytes:
    return frame[wire.LENGTH.size :]
