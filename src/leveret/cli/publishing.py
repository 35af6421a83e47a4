"""Publishing what is read, with an account of every message.

Everything that was read is in the end one of confirmed, returned, nacked, lost, or unsent; nothing is read
while the window is full. What is lost ends it: when nobody confirms any more, reading on would only lose
more. A message that the broker refuses does not, because the next one may be welcome. What is not confirmed
can be kept as envelopes, for another try.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any, Final, NamedTuple, cast

from leveret.amqp.tables import Value
from leveret.cli.background_calls import Background
from leveret.cli.command_runner import FAILED, Interruption, result_unless
from leveret.cli.inputs import Piece
from leveret.cli.message_json import JSON_TYPE, BadEnvelope, of_message, parse_json, to_message
from leveret.cli.screen import Gauge, Screen, counted
from leveret.client import ClientError, Message, Publisher, Receipt, Status
from leveret.client.message import Properties

TEXT_TYPE: Final = "text/plain"
_ENDS: Final = (Status.CONFIRMED, Status.RETURNED, Status.NACKED, Status.LOST)
_SHOWN_MAX: Final = 5
_PACE_S: Final = 0.005
"""Waits for the rate are not shorter than this."""


@dataclass(frozen=True, slots=True)
class Composer:
    """Makes messages of pieces: what the format and the options say about them."""

    form: str
    """lines, jsonl, envelope, file"""
    exchange: str | None
    key: str | None
    properties: Properties
    headers: dict[str, Value]

    def message(self, piece: Piece) -> Message:
        """`BadEnvelope` if the piece is not what it should be."""
        if self.form == "envelope":
            message = to_message(piece.body)
        else:
            if self.form == "jsonl":
                parse_json(piece.body)
            content_type = {"jsonl": JSON_TYPE, "lines": TEXT_TYPE}.get(self.form) or piece.guessed_type
            message = Message(piece.body, properties={"content_type": content_type})
        said = {**message.properties, **self.properties}
        if self.headers:
            said["headers"] = {**message.properties.get("headers", {}), **self.headers}
        return message._replace(
            exchange=message.exchange if self.exchange is None else self.exchange,
            routing_key=message.routing_key if self.key is None else self.key,
            properties=cast(Properties, said),
        )

    def skips(self, piece: Piece) -> bool:
        """Blank lines between JSON say nothing; as text they are messages."""
        return self.form in ("jsonl", "envelope") and not piece.body.strip()


class Failure(NamedTuple):
    """A message that is not confirmed."""

    message: Message
    status: str
    reason: str


@dataclass(slots=True)
class Account:
    """What became of everything that was read."""

    read: int = 0
    published: int = 0
    """More than were read, if each is repeated."""
    unsent: int = 0
    statuses: dict[Status, int] = field(default_factory=lambda: dict.fromkeys(_ENDS, 0))
    failures: list[Failure] = field(default_factory=list)
    """Those that nobody has dealt with yet; no more than the window has places."""

    @property
    def open(self) -> int:
        return self.published - sum(self.statuses.values())

    @property
    def failed(self) -> int:
        return self.published - self.statuses[Status.CONFIRMED] + self.unsent

    def settle(self, message: Message, receipt: Receipt) -> None:
        self.statuses[receipt.status] += 1
        if receipt.status is not Status.CONFIRMED:
            self.failures.append(Failure(message, receipt.status.value, _reason(receipt)))

    def as_json(self) -> dict[str, object]:
        counts = {status.value: count for status, count in self.statuses.items()}
        return {"read": self.read, "published": self.published, **counts, "unsent": self.unsent}

    def __str__(self) -> str:
        counts = [(status.value, count) for status, count in self.statuses.items()]
        counts.append(("not sent", self.unsent))
        said = [f"{count:,} {what}" for what, count in counts if count]
        return ", ".join(said) or "nothing was read"


def _reason(receipt: Receipt) -> str:
    if receipt.returned:
        return f"{receipt.reply_code} {receipt.reply_text}"
    return receipt.reason or str(receipt.cause or "no reason is known")


class Publishing:
    """One run: `exit_code = await Publishing(...).run(publisher, batches)`."""

    def __init__(
        self,
        screen: Screen,
        interruption: Interruption,
        composer: Composer,
        *,
        repeat: int,
        rate_per_s: float | None,
        total_bytes: int | None,
        failed: IO[bytes] | None,
        visible: bool,
    ) -> None:
        self._screen = screen
        self._interruption = interruption
        self._composer = composer
        self._repeat = repeat
        self._rate_per_s = rate_per_s
        self._total_bytes = total_bytes
        self._failed = failed
        self._visible = visible
        self._account = Account()
        self._read_bytes = 0
        self._shown = 0
        self._started_s = 0.0
        self._wrong = ""
        """Why it ended before the input did."""
        self._left: Piece | None = None
        """The first that was read and not published."""

    async def run(self, publisher: Publisher, batches: Iterator[Sequence[Piece]]) -> int:
        self._started_s = asyncio.get_running_loop().time()
        self._interruption.finish_in_order()
        with self._screen.gauge("publishing", visible=self._visible) as gauge:
            await self._read_and_send(publisher, batches, gauge)
            await self._wait_for_confirms(publisher, gauge)
        self._deal_with_failures()
        self._report(gauge)
        if self._wrong or self._account.failed > self._account.unsent:
            return FAILED
        return self._interruption.exit_code

    async def _read_and_send(
        self, publisher: Publisher, batches: Iterator[Sequence[Piece]], gauge: Gauge
    ) -> None:
        background = Background()
        asked = self._interruption.stop_requested
        read: Callable[[], Sequence[Piece] | None] = partial(next, batches, None)
        while not asked.is_set() and not self._wrong:
            try:
                batch = await result_unless(asked, background.call(read))
            except ClientError as error:
                self._wrong = str(error)
                return
            if batch is None:
                return
            await self._send(publisher, batch, gauge)
            self._deal_with_failures()

    async def _send(self, publisher: Publisher, batch: Sequence[Piece], gauge: Gauge) -> None:
        account = self._account
        pieces = [piece for piece in batch if not self._composer.skips(piece)]
        account.read += len(pieces)
        for at, piece in enumerate(pieces):
            try:
                message = self._composer.message(piece)
                for _ in range(self._repeat):
                    if not await self._may_go_on(publisher, gauge):
                        self._leave(pieces[at:])
                        return
                    self._publish(publisher, message)
            except (ValueError, ClientError) as error:
                self._wrong = f"{piece.place}: {error}"
                self._leave(pieces[at:])
                return
        self._read_bytes += sum(len(piece.body) + 1 for piece in batch)
        self._show(gauge)

    def _publish(self, publisher: Publisher, message: Message) -> None:
        body, key, exchange, _, _, _, said = message
        settle = partial(self._account.settle, message)
        publisher.send(body, key, exchange=exchange, on_confirm=settle, **said)
        self._account.published += 1

    async def _may_go_on(self, publisher: Publisher, gauge: Gauge) -> bool:
        """Waits for a place in the window, and for the rate."""
        account, asked = self._account, self._interruption.stop_requested
        if self._rate_per_s is not None:
            due_s = self._started_s + account.published / self._rate_per_s
            wait_s = due_s - asyncio.get_running_loop().time()
            if wait_s > _PACE_S:
                self._show(gauge)
                await result_unless(asked, asyncio.sleep(wait_s))
        if not publisher.has_room:
            await result_unless(asked, publisher.room())
        if account.statuses[Status.LOST] and not self._wrong:
            self._wrong = "a message was lost from sight, so nothing more is published"
        return not self._wrong and not asked.is_set()

    def _leave(self, pieces: Sequence[Piece]) -> None:
        """These were read, and are not sent any more."""
        self._account.unsent += len(pieces)
        self._left = pieces[0]
        for piece in pieces:
            with suppress(BadEnvelope):  # nothing that could be written as one
                self._keep(Failure(self._composer.message(piece), "unsent", "it was not sent"))

    async def _wait_for_confirms(self, publisher: Publisher, gauge: Gauge) -> None:
        """Until everything is known, or somebody insists on going."""
        self._show(gauge)
        if self._interruption.stop_requested.is_set() and self._account.open:
            self._screen.say(
                f"waiting for {counted(self._account.open, 'confirm')}; Ctrl-C again ends that too"
            )
        await result_unless(self._interruption.abort_requested, publisher.flush())
        await publisher.close(timeout_s=0)

    # what is not confirmed

    def _deal_with_failures(self) -> None:
        failures, self._account.failures = self._account.failures, []
        for failure in failures:
            self._keep(failure)
            if self._shown < _SHOWN_MAX:
                name = failure.message.properties.get("message_id") or failure.message.routing_key
                self._screen.list(f"{failure.status}: {name}: {failure.reason}")
                self._shown += 1

    def _keep(self, failure: Failure) -> None:
        if self._failed is not None:
            line = of_message(failure.message, status=failure.status, reason=failure.reason)
            self._failed.write(line + b"\n")

    # what is shown

    def _show(self, gauge: Gauge) -> None:
        account = self._account
        done = self._read_bytes / self._total_bytes if self._total_bytes else None
        gauge.show(account.published, done=done, more=f"{account.open:,} unconfirmed")

    def _report(self, gauge: Gauge) -> None:
        account, elapsed_s = self._account, gauge.elapsed_s
        hidden = account.failed - account.unsent - self._shown
        if hidden > 0:
            self._screen.list(f"... and {hidden:,} more")
        if self._wrong:
            self._screen.say(self._wrong)
        if self._left is not None:
            self._screen.say(f"the first that was read and not published: {self._left.place}")
        found: dict[str, Any] = {**account.as_json(), "seconds": round(elapsed_s, 3)}
        found["interrupted"] = self._interruption.stop_requested.is_set()
        rate = f" ({gauge.rate_per_s(account.published):,.0f}/s)" if account.published else ""
        self._screen.result(found, f"{account} in {elapsed_s:.1f} s{rate}")
