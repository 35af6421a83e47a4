"""`leveret redrive`: move messages back to the queues where they failed.

The toolkit moves; this module owns the options, the progress bar, the signals and the dry run. A dry run
judges every message without moving it; on Leveret nothing about the message changes. A signal ends the
command between two rounds, when every copied message has been removed from the source.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from typing import Annotated, TypeAlias

import typer

from leveret.cli.command_runner import FAILED, Interruption, connected, queue_depth, result_unless, run
from leveret.cli.filters import BadCondition, parse_conditions
from leveret.cli.options import CONNECT_S, AsJson, ConnectS, RatePerS, Urls
from leveret.cli.screen import Gauge, Screen, counted
from leveret.client import ClientError, Connection, Delivery, peeking
from leveret.client.redrive import Redriven, home
from leveret.client.redrive import redrive as move
from leveret.client.session import Session

Source: TypeAlias = Annotated[str, typer.Argument(help="The queue with the failed messages.")]
To: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Target queue (default: the queue where each message failed).", show_default=False),
]
Where: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        help="Only matching messages: header.NAME=TEXT, type=, message_id=, body.FIELD=; also !=, ~=."
    ),
]
Limit: TypeAlias = Annotated[int | None, typer.Option(min=1, help="At most this many.", show_default=False)]
DryRun: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Report what would be moved, and stop.")]


def redrive(
    source: Source,
    url: Urls = None,
    to: To = None,
    where: Where = None,
    limit: Limit = None,
    rate: RatePerS = None,
    dry_run: DryRun = False,
    connect_timeout: ConnectS = CONNECT_S,
    as_json: AsJson = False,
) -> None:
    """Move parked messages, dead letters or a pipeline's rejects back to where they failed.

    leveret redrive orders.parked --where type=TimeoutError --rate 50
    """
    try:
        is_wanted = parse_conditions(where or [])
    except BadCondition as error:
        raise typer.BadParameter(f"--where: {error}") from error
    screen = Screen(as_json=as_json)

    async def work(interruption: Interruption) -> int:
        async with connected(url, timeout_s=connect_timeout, name="leveret redrive") as connection:
            await queue_depth(connection, source)
            if to is not None:
                await queue_depth(connection, to)
            redriving = Redriving(screen, interruption, is_wanted, to=to, limit=limit, dry_run=dry_run)
            return await redriving.run(connection, source, rate)

    run(screen, work)


class _Stopped(Exception):
    """The user has asked to stop; raised between two rounds."""


@dataclass(slots=True)
class Account:
    found: int = 0
    moved: int = 0
    """In a dry run: messages that would be moved."""
    kept: int = 0
    homeless: int = 0
    """Kept messages that match, but do not say in which queue they failed."""
    dry_run: bool = field(default=False)

    def __str__(self) -> str:
        moved = "would be moved" if self.dry_run else "moved"
        return f"{counted(self.found, 'message')} found, {self.moved:,} {moved}, {self.kept:,} kept"


class Redriving:
    """One run: `exit_code = await Redriving(...).run(connection, source, rate_per_s)`."""

    def __init__(
        self,
        screen: Screen,
        interruption: Interruption,
        is_wanted: Callable[[Delivery], bool],
        *,
        to: str | None,
        limit: int | None,
        dry_run: bool,
    ) -> None:
        self._screen = screen
        self._interruption = interruption
        self._is_wanted = is_wanted
        self._to = to
        self._limit = limit
        self._account = Account(dry_run=dry_run)
        self._failure = ""

    async def run(self, connection: Connection, source: str, rate_per_s: float | None) -> int:
        self._interruption.finish_in_order()
        with self._screen.gauge("redriving") as gauge:
            moving = self._move_or_judge(connection, source, rate_per_s, gauge)
            try:
                await result_unless(self._interruption.abort_requested, moving)
            except _Stopped:
                pass
            except ClientError as error:
                self._failure = str(error)
        return self._report()

    async def _move_or_judge(
        self, connection: Connection, source: str, rate_per_s: float | None, gauge: Gauge
    ) -> None:
        if self._account.dry_run:
            session = await connection.connected(CONNECT_S)
            if session.has(peeking.CAPABILITY):
                await self._judge_in_place(session, source, await queue_depth(connection, source), gauge)
                return
        await move(
            connection,
            source,
            to=self._to,
            where=self._decide,
            limit=self._limit,
            rate_per_s=rate_per_s,
            on_progress=lambda progress: self._after_round(progress, gauge),
        )

    async def _judge_in_place(self, session: Session, source: str, message_count: int, gauge: Gauge) -> None:
        """Judge every message without taking it off the queue."""
        progress = Redriven(found=message_count)
        async with aclosing(peeking.peek(session, source, message_count)) as batches:
            async for batch in batches:
                for delivery in batch:
                    self._decide(delivery)
                progress.kept += len(batch)
                self._after_round(progress, gauge)

    def _decide(self, delivery: Delivery) -> bool:
        """Count the message; return whether to move it."""
        account = self._account
        if not self._is_wanted(delivery):
            return False
        if self._to is None and home(delivery.headers) is None:
            account.homeless += 1
            return False
        if account.dry_run and (self._limit is None or account.moved < self._limit):
            account.moved += 1
        return not account.dry_run

    def _after_round(self, progress: Redriven, gauge: Gauge) -> None:
        """Show how many messages were moved; raise `_Stopped` after a signal."""
        account = self._account
        account.found = progress.found
        if account.dry_run:
            account.kept = progress.kept - account.moved
        else:
            account.moved, account.kept = progress.moved, progress.kept
        done = progress.moved + progress.kept
        gauge.show(
            done, done=done / progress.found if progress.found else None, more=f"{account.moved:,} moved"
        )
        if self._interruption.stop_requested.is_set():
            raise _Stopped

    def _report(self) -> int:
        account = self._account
        if self._failure:
            self._screen.say(self._failure)
        if account.homeless:
            messages = counted(account.homeless, "message")
            self._screen.say(f"{messages} kept: unknown origin (choose a queue with --to)")
        interrupted = self._interruption.stop_requested.is_set()
        self._screen.result({**asdict(account), "interrupted": interrupted}, str(account))
        return FAILED if self._failure or account.homeless else self._interruption.exit_code
