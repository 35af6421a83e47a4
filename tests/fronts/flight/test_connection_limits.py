"""Which connections of the Flight process are closed, and which never: on a clock of the test's own."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from leveret.fronts.flight.connection_limits import ConnectionWatcher, Limits

MIB = 1 << 20


@dataclass
class Socket:
    """Stands for a connection that gRPC has accepted."""

    number: str
    port: int
    sent: int = 0
    closed: bool = False
    kept_alive: bool = False

    @property
    def peer(self) -> tuple[str, int]:
        return ("10.0.0.9", self.port)

    @property
    def name(self) -> str:
        """As gRPC names it."""
        return f"ipv4:10.0.0.9:{self.port}"

    def received_bytes(self) -> int:
        return self.sent

    def keep_alive(self) -> None:
        self.kept_alive = True

    def close(self) -> None:
        self.closed = True


class Gate:
    """A watcher, its clock, and the sockets that are there."""

    def __init__(self, limits: Limits) -> None:
        self.now_s = 0.0
        self.watcher = ConnectionWatcher(limits, lambda: self.now_s)
        self.sockets: list[Socket] = []

    def connect(self, port: int = 0) -> Socket:
        made = Socket(f"socket:[{len(self.sockets)}]", port or 5000 + len(self.sockets))
        self.sockets.append(made)
        return made

    def log_in(self) -> Socket:
        made = self.connect()
        self.look()
        self.watcher.logged_in(made.name)
        return made

    def look(self, after_s: float = 0.0) -> None:
        self.now_s += after_s
        self.watcher.check([each for each in self.sockets if not each.closed])


@pytest.fixture
def gate() -> Gate:
    return Gate(
        Limits(
            unknown_bytes_max=8 * MIB,
            unknown_total_bytes_max=20 * MIB,
            unknown_max=4,
            unfinished_bytes_max=100 * MIB,
            unfinished_total_bytes_max=250 * MIB,
        )
    )


def test_who_sends_much_before_a_login_is_cut_off_and_nobody_else(gate: Gate) -> None:
    greedy, honest = gate.connect(), gate.connect()
    greedy.sent, honest.sent = 9 * MIB, 7 * MIB
    gate.look()
    assert (greedy.closed, honest.closed) == (True, False)
    assert dict(gate.watcher.closed) == {"more than 8388608 bytes were sent before a login": 1}


def test_many_who_send_a_little_before_a_login_are_bounded_together(gate: Gate) -> None:
    sockets = [gate.connect() for _ in range(4)]
    for number, each in enumerate(sockets):
        each.sent = (4 + number) * MIB
    gate.look()
    assert [each.closed for each in sockets] == [False, False, False, True]


def test_who_does_not_log_in_in_time_is_cut_off(gate: Gate) -> None:
    silent, busy = gate.connect(), gate.connect()
    gate.look()
    for _ in range(9):
        busy.sent += 1
        gate.look(after_s=1.0)
    assert not silent.closed
    gate.look(after_s=1.5)
    assert silent.closed
    assert busy.closed, "a byte now and then is no login"


def test_while_strangers_are_sent_away_those_who_are_there_for_longest_have_to_go(gate: Gate) -> None:
    early = gate.connect()
    gate.look()
    late = gate.connect()
    gate.look(after_s=0.9)
    gate.watcher.calls_refused()
    gate.look(after_s=0.05)
    assert not early.closed
    gate.look(after_s=0.1)
    assert (early.closed, late.closed) == (True, False)
    gate.look(after_s=5.0)
    assert not late.closed, "it is quiet again"


def test_of_too_many_without_a_login_the_oldest_go(gate: Gate) -> None:
    sockets = []
    for _ in range(6):
        sockets.append(gate.connect())
        gate.look(after_s=0.1)
    assert [each.closed for each in sockets] == [True, True, False, False, False, False]


def test_who_has_logged_in_may_be_quiet_for_minutes_but_not_for_ever(gate: Gate) -> None:
    known = gate.log_in()
    gate.look(after_s=599.0)
    assert not known.closed
    gate.look(after_s=2.0)
    assert known.closed


def test_who_reads_may_be_silent_for_as_long_as_that_takes(gate: Gate) -> None:
    reader = gate.log_in()
    with gate.watcher.reading(reader.name):
        gate.look(after_s=10_000.0)
        assert not reader.closed
    gate.look(after_s=599.0)
    assert not reader.closed
    gate.look(after_s=2.0)
    assert reader.closed


def test_a_writer_may_send_as_much_as_it_wants_while_its_calls_are_finished(gate: Gate) -> None:
    writer = gate.log_in()
    for _ in range(50):
        writer.sent += 50 * MIB
        gate.look(after_s=0.1)
        gate.watcher.finished(writer.name, 50 * MIB)
    assert not writer.closed
    writer.sent += 152 * MIB
    gate.look()
    assert writer.closed


def test_small_calls_that_finish_do_not_hide_a_large_one_that_does_not(gate: Gate) -> None:
    sly = gate.log_in()
    for _ in range(101):
        sly.sent += MIB + 100
        gate.watcher.finished(sly.name, 100)
        gate.look()
    assert sly.closed


def test_what_a_long_read_sends_back_does_not_add_up(gate: Gate) -> None:
    reader = gate.log_in()
    with gate.watcher.reading(reader.name) as sent:
        for _ in range(1000):
            sent(32 * MIB)
            reader.sent += 13 * 2048  # a window update for each 16 KiB
            gate.look()
    reader.sent += 99 * MIB
    gate.look()
    assert not reader.closed


def test_of_writers_who_send_too_much_together_the_largest_is_cut_off(gate: Gate) -> None:
    writers = [gate.log_in() for _ in range(4)]
    for each, size in zip(writers, (60, 61, 90, 62), strict=True):
        each.sent = size * MIB
    gate.look()
    assert [each.closed for each in writers] == [False, False, True, False]


def test_a_connection_on_a_port_that_was_used_before_is_a_stranger(gate: Gate) -> None:
    known = gate.log_in()
    gate.sockets.remove(known)
    another = Socket("socket:[99]", known.port, sent=9 * MIB)
    gate.sockets.append(another)
    gate.look()
    assert another.closed


def test_a_login_that_is_told_before_the_connection_is_seen_counts(gate: Gate) -> None:
    known = gate.connect()
    gate.watcher.logged_in(known.name)
    known.sent = 50 * MIB
    gate.look(after_s=0.01)
    gate.look(after_s=60.0)
    assert not known.closed


def test_the_system_is_asked_to_find_peers_that_are_gone(gate: Gate) -> None:
    made = gate.connect()
    gate.look()
    assert made.kept_alive


def test_what_is_gone_is_forgotten(gate: Gate) -> None:
    for _ in range(3):
        gate.log_in()
    gate.sockets.clear()
    gate.look(after_s=5.0)
    assert not gate.watcher._connections
