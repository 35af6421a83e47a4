"""Plays a scenario against one server and keeps the transcript.

Owns when a step is over: every channel has answered a barrier, every queue has been asked for its counts, and
nothing has changed for two rounds. So a scenario has no sleeps, and its transcript does not depend on speed.
Within a channel the order is the server's; between channels nobody promises one, so a step's lines are
grouped by channel. Names that a server makes up are replaced by stable ones. Comparing is left to
`deviations.py`.
"""

import contextlib
import itertools
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.differential import wire
from tests.differential.channel import Channel
from tests.differential.http_step import Http
from tests.differential.script import Peer
from tests.processes import WAIT_S

QUIET_ROUNDS = 2
HIDDEN_CHANNEL = 999  # asks for counts of queues that only this connection may see
MADE_UP = re.compile(r"amq\.(gen-|ctag-|rabbitmq\.reply-to\.)(?!made-up)[-=.+/\w]+")
STABLE = {"gen-": "queue", "ctag-": "tag", "rabbitmq.reply-to.": "reply-to"}

Scenario = Callable[["Play"], None]


class Play:
    """One scenario on one server.

    >>> play = Play(port)
    >>> channel = play.channel()
    >>> channel.queue_declare("q")
    >>> play.transcript
    ["a.1 > queue.declare queue='q'", "a.1 < queue.declare-ok queue='q' message_count=0 consumer_count=0"]
    """

    def __init__(self, port: int, vhost: str = "/", http_port: int = 0) -> None:
        self.port = port
        self.vhost = vhost
        self.vhost_in_text = re.compile(
            rf"(?P<before>(vhost |virtual_host=)\\?'){re.escape(vhost)}(?P<after>\\?')"
        )
        self.http = Http(http_port, vhost, self.tell)
        self.transcript: list[str] = []
        self.holding = False
        self.peers: list[Peer] = []
        self.names: dict[str, str] = {}
        self.owners: dict[str, Peer | None] = {}  # queues that are counted -> who alone may see them
        self.queues_ever: set[str] = set()
        self.exchanges_ever: set[str] = set()
        self.exclusive_requests: set[tuple[Peer, str]] = set()
        self.left_alone: set[str] = set()
        self.hidden: set[str] = set()
        self.counts: dict[str, str] = {}
        self.silent = False
        self.observer = self.hidden_peer()

    # --- for scenarios

    def connect(self, **start_ok: object) -> Peer:
        """A new connection, logged in."""
        return self.socket().log_in(**start_ok)

    def socket(self) -> Peer:
        """A new connection that has not said anything yet."""
        peer = Peer(self, "abcdefgh"[len(self.peers)], self.port)
        self.peers.append(peer)
        return peer

    def channel(self, number: int = 1) -> Channel:
        """An open channel of the first connection."""
        peer = self.peers[0] if self.peers else self.connect()
        return peer.channel(number).open()

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Everything said inside goes out in one write per connection."""
        self.holding = True
        try:
            yield
        finally:
            self.holding = False
            for peer in self.peers:
                peer.push()
        self.settle()

    @contextlib.contextmanager
    def silence(self) -> Iterator[None]:
        """What a scenario says inside is not in the transcript."""
        before, self.silent = self.silent, True
        try:
            yield
        finally:
            self.silent = before

    def leave_alone(self, queue: str) -> None:
        """Do not ask for this queue's counts: being asked keeps a queue with x-expires alive."""
        self.left_alone.add(queue)

    def hide_counts(self, queue: str) -> None:
        """Do not write this queue's counts down: time changes them, in the middle of a step or after it."""
        self.hidden.add(queue)

    def await_count(self, queue: str, messages: int) -> None:
        """Waits until that many messages are ready: for what only time brings."""
        self.await_that(lambda: self.counts_now().get(queue, "").startswith(f"{messages} "))

    def await_that(self, satisfied: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not satisfied():
            if time.monotonic() > deadline:
                self.tell("! what the scenario waits for did not happen")
                break
            time.sleep(0.005)  # asking the server again is the only way to know
        self.settle()

    def tell(self, line: str) -> None:
        if not self.silent:
            self.transcript.append(self.stable(line))

    # --- steps

    def settle(self) -> None:
        """Waits until nothing moves any more, then writes down what came."""
        if self.holding:
            return
        deadline = time.monotonic() + WAIT_S
        quiet, before = 0, None
        for peer in self.peers:
            peer.wait_blindly()
        while quiet < QUIET_ROUNDS:
            if time.monotonic() > deadline:
                self.tell("! the server does not come to rest")
                break
            self.pass_barriers()
            state = (self.counts_now(), self.seen())
            quiet = quiet + 1 if state == before and not self.waiting() else 0
            before = state
        self.flush()

    def seen(self) -> int:
        return sum(len(c.events) + len(c.acked) + len(c.nacked) for c in self.channels())

    def waiting(self) -> bool:
        """Whether something is certain to come."""
        for peer in self.peers:
            if any(channel.unconfirmed for channel in peer.channels.values()):
                peer.read_some(0.005)
                return True
            if peer.was_open and not peer.is_open and not peer.ended and peer.answers_close:
                peer.read_some(0.005)
                return True
        return False

    def channels(self) -> Iterator[Channel]:
        for peer in self.peers:
            for number in sorted(peer.channels):
                if number != HIDDEN_CHANNEL:
                    yield peer.channels[number]

    def pass_barriers(self) -> None:
        asked = [c for c in self.channels() if c.can_be_asked]
        for channel in asked:
            channel.send_barrier()
        for channel in asked:
            if not channel.peer.read_until(lambda channel=channel: not channel.barriers):
                self.tell(f"! {channel} does not answer any more")
                channel.forget()
        for peer in self.peers:
            while not peer.ended and peer.read_some(0):
                pass

    def flush(self) -> None:
        for channel in self.channels():
            for line in channel.flush():
                self.tell(line)
        counts = self.counts_now()
        for queue, count in counts.items():
            if self.counts.get(queue) != count and queue not in self.hidden:
                self.tell(f"  = {queue}: {count}")
        self.counts = counts

    # --- queues

    def said(self, peer: Peer, name: str, values: dict[str, Any]) -> None:
        """Takes note of what will have to be counted, or removed in the end."""
        if name == "exchange.declare" and values["exchange"][:4] not in ("", "amq."):
            self.exchanges_ever.add(values["exchange"])
        if name == "queue.declare" and values.get("exclusive"):
            self.exclusive_requests.add((peer, values.get("queue", "")))
        if name == "queue.declare" and values.get("nowait") and values.get("queue"):
            self.queue_seen(values["queue"], peer)

    def queue_seen(self, queue: str, peer: Peer) -> None:
        """A queue that a server has confirmed to exist is counted from now on, and removed in the end."""
        self.queues_ever.add(queue)
        alone = (peer, queue) in self.exclusive_requests or (peer, "") in self.exclusive_requests
        self.owners.setdefault(queue, peer if alone else None)

    def counts_now(self) -> dict[str, str]:
        counted = {}
        for peer in {owner or self.observer for owner in self.owners.values()}:
            mine = [q for q, owner in self.owners.items() if (owner or self.observer) is peer]
            if peer.is_open:
                counted |= ask_for_counts(peer, [queue for queue in mine if queue not in self.left_alone])
        for queue in [queue for queue, count in counted.items() if count is None]:
            del self.owners[queue]
        return {queue: counted[queue] for queue in self.owners if counted.get(queue) is not None}

    # --- before and after

    def hidden_peer(self) -> Peer:
        with self.silence():
            return Peer(self, "observer", self.port).log_in()

    def close(self) -> None:
        """Leaves the server as it was found."""
        for peer in self.peers:
            peer.socket.close()
        self.http.undo()
        with self.silence():
            for queue in self.queues_ever:
                await_deletion(self.observer, queue)
            channel = self.observer.channel(1)
            for exchange in self.exchanges_ever:
                channel.is_open or channel.open()
                channel.send_method(wire.method_class("exchange_delete"), {"exchange": exchange})
                self.observer.read_until(lambda: channel.events)
                channel.events.clear()
        self.observer.socket.close()

    def stable(self, line: str) -> str:
        """Write names that a server made up as `<queue-1>`, `<tag-2>`, in order; the virtual host as '/'."""
        line = self.http.stable(self.vhost_in_text.sub(r"\g<before>/\g<after>", line))
        return MADE_UP.sub(self.stable_name, line)

    def stable_name(self, match: re.Match[str]) -> str:
        if match[0] not in self.names:
            kind = STABLE[match[1]]
            taken = sum(name.startswith(f"<{kind}-") for name in self.names.values())
            self.names[match[0]] = f"<{kind}-{taken + 1}>"
        return self.names[match[0]]


def hidden_channel(peer: Peer) -> Channel:
    channel = peer.channel(HIDDEN_CHANNEL)
    return channel if channel.is_open else channel.open()


def ask_for_counts(peer: Peer, queues: list[str]) -> dict[str, str | None]:
    """How many messages are ready and how many consumers there are; None for a queue that is gone."""
    counts: dict[str, str | None] = {}
    while len(counts) < len(queues) and peer.is_open:
        asked = queues[len(counts) :]
        answers = answers_about(peer, asked)
        for queue, answer in zip(asked, answers, strict=False):
            match = re.search(r"message_count=(\d+) consumer_count=(\d+)", answer)
            counts[queue] = f"{match[1]} ready, {match[2]} consumers" if match else None
        if not answers:
            break
    return counts


def answers_about(peer: Peer, queues: list[str]) -> list[str]:
    """Answers to passive declarations, asked in one go; the first queue that is gone is the last answered."""
    channel = hidden_channel(peer)
    method = wire.method_class("queue_declare")
    payloads = [wire.method_payload(method, {"queue": queue, "passive": True}) for queue in queues]
    frames = [wire.frame_bytes(wire.METHOD, channel.number, payload) for payload in payloads]
    peer.send(b"".join(frames), None)
    peer.read_until(lambda: len(channel.events) >= len(queues) or not channel.is_open)
    answers, channel.events = channel.events, []
    return answers


def await_deletion(peer: Peer, queue: str) -> None:
    """Deletes a queue, as soon as nobody holds it exclusively any more."""
    for attempt in itertools.count():
        channel = hidden_channel(peer)
        channel.send_method(wire.method_class("queue_delete"), {"queue": queue}, silent=True)
        peer.read_until(lambda channel=channel: channel.events)
        answer, channel.events = channel.events, []
        if answer and answer[0].startswith("queue.delete-ok"):
            return
        if attempt > 200:
            raise RuntimeError(f"{queue} can't be deleted: {answer}")
        time.sleep(0.005)


def played(scenario: Scenario, port: int, vhost: str = "/", *, http_port: int) -> list[str]:
    """The transcript of a scenario in a virtual host of the server on these ports."""
    play = Play(port, vhost, http_port)
    try:
        scenario(play)
    finally:
        play.close()
    return play.transcript
