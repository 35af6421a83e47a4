"""One connection, on brokers and on servers that are none."""

import asyncio
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from pamqp import commands

from leveret.amqp.frames import HEARTBEAT_FRAME, METHOD, frame
from leveret.broker.limits import Limits
from leveret.client import session as module
from leveret.client.endpoint import Endpoint
from leveret.client.errors import ClientError, ConnectionLost, LoginRefused, NotConnected
from leveret.client.session import Session
from leveret.testing.broker import Broker
from tests.amqp.session import sent
from tests.interop.wire import Proxy
from tests.processes import WAIT_S, free_ports

pytestmark = pytest.mark.real

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

START = sent(
    0,
    commands.Connection.Start,
    version_major=0,
    version_minor=9,
    server_properties={"product": "a stand-in"},
    mechanisms="PLAIN",
    locales="en_US",
)
TUNE = sent(0, commands.Connection.Tune, channel_max=0, frame_max=0, heartbeat=0)
OPEN_OK = sent(0, commands.Connection.OpenOk)


async def connect(url: str, **chosen: object) -> Session:
    return await asyncio.wait_for(Session.connect(Endpoint.parse(url), **chosen), WAIT_S)  # type: ignore[arg-type]


@asynccontextmanager
async def connected(url: str, **chosen: object):  # type: ignore[no-untyped-def]
    session = await connect(url, **chosen)
    try:
        yield session
    finally:
        await session.close()


async def ended(session: Session) -> ClientError:
    """Why it ended, as soon as it has."""
    over: asyncio.Future[ClientError] = asyncio.get_running_loop().create_future()
    session.on_end = over.set_result
    if session.error is not None:
        return session.error
    return await asyncio.wait_for(over, WAIT_S)


@asynccontextmanager
async def stand_in(script: Script):  # type: ignore[no-untyped-def]
    """A server that does what the script says; gives its URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await script(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"amqp://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        server.close()


def says(*pieces: bytes, stays: bool = False) -> Script:
    """Says one piece after each thing it hears; then ends, or stays and says nothing more."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            await reader.read(4096)
            writer.write(piece)
            await writer.drain()
        while stays and await reader.read(4096):
            pass

    return script


