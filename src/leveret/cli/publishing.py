"""Publish what was read, and account for every message.

Every message that was read ends as confirmed, returned, nacked, lost, or unsent; nothing is read while the
window is full. A lost message ends the run: if the broker no longer confirms, more messages would be lost
too. A message that the broker refuses does not end the run, because the next one may be accepted.
Unconfirmed messages can be kept as envelopes, for another attempt.
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
_FINAL_STATUSES: Final = (Status.CONFIRMED, Status.RETURNED, Status.NACKED, Status.LOST)
_LISTED_MAX: Final = 5
_RATE_WAIT_MIN_S: Final = 0.005
"""Shorter waits for `--rate` are skipped."""


@dataclass(frozen=True, slots=True)
class Composer:
    """Turns pieces of input into messages, by the format and the options."""

    form: str
    """The format: lines, jsonl, envelope or file."""
    exchange: str | None
    key: str | None
    properties: Properties
    headers: dict[str, Value]

    def message(self, piece: Piece) -> Message:
        """Return the message of a piece; raise `BadEnvelope` if the piece does not fit the format."""
        if self.form == "envelope":
            message = to_message(piece.body)
        else:
            if self.form == "jsonl":
                parse_json(piece.body)
            content_type = {"jsonl": JSON_TYPE, "lines": TEXT_TYPE}.get(self.form) or piece.guessed_type
            message = Message(piece.body, properties={"content_type": content_type})
        properties = {**message.properties, **self.properties}
        if self.headers:
            properties["headers"] = {**message.properties.get("headers", {}), **self.headers}
        return message._replace(
            exchange=message.exchange if self.exchange is None else self.exchange,
            routing_key=message.routing_key if self.key is None else self.key,
            properties=cast(Properties, properties),
        )

    def skips(self, piece: Piece) -> bool:
        """Return whether to skip the piece: a blank line is a message only in format lines."""
        return self.form in ("jsonl", "envelope") and not piece.body.strip()


class Failure(NamedTuple):
    """A message that was not confirmed."""

    message: Message
    status: str
    reason: str


@dataclass(slots=True)
class Account:
    """What became of every message that was read."""

    read: int = 0
    published: int = 0
    """Counts each repetition, so it can be larger than `read`."""
    unsent: int = 0
    statuses: dict[Status, int] = field(default_factory=lambda: dict.fromkeys(_FINAL_STATUSES, 0))
    failures: list[Failure] = field(default_factory=list)
    """Failures not yet reported; at most as many as the window allows."""

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
        parts = [f"{count:,} {outcome}" for outcome, count in counts if count]
        return ", ".join(parts) or "nothing was read"


def _reason(receipt: Receipt) -> str:
    if receipt.returned:
        return f"{receipt.reply_code} {receipt.reply_text}"
    return receipt.reason or str(receipt.cause or "unknown reason")


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
        self._listed_count = 0
        self._started_s = 0.0
        self._failure = ""
        """Why the run ended before the input did."""
        self._first_unsent: Piece | None = None
        """The first piece that was read and not published."""

    async def run(self, publisher: Publisher, batches: Iterator[Sequence[Piece]]) -> int:
        self._started_s = asyncio.get_running_loop().time()
        self._interruption.finish_in_order()
        with self._screen.gauge("publishing", visible=self._visible) as gauge:
            await self._read_and_send(publisher, batches, gauge)
            await self._wait_for_confirms(publisher, gauge)
        self._report_failures()
        self._report(gauge)
        if self._failure or self._account.failed > self._account.unsent:
            return FAILED
        return self._interruption.exit_code

    async def _read_and_send(
        self, publisher: Publisher, batches: Iterator[Sequence[Piece]], gauge: Gauge
    ) -> None:
        background = Background()
        stop_requested = self._interruption.stop_requested
        read_batch: Callable[[], Sequence[Piece] | None] = partial(next, batches, None)
        while not stop_requested.is_set() and not self._failure:
            try:
                batch = await result_unless(stop_requested, background.call(read_batch))
            except ClientError as error:
                self._failure = str(error)
                return
            if batch is None:
                return
            await self._send(publisher, batch, gauge)
            self._report_failures()

    async def _send(self, publisher: Publisher, batch: Sequence[Piece], gauge: Gauge) -> None:
        account = self._account
        pieces = [piece for piece in batch if not self._composer.skips(piece)]
        account.read += len(pieces)
        for index, piece in enumerate(pieces):
            try:
                message = self._composer.message(piece)
                for _ in range(self._repeat):
                    if not await self._wait_for_room(publisher, gauge):
                        self._mark_unsent(pieces[index:])
                        return
                    self._publish(publisher, message)
            except (ValueError, ClientError) as error:
                self._failure = f"{piece.place}: {error}"
                self._mark_unsent(pieces[index:])
                return
        self._read_bytes += sum(len(piece.body) + 1 for piece in batch)
        self._show(gauge)

    def _publish(self, publisher: Publisher, message: Message) -> None:
        body, key, exchange, _, _, _, properties = message
        settle = partial(self._account.settle, message)
        publisher.send(body, key, exchange=exchange, on_confirm=settle, **properties)
        self._account.published += 1

    async def _wait_for_room(self, publisher: Publisher, gauge: Gauge) -> bool:
        """Wait for the rate and for room in the window; return False if nothing more may be sent."""
        account, stop_requested = self._account, self._interruption.stop_requested
        if self._rate_per_s is not None:
            due_s = self._started_s + account.published / self._rate_per_s
            wait_s = due_s - asyncio.get_running_loop().time()
            if wait_s > _RATE_WAIT_MIN_S:
                self._show(gauge)
                await result_unless(stop_requested, asyncio.sleep(wait_s))
        if not publisher.has_room:
            await result_unless(stop_requested, publisher.room())
        if account.statuses[Status.LOST] and not self._failure:
            self._failure = "publishing stopped: a message was neither confirmed nor refused"
        return not self._failure and not stop_requested.is_set()

    def _mark_unsent(self, pieces: Sequence[Piece]) -> None:
        """Count pieces that were read and will not be sent, and keep their messages."""
        self._account.unsent += len(pieces)
        self._first_unsent = pieces[0]
        for piece in pieces:
            # A piece that is not a valid envelope can't be kept as one.
            with suppress(BadEnvelope):
                self._keep(Failure(self._composer.message(piece), "unsent", "it was not sent"))

    async def _wait_for_confirms(self, publisher: Publisher, gauge: Gauge) -> None:
        """Wait until every message has its receipt, or until the second signal."""
        self._show(gauge)
        if self._interruption.stop_requested.is_set() and self._account.open:
            self._screen.say(
                f"waiting for {counted(self._account.open, 'confirm')}; press Ctrl-C again to stop waiting"
            )
        await result_unless(self._interruption.abort_requested, publisher.flush())
        await publisher.close(timeout_s=0)

    def _report_failures(self) -> None:
        failures, self._account.failures = self._account.failures, []
        for failure in failures:
            self._keep(failure)
            if self._listed_count < _LISTED_MAX:
                name = failure.message.properties.get("message_id") or failure.message.routing_key
                self._screen.list(f"{failure.status}: {name}: {failure.reason}")
                self._listed_count += 1

    def _keep(self, failure: Failure) -> None:
        if self._failed is not None:
            line = of_message(failure.message, status=failure.status, reason=failure.reason)
            self._failed.write(line + b"\n")

    def _show(self, gauge: Gauge) -> None:
        account = self._account
        done = self._read_bytes / self._total_bytes if self._total_bytes else None
        gauge.show(account.published, done=done, more=f"{account.open:,} unconfirmed")

    def _report(self, gauge: Gauge) -> None:
        account, elapsed_s = self._account, gauge.elapsed_s
        unlisted_count = account.failed - account.unsent - self._listed_count
        if unlisted_count > 0:
            self._screen.list(f"... and {unlisted_count:,} more")
        if self._failure:
            self._screen.say(self._failure)
        if self._first_unsent is not None:
            self._screen.say(f"first message not published: {self._first_unsent.place}")
        result: dict[str, Any] = {**account.as_json(), "seconds": round(elapsed_s, 3)}
        result["interrupted"] = self._interruption.stop_requested.is_set()
        rate = f" ({gauge.rate_per_s(account.published):,.0f}/s)" if account.published else ""
        self._screen.result(result, f"{account} in {elapsed_s:.1f} s{rate}")
