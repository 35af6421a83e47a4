"""A toy front: a protocol of text lines, to show all that a new protocol needs from the broker.

LOGIN name password     ->  WELCOME, or REFUSED
DECLARE queue           ->  DECLARED queue
PUBLISH queue text      ->  STORED n, when it is on the disk; FULL n; NOWHERE text
CONSUME queue credit    ->  CONSUMING, then MESSAGE tag text
ACK tag                     RETURN tag, for one that is to come again
whatever is refused     ->  ERROR kind sentence
"""

from __future__ import annotations

from collections.abc import Sequence

from leveret.broker import canonical
from leveret.broker.access.accounts import User
from leveret.broker.access.logins import Origin
from leveret.broker.broker import Broker
from leveret.broker.errors import BrokerError
from leveret.broker.queues.consumer import Consumer
from leveret.broker.queues.queue_settings import QueueSettings
from leveret.broker.sessions import consuming, publishing, settling
from leveret.broker.sessions.channel import Channel
from leveret.broker.sessions.confirms import Confirms
from leveret.broker.sessions.consuming import ConsumeRequest
from leveret.broker.sessions.outlet import Deliveries
from leveret.broker.sessions.route import Route
from leveret.broker.sessions.session import PeerView
from leveret.broker.sessions.settlement import Tags, Verdict

VERDICTS = {"ACK": Verdict.ACK, "RETURN": Verdict.REQUEUE}


class LineClient:
    """One client: `client.feed("PUBLISH q hello")`, a turn of the broker, `client.out`."""

    def __init__(self, broker: Broker) -> None:
        self.out: list[str] = []
        self.is_open = False
        self._broker = broker
        self._session = broker.open_session(self, name="a line", origin=Origin(loopback=True))
        self._channel: Channel | None = None

    def feed(self, line: str) -> None:
        command, _, rest = line.partition(" ")
        try:
            if self._channel is None:
                name, password = rest.split()
                self._broker.logins.begin(
                    name, password.encode(), origin=self._session.origin, done=self._log_in
                )
            elif command == "DECLARE":
                self._declare(self._channel, rest)
            elif command == "PUBLISH":
                self._publish(self._channel, *rest.split(" ", 1))
            elif command == "CONSUME":
                self._consume(self._channel, *rest.split())
            else:
                tag = int(rest)
                settling.settle(self._channel, [Tags(tag, tag)], VERDICTS[command])
        except BrokerError as error:
            self.fail(error)

    def consumer_prefetch(self, channel: int) -> int:
        return 0

    def describe(self) -> PeerView:
        return PeerView("lines")

    def close(self) -> None:
        """The client hangs up."""
        self.is_open = False
        if self._channel is not None:
            self._channel.close()
        self._session.delete_exclusive_queues()
        self._session.end()

    # what it asks for

    def _log_in(self, user: User | None) -> None:
        if user is None:
            self._say("REFUSED")
            return
        self._session.logged_in(user)
        self._session.enter(self._broker.vhosts["/"])
        self._channel = Channel(self._session, self)
        self._channel.owed.confirms = Confirms()
        self.is_open = True
        self._say("WELCOME")

    def _declare(self, channel: Channel, name: str) -> None:
        self._session.check_access("configure", "queue", name)
        queue = channel.vhost.add_queue(
            name, durable=True, auto_delete=False, owner=None, table={}, declared=QueueSettings()
        )
        channel.owed.answer(f"DECLARED {name}".encode(), defined=queue.defined)

    def _publish(self, channel: Channel, name: str, text: str) -> None:
        self._session.check_access("write", "exchange", "")
        route = publishing.resolve(channel.vhost, "", name, mandatory=True, user=self._session.user)
        header = canonical.encode({"delivery_mode": 2}, len(text.encode()))
        publishing.publish(channel, route, [(header, text.encode())])

    def _consume(self, channel: Channel, name: str, credit: str) -> None:
        ticket = consuming.consume(channel, ConsumeRequest(name, tag="consumer", prefetch=int(credit)))
        channel.owed.answer(b"CONSUMING", ticket=ticket)

    # what the broker says of its channel

    has_room = True

    def has_room_for_reply(self, size_bytes: int) -> bool:
        return True

    def deliver(self, consumer_tag: bytes, run: Deliveries) -> None:
        for tag, body in enumerate(run.bodies, run.first_tag):
            self._say(f"MESSAGE {tag} {body.decode()}")

    def answer(self, data: bytes) -> None:
        self._say(data.decode())

    def confirm(self, last: int, *, nack: bool, multiple: bool) -> None:
        self._say(f"{'FULL' if nack else 'STORED'} {last}")

    def return_messages(self, route: Route, contents: Sequence[tuple[bytes, bytes]]) -> None:
        for _, body in contents:
            self._say(f"NOWHERE {body.decode()}")

    def cancel(self, consumer: Consumer) -> bool:
        self._say("CANCELLED")
        return True

    # what the broker says of its session, or of either

    def fail(self, why: BrokerError | str) -> None:
        kind, sentence = (type(why).__name__, why.sentence) if isinstance(why, BrokerError) else ("", why)
        self._say(f"ERROR {kind} {sentence}")

    def force_close(self, reason: str) -> None:
        self._say(f"GOODBYE {reason}")
        self.close()

    def tell_blocked(self, reason: str | None) -> None:
        self._say(f"BLOCKED {reason}" if reason else "UNBLOCKED")

    def _say(self, line: str) -> None:
        self.out.append(line)
        self._session.has_output()