def goes_on_with(script: Script) -> Script:
    """A server that shakes hands, and then does what the script says."""

    async def whole(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await says(START, TUNE)(reader, writer)
        heard = b""
        while b"\0\x0a\0\x28" not in heard:  # connection.open
            heard += await reader.read(4096)
        writer.write(OPEN_OK)
        await script(reader, writer)

    return whole


# a broker that is one


def test_a_broker_introduces_itself(amqp_url: str) -> None:
    async def run() -> None:
        async with connected(amqp_url, name="me") as session:
            assert session.is_leveret == (session.server["product"] == "Leveret")
            assert session.has("publisher_confirms")
            assert session.has("basic.nack")
            assert not session.has("telepathy")
            assert session.error is None
            assert session.frame_max == 131_072

    asyncio.run(run())


def test_closing_twice_does_nothing_and_afterwards_nothing_works(amqp_url: str) -> None:
    async def run() -> None:
        session = await connect(amqp_url)
        await session.close()
        await asyncio.wait_for(session.close(), WAIT_S)
        with pytest.raises(ConnectionLost, match="closed"):
            await session.open_channel()

    asyncio.run(run())


def test_what_both_can_bear_is_agreed_on() -> None:
    async def run(broker: Broker) -> None:
        async with connected(broker.url, heartbeat_s=60) as session:
            assert (session.frame_max, session.heartbeat_s) == (4096, 7)
        async with connected(broker.url, heartbeat_s=3) as session:
            assert session.heartbeat_s == 3
        async with connected(broker.url, heartbeat_s=0) as session:
            assert session.heartbeat_s == 0
        async with connected(f"{broker.url}?heartbeat=2", heartbeat_s=3) as session:
            assert session.heartbeat_s == 2

    with Broker(limits=Limits(frame_max=4096, heartbeat_s=7)) as broker:
        asyncio.run(run(broker))


def test_channels_are_numbered_from_1_and_numbers_used_again() -> None:
    async def run(broker: Broker) -> None:
        async with connected(broker.url) as session:
            one, two = await session.open_channel(), await session.open_channel()
            assert (one.number, two.number) == (1, 2)
            with pytest.raises(ClientError, match="all 2 channels"):
                await session.open_channel()
            await one.close()
            assert (await session.open_channel()).number == 1

    with Broker(limits=Limits(channel_max=2)) as broker:
        asyncio.run(run(broker))


def test_calls_of_many_channels_are_answered_on_their_own(amqp_url: str) -> None:
    async def run() -> None:
        async with connected(amqp_url) as session:
            channels = await asyncio.gather(*(session.open_channel() for _ in range(50)))
            assert sorted(channel.number for channel in channels) == list(range(1, 51))
            await asyncio.gather(*(channel.close() for channel in channels))
            assert (await session.open_channel()).number == 1

    asyncio.run(run())


# no broker


def refused(url: str, **chosen: object) -> NotConnected:
    async def run() -> None:
        await connect(url, **chosen)

    with pytest.raises(NotConnected) as caught:
        asyncio.run(run())
    return caught.value


def refused_by(script: Script, **chosen: object) -> NotConnected:
    async def run() -> None:
        async with stand_in(script) as url:
            await connect(url, **chosen)

    with pytest.raises(NotConnected) as caught:
        asyncio.run(run())
    return caught.value


def test_where_nobody_listens_there_is_no_connection() -> None:
    (port,) = free_ports(1)
    error = refused(f"amqp://127.0.0.1:{port}")
    assert error.retryable
    assert f"127.0.0.1:{port}" in error.sentence
    assert isinstance(error.__cause__, OSError)


@pytest.mark.parametrize("host", ["a..b", "no-such-host.invalid", "x" * 64])
def test_a_host_that_does_not_exist_is_no_connection(host: str) -> None:
    assert host in refused(f"amqp://{host}").sentence


def test_a_server_that_accepts_and_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"amqp://127.0.0.1:{server.getsockname()[1]}/"
        error = refused(url, timeout_s=0.05)
        assert "no answer in time" in error.sentence
        assert "no answer in time" in refused(f"{url}?connection_timeout=0.05").sentence


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"220 mail.example.org ESMTP\r\n",
        b"AMQP\x00\x00\x09\x01",
        b"AMQP\x00\x01\x00\x00",
        bytes(64),
        b"\xff" * 64,
    ],
)
def test_a_server_that_speaks_something_else_is_noticed_at_once(answer: bytes) -> None:
    assert "broke the protocol" in refused_by(says(answer, stays=True)).sentence


def test_a_server_that_speaks_tls_is_noticed_at_once() -> None:
    answer = b"\x15\x03\x01\x00\x02\x02\x50\x00\x00"
    assert "speaks TLS; use amqps://" in refused_by(says(answer, stays=True)).sentence


def test_a_server_that_stops_in_the_middle_of_a_word_is_given_up() -> None:
    assert "no answer in time" in refused_by(says(START[:50], stays=True), timeout_s=0.05).sentence


@pytest.mark.parametrize("pieces", [(), (START[:20],), (START,), (START, TUNE)])
def test_a_handshake_that_is_cut_is_no_connection(pieces: tuple[bytes, ...]) -> None:
    error = refused_by(says(*pieces))
    assert "was lost" in error.sentence
    assert error.retryable


