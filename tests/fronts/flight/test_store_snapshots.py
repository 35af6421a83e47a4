"""Store snapshots of a running broker, over Flight: taken, read by the audit during work, dropped."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pika
import pytest
from pyarrow import flight

from leveret.amqp.properties import encode
from leveret.audit.errors import NothingToAudit
from leveret.audit.evidence import of_broker
from leveret.broker.access.passwords import hash_password
from leveret.broker.definitions import PermissionRow, UserRow
from leveret.client import Queue
from leveret.flight import actions
from leveret.flight.tickets import PieceTicket, StageDescriptor
from leveret.fronts.flight.store_snapshots import StoreSnapshots
from leveret.spark.endpoint import Endpoint
from leveret.spark.errors import BrokerAway, BrokerRefused
from leveret.spark.options import BrokerOptions
from leveret.storage.errors import BadName, Damage
from leveret.storage.files import OsFiles
from leveret.storage.log_view import SegmentGone
from leveret.storage.segment import Report
from leveret.storage.store_snapshot import PICTURES, StoreSnapshot, snapshot_running
from leveret.testing.broker import Broker
from tests.audit.reckoning import Reckoned, reckon
from tests.client.listening import Notes, application, fill, on_a_loop
from tests.fronts.flight.flight_client import Bulk, refusal
from tests.processes import WAIT_S, free_ports
from tests.semantics.client import Client
from tests.storage.builders import make_store, messages

pytestmark = pytest.mark.real

AUDITED = {"x-audit-window": 3_600_000}
AT_ONCE = 50
NAME, OTHER = "a" * 32, "b" * 32
TAKEN_US = 1_700_000_000_000_000


class TestKeeping:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        store = make_store(OsFiles(str(tmp_path)))
        store.append(store.create_log(), messages(3))
        store.checkpoint()
        return tmp_path

    def kept(self, root: Path) -> list[str]:
        return sorted(path.name for path in (root / PICTURES).iterdir())

    def test_a_snapshot_is_there_until_it_is_dropped(self, root):
        snapshots = StoreSnapshots(str(root))
        kept = snapshots.take(NAME, "ann", TAKEN_US)
        assert (snapshots.find(NAME, "ann"), kept.damage, self.kept(root)) == (kept.snapshot, [], [NAME])
        again = snapshots.take(NAME, "ann", TAKEN_US + 1)
        assert (again is kept, again.taken_us) == (True, TAKEN_US)
        snapshots.drop(NAME, "ann")
        snapshots.drop(NAME, "ann")
        assert (snapshots.find(NAME, "ann"), self.kept(root)) == (None, [])

    def test_a_snapshot_is_for_who_has_asked_for_it(self, root):
        snapshots = StoreSnapshots(str(root))
        snapshots.take(NAME, "ann", TAKEN_US)
        snapshots.drop(NAME, "bob")
        with pytest.raises(BadName, match="another user"):
            snapshots.take(NAME, "bob", TAKEN_US)
        assert snapshots.find(NAME, "bob") is None
        assert snapshots.find(NAME, "ann") is not None

    @pytest.mark.parametrize("name", ["", "../../etc", "g" * 32, "a" * 31])
    def test_a_name_that_is_none_is_refused(self, root, name):
        with pytest.raises(BadName):
            StoreSnapshots(str(root)).take(name, "ann", TAKEN_US)

    def test_one_that_nobody_reads_goes_after_an_hour(self, root):
        now_s = 0.0
        snapshots = StoreSnapshots(str(root), lambda: now_s)
        snapshots.take(NAME, "ann", TAKEN_US)
        snapshots.take(OTHER, "ann", TAKEN_US)
        now_s = 3000.0
        snapshots.find(NAME, "ann")
        now_s = 4000.0
        snapshots.drop_unused()
        assert self.kept(root) == [NAME]

    def test_what_can_not_be_deleted_is_deleted_the_next_time(self, root, monkeypatch):
        def busy(self: OsFiles, path: str) -> None:
            raise OSError(16, "device or resource busy")

        snapshots = StoreSnapshots(str(root))
        snapshots.take(NAME, "ann", TAKEN_US)
        snapshots.take(OTHER, "ann", TAKEN_US)
        with monkeypatch.context() as patch:
            patch.setattr(OsFiles, "remove_directory", busy)
            snapshots.drop(NAME, "ann")
            snapshots.drop_unused()
        assert (snapshots.find(NAME, "ann"), self.kept(root)) == (None, [NAME, OTHER])
        snapshots.drop_unused()
        assert self.kept(root) == [OTHER]

    def test_there_are_few_and_the_oldest_goes(self, root):
        ticks = count()
        snapshots = StoreSnapshots(str(root), lambda: next(ticks))
        names = [f"{number:032x}" for number in range(6)]
        for name in names:
            snapshots.take(name, "ann", TAKEN_US)
        assert self.kept(root) == sorted(names[-4:])
        assert [snapshots.find(name, "ann") is not None for name in names] == [False] * 2 + [True] * 4

    def test_what_another_process_has_left_goes(self, root):
        StoreSnapshots(str(root)).take(NAME, "ann", TAKEN_US)
        StoreSnapshots(str(root))
        assert not (root / PICTURES).exists()

    def test_it_also_goes_when_the_store_is_opened(self, tmp_path):
        store = make_store(OsFiles(str(tmp_path)))
        store.checkpoint()
        StoreSnapshots(str(tmp_path)).take(NAME, "ann", TAKEN_US)
        store.close()
        make_store(OsFiles(str(tmp_path))).close()
        assert not (tmp_path / PICTURES).exists()

    def test_when_the_store_was_faster_it_is_taken_again(self, root, monkeypatch):
        failures = 4

        def hurried(files: OsFiles, place: OsFiles, report: Report) -> StoreSnapshot:
            nonlocal failures
            failures -= 1
            if failures >= 0:
                place.make_directory("logs")
                raise SegmentGone("logs/1/msgs.0")
            return snapshot_running(files, place, report)

        monkeypatch.setattr("leveret.fronts.flight.store_snapshots.snapshot_running", hurried)
        snapshots = StoreSnapshots(str(root))
        snapshots.take(NAME, "ann", TAKEN_US)
        assert self.kept(root) == [NAME]
        failures = 5
        with pytest.raises(SegmentGone):
            snapshots.take(OTHER, "ann", TAKEN_US)
        assert self.kept(root) == [NAME]

    def test_what_can_not_be_taken_leaves_nothing(self, root, monkeypatch):
        def full(files: OsFiles, place: OsFiles, report: Report) -> StoreSnapshot:
            place.make_directory("logs")
            raise OSError(28, "no space left on device")

        monkeypatch.setattr("leveret.fronts.flight.store_snapshots.snapshot_running", full)
        with pytest.raises(OSError, match="no space"):
            StoreSnapshots(str(root)).take(NAME, "ann", TAKEN_US)
        assert self.kept(root) == []

    def test_damage_is_told(self, root, monkeypatch):
        def damaged(files: OsFiles, place: OsFiles, report: Report) -> StoreSnapshot:
            report(Damage("checkpoint.1", 0, None, "damaged"))
            return snapshot_running(files, place, lambda _: None)

        monkeypatch.setattr("leveret.fronts.flight.store_snapshots.snapshot_running", damaged)
        assert [each.file for each in StoreSnapshots(str(root)).take(NAME, "ann", TAKEN_US).damage] == [
            "checkpoint.1"
        ]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("snapshots") / "data", flight=True) as broker:
        yield broker


def options(broker: Broker, user: str | None = None, password: str | None = None) -> BrokerOptions:
    return BrokerOptions(url=broker.url, user=user, password=password, broker_timeout_s=WAIT_S)


def audited(broker: Broker) -> Reckoned:
    with of_broker(options(broker)) as case:
        return reckon(case)


def snapshots_of(broker: Broker) -> list[Path]:
    assert broker.directory is not None
    return sorted((broker.directory / PICTURES).glob("*"))


def port_of(broker: Broker) -> int:
    assert broker.endpoint is not None
    return broker.endpoint.port


class Working(threading.Thread):
    """Publishes with confirms and consumes, until it is stopped."""

    def __init__(self, broker: Broker, queue: str) -> None:
        super().__init__(daemon=True)
        self._broker, self._queue = broker, queue
        self._over = threading.Event()
        self._rounds = threading.Semaphore(0)
        self.confirmed = self.acked = 0

    def run(self) -> None:
        connection = pika.BlockingConnection(pika.URLParameters(self._broker.url + "?heartbeat=0"))
        channel = connection.channel()
        channel.queue_declare(self._queue, durable=True, arguments=AUDITED)
        channel.confirm_delivery()
        while not self._over.is_set():
            for _ in range(AT_ONCE):
                channel.basic_publish("", self._queue, b"m", pika.BasicProperties(delivery_mode=2))
                self.confirmed += 1
            for _ in range(AT_ONCE // 2):
                method, _, _ = channel.basic_get(self._queue)
                channel.basic_ack(method.delivery_tag)
                self.acked += 1
            self._rounds.release()
        connection.close()

    def wait_for_rounds(self, count: int) -> None:
        for _ in range(count):
            assert self._rounds.acquire(timeout=WAIT_S)

    def stop(self) -> None:
        self._over.set()
        self.join(WAIT_S)


class TestALiveAudit:
    @pytest.fixture
    def working(self, broker: Broker) -> Iterator[Working]:
        working = Working(broker, "orders")
        working.start()
        working.wait_for_rounds(1)
        yield working
        working.stop()

    def test_the_figures_fit_together_while_clients_are_at_work_and_later_there_are_more(
        self, broker, working
    ):
        confirmed, acked = working.confirmed, working.acked
        first = audited(broker)
        working.wait_for_rounds(3)
        second = audited(broker)
        for found in (first, second):
            assert (found.lost, found.doubled, found.damage) == ([], [], [])
            rows = found.of("orders").values()
            assert len(rows) >= sum(row["confirmed"] is not None for row in rows)
            assert all(row["published"] for row in rows)
        (published, done), (published_later, done_later) = (
            (len(rows), sum(row["outcome"] == "acked" for row in rows))
            for rows in (found.of("orders").values() for found in (first, second))
        )
        assert confirmed <= published < published_later
        assert acked - 1 <= done < done_later  # the last ack may be on its way

    def test_when_everything_has_come_to_rest_the_figures_are_those_of_the_client(self, broker):
        working = Working(broker, "rest")
        working.start()
        working.wait_for_rounds(2)
        working.stop()
        rows = audited(broker).of("rest").values()
        assert sum(row["confirmed"] is not None for row in rows) == len(rows) == working.confirmed
        assert sum(row["outcome"] == "acked" for row in rows) == working.acked

    def test_it_knows_how_far_away_clients_are(self, broker, working):
        with of_broker(options(broker)) as case:
            assert len(case.round_trips_ms) >= 1
            assert all(0 <= each < WAIT_S * 1000 for each in case.round_trips_ms.values())

    @on_a_loop
    async def test_it_knows_how_far_away_the_consumers_of_an_application_are(self, broker):
        app = application(broker.url, Queue("far", audit_window_ms=3_600_000), name="shop")
        done = Notes()

        @app.listener("far")
        async def take(body: bytes) -> None:
            done.append(body)

        async with app:
            await fill(app.publisher, "far", [b"1", b"2"])
            await done.reach(2)
            await asyncio.to_thread(broker.wait_until_unacked, "far", 0)
            with of_broker(options(broker)) as case:
                (consumer,) = {row["delivered_to"] for row in reckon(case).of("far").values()}
                assert case.round_trip_ms(consumer) in case.round_trips_ms.values()
                assert case.round_trip_ms("somebody (1) else") is None

    def test_what_an_aborted_batch_had_written_is_no_message(self, broker):
        Client(broker.port).channel().declare("sink", arguments=AUDITED)
        bulk = Bulk(port_of(broker))
        header = encode({"delivery_mode": 2}, 0)
        for stage in ("task", "again"):
            descriptor = StageDescriptor("/", "job", 0, stage, 3600.0)
            bulk.write(descriptor, [(b"", b"sink", header, b"row")] * 3)
        assert bulk.ask(actions.Commit("/", "job", 0, ["again"])) == actions.Committed(3, known=False)
        rows = audited(broker).of("sink")
        assert [(offset, row["state"]) for offset, row in rows.items()] == [
            (3, "ready"),
            (4, "ready"),
            (5, "ready"),
        ]

    def test_groups_of_one_name_on_one_stream_are_told_apart(self, broker):
        def make() -> None:
            host = broker.server.broker.vhosts["/"]
            guest = broker.server.broker.accounts.users["guest"]
            host.groups.create("trips", "billing", {}, user=guest)
            host.groups.create("trips-0", "billing", {}, user=guest)
            host.groups.create("trips-0", "mail", {}, user=guest)

        connection = pika.BlockingConnection(pika.URLParameters(broker.url + "?heartbeat=0"))
        channel = connection.channel()
        channel.exchange_declare("trips", "x-consistent-hash", durable=True)
        for stream in ("trips-0", "trips-1"):
            channel.queue_declare(stream, durable=True, arguments={"x-queue-type": "stream"} | AUDITED)
            channel.queue_bind(stream, "trips", "1")
        broker.call(make)
        with of_broker(options(broker)) as case:
            names = {log.queue: sorted(reader.name for reader in log.readers) for log in case.logs}
        connection.close()
        both, other = names["trips-0"], names["trips-1"]
        assert both == ["", "billing (group-1)", "billing (group-2)", "mail"]
        assert other == ["", "billing (group-1)"]

    def test_the_snapshot_is_gone_afterwards(self, broker):
        with of_broker(options(broker)) as case:
            assert len(snapshots_of(broker)) == 1
            assert case.described.startswith("the broker at ")
        assert snapshots_of(broker) == []

    def test_the_snapshot_is_gone_also_when_the_audit_fails(self, broker):
        with pytest.raises(ZeroDivisionError), of_broker(options(broker)):
            raise ZeroDivisionError
        assert snapshots_of(broker) == []

    def test_a_name_that_is_no_utf8_is_in_nobodys_way(self, broker):
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        for each in broker.call(lambda: list(broker.server.turns.sockets)):
            each.name = "caf\udce9"
        taken = Bulk(port_of(broker)).ask(actions.TakePicture(NAME))
        assert isinstance(taken, actions.Taken)
        connection.close()

    def test_a_snapshot_that_was_dropped_can_not_be_read(self, broker):
        bulk = Bulk(port_of(broker))
        taken = bulk.ask(actions.TakePicture(NAME))
        assert isinstance(taken, actions.Taken)
        again = bulk.ask(actions.TakePicture(NAME))
        assert (again.taken_us, again.catalog) == (taken.taken_us, taken.catalog)
        assert bulk.ask(actions.DropPicture(NAME)) == actions.Done()
        with pytest.raises(flight.FlightServerError) as raised:
            bulk.read(PieceTicket(NAME, "published", 1, 0))
        assert "does not exist any more" in refusal(raised.value).text

    def test_queues_that_are_deleted_meanwhile_are_still_in_it(self, broker):
        connection = pika.BlockingConnection(pika.URLParameters(broker.url + "?heartbeat=0"))
        channel = connection.channel()
        channel.queue_declare("brief", durable=True, arguments=AUDITED)
        channel.confirm_delivery()
        channel.basic_publish("", "brief", b"m", pika.BasicProperties(delivery_mode=2))
        with of_broker(options(broker)) as case:
            channel.queue_delete("brief")
            for _ in range(3):
                broker.call(broker.server.broker.store.checkpoint)
            assert len(reckon(case).of("brief")) == 1
        connection.close()


class TestWhoMayNot:
    def test_a_user_who_is_no_administrator_is_refused_in_a_sentence(self, broker):
        def add() -> None:
            accounts = broker.server.broker.accounts
            accounts.put(UserRow("rita", hash_password(b"secret", b"salt")))
            accounts.permit(PermissionRow("/", "rita", ".*", ".*", ".*"))

        broker.call(add)
        with pytest.raises(BrokerRefused) as raised, of_broker(options(broker, "rita", "secret")):
            raise AssertionError
        sentence = "an audit needs the tag 'administrator', which user 'rita' does not have"
        assert sentence in str(raised.value)
        assert snapshots_of(broker) == []

    def test_a_broker_that_is_away_is_a_sentence(self):
        (port,) = free_ports(1)
        nowhere = BrokerOptions(url=f"amqp://guest:guest@127.0.0.1:{port}/", broker_timeout_s=0.2)
        with pytest.raises(BrokerAway), of_broker(nowhere):
            raise AssertionError

    def test_another_broker_is_not_audited(self, broker, monkeypatch):
        def found(options: BrokerOptions) -> Endpoint:
            return Endpoint(options, "RabbitMQ", None)

        monkeypatch.setattr("leveret.audit.evidence.find", found)
        sentence = "is RabbitMQ, which keeps no account"
        with pytest.raises(NothingToAudit, match=sentence), of_broker(options(broker)):
            raise AssertionError
