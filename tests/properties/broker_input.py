"""What clients may send, as strategies, and what a broker must be like afterwards.

Sessions are made of real methods with a small vocabulary of names, so that they meet: what one declares,
another deletes while a third consumes from it. The checks are shared with the fuzzer (`bench/fuzz_amqp.py`).
"""

from typing import Any

from hypothesis import strategies as st
from pamqp import commands

from leveret.amqp.errors import AmqpError
from leveret.amqp.frames import BODY, HEARTBEAT_FRAME, PROTOCOL_HEADER, frame
from leveret.amqp.methods import Method
from leveret.amqp.tables import Timestamp, Value
from leveret.broker.limits import Limits
from leveret.fronts.amqp.wire import State
from tests.amqp.session import (
    Core,
    Session,
    channel_open,
    content,
    frames_in,
    handshake,
    header_of,
    methods_in,
    names_in,
    opened,
    published,
    sent,
    settlement,
    start_ok,
    tune_ok,
)

LIMITS = Limits(channel_max=5, frame_max=8192, message_max_bytes=2000)
OPEN = handshake(channel_max=5, frame_max=8192)
READY = OPEN + channel_open(1, 2)
TUNED = tune_ok(channel_max=5, frame_max=8192)
SIMPLE = PROTOCOL_HEADER + start_ok(capabilities={}) + TUNED + opened() + channel_open(1, 2)
"""A client that can't be told that its consumer is cancelled."""
KINDS: list[type[Method]] = list(commands.INDEX_MAPPING.values())
CLIENT_KINDS = [
    *(commands.Queue.Declare, commands.Queue.Bind, commands.Queue.Unbind, commands.Queue.Purge),
    *(commands.Queue.Delete, commands.Exchange.Declare, commands.Exchange.Delete, commands.Exchange.Bind),
    *(commands.Exchange.Unbind, commands.Basic.Qos, commands.Basic.Consume, commands.Basic.Cancel),
    *(
        commands.Basic.Get,
        commands.Basic.Recover,
        commands.Tx.Select,
        commands.Tx.Commit,
        commands.Tx.Rollback,
    ),
    *(commands.Confirm.Select, commands.Channel.Open, commands.Channel.Close, commands.Channel.CloseOk),
]
QUEUES = ["", "q", "q", "p", "amq.rabbitmq.reply-to", "amq.gen-x", "\udcff\n"]
EXCHANGES = ["", "e", "f", "amq.topic", "amq.headers", "amq.fanout", "amq.direct", "amq.rabbitmq.trace"]
KEYS = ["", "q", "p", "a.b", "#", "*.#", "amq.rabbitmq.reply-to", "amq.rabbitmq.reply-to.token-1"]

numbers = st.sampled_from([0, 1, 2, 255, 256, 10_000, 2**31, 2**63 - 1, -1])
odd_values: st.SearchStrategy[Value] = st.one_of(
    numbers,
    st.sampled_from(
        [True, False, None, 0.5, 1e300, "", "x", b"\xff", Timestamp(5), [], {}, [1, "q"], {"a": []}]
    ),
)
table_entries: dict[str, st.SearchStrategy[Value]] = {
    "x-message-ttl": numbers,
    "x-expires": numbers,
    "x-max-length": st.sampled_from([0, 1, 3]),
    "x-max-length-bytes": st.sampled_from([0, 1, 50]),
    "x-overflow": st.sampled_from(["drop-head", "reject-publish", "reject-publish-dlx"]),
    "x-dead-letter-exchange": st.sampled_from(EXCHANGES),
    "x-dead-letter-routing-key": st.sampled_from(KEYS),
    "x-max-priority": st.sampled_from([0, 1, 10, 255]),
    "x-single-active-consumer": st.booleans(),
    "x-queue-type": st.sampled_from(["classic", "quorum"]),
    "x-delivery-limit": st.sampled_from([0, 1, 2]),
    "x-consumer-timeout": st.sampled_from([1, 1000, 2**63 - 1]),
    "x-consumer-timeout-action": st.sampled_from(["cancel", "retry", "dead-letter"]),
    "x-retry-delay-ms": st.sampled_from([0, 1, 1000]),
    "x-retry-multiplier": st.sampled_from([1, 2.0, 1e300]),
    "x-priority": numbers,
    "x-match": st.sampled_from(["all", "any", "all-with-x", "wrong"]),
    "alternate-exchange": st.sampled_from(EXCHANGES),
}


@st.composite
def tables(draw: st.DrawFn) -> dict[str, Value]:
    """Arguments that mean something, mostly with values that they may have."""
    names = draw(st.lists(st.sampled_from(sorted(table_entries)), max_size=3, unique=True))
    found = {name: draw(table_entries[name]) for name in names}
    if draw(st.integers(0, 7)) == 0:
        found[draw(st.sampled_from([*sorted(table_entries), "other"]))] = draw(odd_values)
    return found


def argument(name: str, amqp_type: str) -> st.SearchStrategy[Any]:
    if amqp_type == "shortstr":
        words = {"queue": QUEUES, "consumer_tag": ["", "c", "d"], "routing_key": KEYS}
        words |= dict.fromkeys(("exchange", "source", "destination"), EXCHANGES)
        words["exchange_type"] = ["direct", "fanout", "topic", "headers", "other", ""]
        return st.sampled_from(words.get(name, ["", "x", "\udcfe"]))
    if amqp_type == "table":
        return tables()
    if name == "delivery_tag":
        return st.integers(0, 4) | st.just(2**64 - 1)
    if name in ("response", "new_secret"):
        return st.sampled_from([b"", b"\0guest\0guest"])
    return {
        "bit": st.booleans(),
        "octet": st.sampled_from([0, 1, 255]),
        "short": st.sampled_from([0, 1, 3, 65535]),
        "long": st.sampled_from([0, 1, 2**32 - 1]),
        "longlong": st.sampled_from([0, 1, 2**64 - 1]),
        "longstr": st.sampled_from(["", "x", "\udcfe"]),
    }[amqp_type]