@pytest.mark.parametrize(
    "nonsense",
    [
        pytest.param(frame(METHOD, 0, b"\0\x0a\0\x0a\0"), id="start that is cut"),
        pytest.param(frame(METHOD, 0, b"\0\x0a\0\x63"), id="unknown method"),
        pytest.param(frame(METHOD, 0, b""), id="empty method"),
        pytest.param(frame(METHOD, 0, b"\xff\xff\xff\xff"), id="unknown class"),
    ],
)
def test_a_server_that_talks_nonsense_is_no_connection(
    nonsense: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    error = refused_by(says(nonsense, stays=True), timeout_s=2.0)
    assert "no answer in time" not in error.sentence
    assert [record for record in caplog.records if record.name == "asyncio"] == []


def test_a_server_without_plain_login_is_refused() -> None:
    start = START.replace(b"\0\0\0\5PLAIN", b"\0\0\0\5GSSAP")
    error = refused_by(says(start, stays=True))
    assert isinstance(error, LoginRefused)
    assert "GSSAP" in error.sentence


def test_giving_up_a_connect_leaves_no_socket_open() -> None:
    async def run() -> None:
        gone = asyncio.Event()

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(ConnectionError):
                while await reader.read(100):
                    pass
            gone.set()

        async with stand_in(script) as url:
            task = asyncio.create_task(connect(url))
            await asyncio.sleep(0.02)  # long enough to be in the middle of it, where it hardly matters
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.wait_for(gone.wait(), WAIT_S)

    asyncio.run(run())


# who may not


def test_a_wrong_password_is_refused(amqp_url: str) -> None:
    error = refused(amqp_url.replace("guest:guest", "guest:wrong"))
    assert isinstance(error, LoginRefused)
    assert "403 ACCESS_REFUSED" in error.sentence
    assert not error.retryable
    assert "password" in error.hint


def test_an_unknown_vhost_is_refused(amqp_url: str) -> None:
    error = refused(f"{amqp_url}nowhere")
    assert isinstance(error, LoginRefused)
    assert "530 NOT_ALLOWED" in error.sentence
    assert "nowhere" in error.sentence


# the end


def test_what_the_broker_says_at_the_end_is_told(leveret_broker: Broker) -> None:
    async def run() -> None:
        async with connected(leveret_broker.url) as session:
            channel = await session.open_channel()
            heard: list[ClientError] = []
            channel.on_ended = heard.append
            over = asyncio.create_task(ended(session))
            await asyncio.sleep(0)
            await asyncio.to_thread(leveret_broker.restart)
            error = await over
            assert isinstance(error, ConnectionLost)
            assert error.code == 320
            assert "CONNECTION_FORCED" in error.text
            assert heard == [error]

    asyncio.run(run())


def test_a_connection_that_breaks_ends_every_channel_and_call_once() -> None:
    async def run() -> None:
        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(4096)  # channel.open

        async with stand_in(goes_on_with(script)) as url:
            session = await connect(url)
            ends: list[ClientError] = []
            session.on_end = ends.append
            with pytest.raises(ConnectionLost, match="was lost"):
                await session.open_channel()
            assert ends == [session.error]

    asyncio.run(run())


@pytest.mark.parametrize(
    "nonsense",
    [
        pytest.param(frame(METHOD, 1, b"\0\x14\0\x0b"), id="open-ok that is cut"),
        pytest.param(frame(METHOD, 1, b"\0\x14\0\x63"), id="unknown method"),
        pytest.param(frame(9, 0, b""), id="unknown frame"),
        pytest.param(frame(METHOD, 0, b"")[:-1] + b"\0", id="wrong end of a frame"),
        pytest.param(frame(3, 1, b"body"), id="body without a method"),
    ],
)
def test_nonsense_from_a_broker_ends_the_session(nonsense: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with stand_in(goes_on_with(says(nonsense, stays=True))) as url:
            session = await connect(url)
            with pytest.raises(ConnectionLost):
                await asyncio.wait_for(session.open_channel(), WAIT_S)
            await session.close()

    asyncio.run(run())
    assert [record for record in caplog.records if record.name == "asyncio"] == []


def test_what_comes_for_channels_that_do_not_exist_is_ignored() -> None:
    stray = sent(9, commands.Basic.Ack, delivery_tag=1) + sent(9, commands.Channel.OpenOk)
    stray += sent(9, commands.Channel.Close, reply_code=404, reply_text="")
    answer = stray + sent(1, commands.Channel.OpenOk)

    async def run() -> None:
        async with stand_in(goes_on_with(says(answer, stays=True))) as url:
            session = await connect(url)
            channel = await asyncio.wait_for(session.open_channel(), WAIT_S)
            assert channel.error is None
            session.fail("enough")

    asyncio.run(run())


def test_closing_waits_only_a_while_for_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with stand_in(goes_on_with(says(stays=True))) as url:
            session = await connect(url)
            await asyncio.wait_for(session.close(), WAIT_S)
            assert session.error is not None

    monkeypatch.setattr(module, "CLOSE_S", 0.01)
    asyncio.run(run())


def test_nothing_is_written_to_a_connection_that_is_lost(
    amqp_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The transport knows first: asyncio warns of each further write, before it says that it is over."""

    async def work() -> None:
        session = await connect(amqp_url)
        session._transport.abort()
        for _ in range(20):
            session.send(HEARTBEAT_FRAME)
            session.flush()
        session._sent_s = 0.0
        session.heartbeat_s = 60
        session._beat()
        assert not session.writable
        assert isinstance(await ended(session), ConnectionLost)

    asyncio.run(work())
    assert [each.getMessage() for each in caplog.records if each.name == "asyncio"] == []


def test_a_session_that_is_given_up_says_why(amqp_url: str) -> None:
    async def run() -> None:
        session = await connect(amqp_url)
        session.fail("no longer wanted")
        with pytest.raises(ConnectionLost, match="no longer wanted"):
            await session.open_channel()
        await asyncio.wait_for(session.close(), WAIT_S)

    asyncio.run(run())


def test_a_session_that_is_given_up_leaves_no_socket_although_nobody_reads_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        over = asyncio.Event()

        async def never_reads(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await over.wait()

        async with stand_in(goes_on_with(never_reads)) as url:
            session = await connect(url)
            session.send(bytes(32 << 20))
            session.flush()
            session.fail("nobody reads")
            await asyncio.wait_for(session._ended, WAIT_S)
            over.set()

    monkeypatch.setattr(module, "CLOSE_S", 0.01)
    asyncio.run(run())


# alive or not


@pytest.fixture
def proxy(amqp_url: str) -> Iterator[Proxy]:
    with Proxy(amqp_url) as running:
        yield running


def test_both_sides_say_that_they_are_alive(proxy: Proxy) -> None:
    async def run() -> None:
        async with connected(proxy.url, heartbeat_s=1) as session:
            heard = [
                asyncio.to_thread(proxy.wait_for_heartbeats, 3, sender=sender)
                for sender in ("client", "broker")
            ]
            assert await asyncio.gather(*heard) == [True, True]
            assert session.error is None

    asyncio.run(run())


def test_a_broker_that_falls_silent_is_noticed(proxy: Proxy) -> None:
    async def run() -> None:
        async with connected(proxy.url, heartbeat_s=1) as session:
            proxy.fall_silent()
            error = await ended(session)
            assert isinstance(error, ConnectionLost)
            assert "silent" in error.sentence
            assert error.retryable

    asyncio.run(run())


def test_a_broker_is_not_silent_because_the_client_could_not_hear(proxy: Proxy) -> None:
    async def run() -> None:
        async with connected(proxy.url, heartbeat_s=10) as session:
            session._received_s -= 60  # as if a beat came a minute late, and nothing was read meanwhile
            session._beat_due_s = asyncio.get_running_loop().time() - 60
            session._beat()
            assert session.error is None

    asyncio.run(run())


@pytest.mark.sample(every=2)
def test_a_broker_that_falls_silent_is_noticed_by_a_client_that_is_always_late(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    hear = Session.data_received
    lates = 0

    def heard(session: Session, data: bytes) -> None:
        nonlocal lates
        lates = 0  # it was under way before
        hear(session, data)

    monkeypatch.setattr(Session, "data_received", heard)

    async def run() -> None:
        nonlocal lates
        async with connected(proxy.url, heartbeat_s=1) as session:
            proxy.fall_silent()
            while session.error is None:
                time.sleep(1.1)  # noqa: ASYNC251  # a loop that stands still is what is tested
                await asyncio.sleep(0)
                lates += 1
                assert lates < 12, "it waits on"
            assert "silent" in session.error.sentence

    asyncio.run(run())


def test_a_broker_says_that_it_is_blocked_and_that_it_is_not() -> None:
    pieces = (
        sent(0, commands.Connection.Blocked, reason="low on memory"),
        sent(0, commands.Connection.Unblocked),
    )

    async def run() -> None:
        async with stand_in(goes_on_with(says(*pieces, stays=True))) as url:
            session = await connect(url)
            told: asyncio.Queue[str | None] = asyncio.Queue()
            session.on_blocked = told.put_nowait
            for reason in ("low on memory", None):
                session.send(HEARTBEAT_FRAME)
                assert await asyncio.wait_for(told.get(), WAIT_S) == reason
                assert session.blocked == reason
            session.fail("enough")

    asyncio.run(run())


def test_while_reading_pauses_answers_wait(amqp_url: str) -> None:
    async def run() -> None:
        async with connected(amqp_url) as session:
            session.pause_reading(True)
            opening = asyncio.create_task(session.open_channel())
            done, _ = await asyncio.wait([opening], timeout=0.05)
            assert not done
            session.pause_reading(False)
            session.pause_reading(False)
            assert (await asyncio.wait_for(opening, WAIT_S)).number == 1

    asyncio.run(run())


# through TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Of nobody but itself, for 127.0.0.1."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    directory = tmp_path_factory.mktemp("tls")
    key, public = directory / "key.pem", directory / "certificate.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    command += ["-keyout", str(key), "-out", str(public), "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True, timeout=WAIT_S)
    return key, public


@asynccontextmanager
async def tls_in_front_of(url: str, certificate: tuple[Path, Path]):  # type: ignore[no-untyped-def]
    """Ends TLS and carries what is inside to the broker."""
    key, public = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(public, key)
    upstream = Endpoint.parse(url)

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection(upstream.host, upstream.port)
        await asyncio.gather(carry(reader, forth), carry(back, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield f"amqps://guest:guest@127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        server.close()


def test_a_broker_behind_tls_is_a_broker(amqp_url: str, certificate: tuple[Path, Path]) -> None:
    async def run() -> None:
        trusting = ssl.create_default_context(cafile=str(certificate[1]))
        async with tls_in_front_of(amqp_url, certificate) as url, connected(url, tls=trusting) as session:
            channel = await session.open_channel()
            await channel.close()

    asyncio.run(run())


def test_a_certificate_that_nobody_vouches_for_is_refused(
    leveret_broker: Broker, certificate: tuple[Path, Path]
) -> None:
    async def run() -> None:
        async with tls_in_front_of(leveret_broker.url, certificate) as url:
            with pytest.raises(NotConnected, match=r"(?i)certificate"):
                await connect(url)

    asyncio.run(run())


def test_tls_to_a_server_that_has_none_is_no_connection(leveret_broker: Broker) -> None:
    url = leveret_broker.url.replace("amqp://", "amqps://")
    assert isinstance(refused(url, timeout_s=2.0), NotConnected)


def test_tls_to_a_server_that_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"amqps://127.0.0.1:{server.getsockname()[1]}/"
        assert "no answer in time" in refused(url, timeout_s=0.05).sentence
