"""`leveret redrive`: messages back to where they failed, with the account of it.

Moving is the toolkit's; here are the options, the bar, the signals and the dry run, which looks at every
message and leaves it where it is. On Leveret nothing about the message changes. A signal ends the command
between two rounds: what was copied has been taken off the source by then.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from typing import Annotated, TypeAlias

import typer

from leveret.cli.command_runner import FAILED, Interruption, connected, queue_depth, run, unless
from leveret.cli.filters import BadCondition, parse_conditions
from leveret.cli.options import CONNECT_S, AsJson, ConnectS, RatePerS, Urls
from leveret.cli.screen import Gauge, Screen, counted
from leveret.client import ClientError, Connection, Delivery, peeking
from leveret.client.redrive import Redriven, home
from leveret.client.redrive import redrive as move
from leveret.client.session import Session

Source: TypeAlias = Annotated[str, typer.Argument(help="The queue with the messages that failed.")]
To: TypeAlias = Annotated[
    str | None,
    typer.Option(help="The queue they go to; unless given, the one each came from.", show_default=False),
]
Where: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        help="Only those: header.NAME=TEXT, type=, message_id=, body.FIELD=; != is not, ~= contains."
    ),
]
Limit: TypeAlias = Annotated[
    int | None, typer.Option(min=1, help="Move at most so many.", show_default=False)
]
DryRun: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Only say what would be moved.")]


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
    """Move messages from a parking place, dead letters or a pipeline's rejects back to where they failed.

    leveret redrive orders.parked --where type=TimeoutError --rate 50
    """
    try:
        wanted = parse_conditions(where or [])
    except BadCondition as error:
        raise typer.BadParameter(f"--where: {error}") from error
    screen = Screen(as_json=as_json)

    async def work(interruption: Interruption) -> int:
        async with connected(url, timeout_s=connect_timeout, name="leveret redrive") as connection:
            await queue_depth(connection, source)
            if to is not None:
                await queue_depth(connection, to)
            redriving = Redriving(screen, interruption, wanted, to=to, limit=limit, dry_run=dry_run)
            return await redriving.run(connection, source, rate)

    run(screen, work)


class _Enough(Exception):
    """Somebody wants to stop: raised between two rounds."""


@dataclass(slots=True)
class Account:
    found: int = 0
    moved: int = 0
    """In a dry run: those that would be."""
    kept: int = 0
    homeless: int = 0
    """Of those that are kept: wanted, but nobody knows where they belong."""
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
        wanted: Callable[[Delivery], bool],
        *,
        to: str | None,
        limit: int | None,
        dry_run: bool,
    ) -> None:
        self._screen = screen
        self._interruption = interruption
        self._wanted = wanted
        self._to = to
        self._limit = limit
        self._account = Account(dry_run=dry_run)
        self._wrong = ""

    async def run(self, connection: Connection, source: str, rate_per_s: float | None) -> int:
        self._interruption.handle()
        with self._screen.gauge("redriving") as gauge:
            moving = self._move_or_look(connection, source, rate_per_s, gauge)
            try:
                await unless(self._interruption.insisted, moving)
            except _Enough:
                pass
            except ClientError as error:
                self._wrong = str(error)
        return self._report()

    async def _move_or_look(
        self, connection: Connection, source: str, rate_per_s: float | None, gauge: Gauge
    ) -> None:
        if self._account.dry_run:
            session = await connection.connected(CONNECT_S)
            if session.has(peeking.CAPABILITY):
                await self._look(session, source, await queue_depth(connection, source), gauge)
                return
        await move(
            connection,
            source,
            to=self._to,
            where=self._where,
            limit=self._limit,
            rate_per_s=rate_per_s,
            on_progress=lambda progress: self._progressed(progress, gauge),
        )

    async def _look(self, session: Session, source: str, found: int, gauge: Gauge) -> None:
        """Judge every message without taking it off the queue."""
        progress = Redriven(found=found)
        async with aclosing(peeking.peek(session, source, found)) as batches:
            async for batch in batches:
                for delivery in batch:
                    self._where(delivery)
                progress.kept += len(batch)
                self._progressed(progress, gauge)

    def _where(self, delivery: Delivery) -> bool:
        account = self._account
        if not self._wanted(delivery):
            return False
        if self._to is None and home(delivery.headers) is None:
            account.homeless += 1
            return False
        if account.dry_run and (self._limit is None or account.moved < self._limit):
            account.moved += 1
        return not account.dry_run

    def _progressed(self, progress: Redriven, gauge: Gauge) -> None:
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
        if self._interruption.asked.is_set():
            raise _Enough

    def _report(self) -> int:
        account = self._account
        if self._wrong:
            self._screen.say(self._wrong)
        if account.homeless:
            self._screen.say(
                f"{counted(account.homeless, 'message')} kept: nobody knows where from (--to says where to)"
            )
        self._screen.result(
            {**asdict(account), "interrupted": self._interruption.asked.is_set()}, str(account)
        )
        return FAILED if self._wrong or account.homeless else self._interruption.exit_code