@st.composite
def method_frames(draw: st.DrawFn, kinds: list[type[Method]]) -> bytes:
    kind = draw(st.sampled_from(kinds))
    values = {name: draw(argument(name, kind.amqp_type(name))) for name in kind.attributes()}
    return sent(draw(channels), kind, **values)


channels = st.sampled_from([1, 1, 1, 2, 0, 3, 65535])
message_properties = st.fixed_dictionaries(
    {},
    optional={
        "delivery_mode": st.sampled_from([1, 2, 2, 3]),
        "priority": st.sampled_from([0, 5, 255]),
        "expiration": st.sampled_from(["0", "1", "1000", "", "-1", "x"]),
        "reply_to": st.sampled_from(["amq.rabbitmq.reply-to", "q"]),
        "user_id": st.sampled_from(["guest", "other"]),
        "headers": st.fixed_dictionaries(
            {},
            optional={
                "CC": odd_values | st.just(["q", "p", 1]),
                "BCC": odd_values | st.just(["p"]),
                "x-death": odd_values | st.just([{"queue": "q", "reason": "expired", "count": 2**63 - 1}, 5]),
                "a": odd_values,
            },
        ),
    },
)


@st.composite
def publish_frames(draw: st.DrawFn) -> bytes:
    """One to three messages, whole; now and then one that is too large."""
    channel = draw(channels)
    method = sent(
        channel,
        commands.Basic.Publish,
        exchange=draw(st.sampled_from(EXCHANGES)),
        routing_key=draw(st.sampled_from(KEYS)),
        mandatory=draw(st.booleans()),
        immediate=draw(st.sampled_from([False] * 9 + [True])),
    )
    body = b"b" * draw(st.sampled_from([0, 1, 30, 1999, 2500]))
    return (
        method + content(channel, header_of(len(body), **draw(message_properties)), body, step=900)
    ) * draw(st.integers(1, 3))


settlements = st.builds(
    settlement, channels, st.sampled_from([80, 90, 120]), st.integers(0, 6), st.integers(0, 3)
)
odd_frames = st.builds(frame, st.sampled_from([1, 2, 3, 8, 9]), channels, st.binary(max_size=30))
useful = st.one_of(
    method_frames(CLIENT_KINDS),
    publish_frames(),
    settlements,
    st.builds(lambda name: sent(1, commands.Queue.Declare, queue=name), st.sampled_from(["q", "p"])),
    st.builds(
        lambda tag: sent(1, commands.Basic.Consume, queue="q", consumer_tag=tag), st.sampled_from("cd")
    ),
    st.just(sent(1, commands.Basic.Get, queue="q")),
    st.just(published(1, b"body", key="q", delivery_mode=2)),
)
anything = st.one_of(
    useful, method_frames(KINDS), odd_frames, st.binary(max_size=40), st.just(HEARTBEAT_FRAME)
)


@st.composite
def mangled(draw: st.DrawFn, valid: st.SearchStrategy[bytes]) -> bytes:
    """Valid frames with a few bytes changed, cut out or put in."""
    data = bytearray(draw(valid))
    start = draw(st.integers(0, len(data)))
    data[start : start + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(data)


def check_answers(answer: bytes) -> None:
    """Whole frames that a client can read; nothing after the goodbye."""
    assert all(len(payload) + 8 <= 8192 for _, _, payload in frames_in(answer))
    codes = {each.code for each in _errors(AmqpError)}
    shown = methods_in(answer)
    for _, method in shown:
        if isinstance(method, commands.Channel.Close | commands.Connection.Close):
            assert method.reply_code in codes - {541}
    ends = [at for at, (_, each) in enumerate(shown) if isinstance(each, commands.Connection.Close)]
    assert len(ends) <= 1
    if ends:
        after = [each for _, each in shown[ends[0] + 1 :]]
        assert all(isinstance(each, commands.Connection.CloseOk) for each in after)


def _errors(kind: type[AmqpError]) -> list[type[AmqpError]]:
    return [kind, *(each for below in kind.__subclasses__() for each in _errors(below))]


def check_that_nothing_is_left(core: Core, *sessions: Session) -> None:
    for session in sessions:
        session.lose()
        assert session.state is State.CLOSED
        assert not session.connection.channels
    assert core.leftovers() == []
    check_that_it_works(core)
    core.close()


def check_that_it_works(core: Core) -> None:
    """Another client finds a broker as it should be."""
    session = core.session(prefix=READY)
    declared = session.feed(sent(1, commands.Queue.Declare, queue="a new one", exclusive=True))
    assert names_in(declared) == ["queue.declare-ok"]
    session.feed(published(1, b"body", key="a new one"))
    answer = session.feed(sent(1, commands.Basic.Get, queue="a new one"))
    assert names_in(answer) == ["basic.get-ok"]
    assert frames_in(answer)[-1] == (BODY, 1, b"body")
    assert names_in(session.feed(sent(0, commands.Connection.Close))) == ["connection.close-ok"]
    session.lose()
    assert core.leftovers() == []
