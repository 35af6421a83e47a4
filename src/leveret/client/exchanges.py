"""Which exchanges exist, as far as a publisher can know.

A publish to a missing exchange closes the channel. All other publishes on that channel must then be sent
again, and may be stored twice. So the broker is asked before the first publish to each exchange, on a
separate channel that may be closed without harm. If an exchange is deleted later, the publish notices it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from leveret.client.channel import Channel
from leveret.client.errors import ChannelClosed, ClientError
from leveret.client.passive_checks import is_there_an_exchange
from leveret.client.session import Session

_NOT_FOUND: Final = 404
_KNOWN_MAX: Final = 10_000


class KnownExchanges:
    """`if name not in exchanges.known: exchanges.ask(session, name)`."""

    def __init__(
        self, *, on_found: Callable[[], None], on_missing: Callable[[str, ChannelClosed], None]
    ) -> None:
        self.known = {""}
        """Names of exchanges that exist. The default exchange always does."""
        self._on_found = on_found
        self._on_missing = on_missing
        self._asking: dict[str, asyncio.Task[None]] = {}

    def ask(self, session: Session, name: str) -> None:
        """Ask the broker, unless a question is under way. The answer calls `on_found` or `on_missing`."""
        if name not in self._asking:
            self._asking[name] = asyncio.get_running_loop().create_task(self._ask(session, name))

    def forget_all(self) -> None:
        """Ask about every exchange again: on a new channel, some may have been deleted."""
        self.known = {""}

    async def _ask(self, session: Session, name: str) -> None:
        missing: ChannelClosed | None = None
        channel: Channel | None = None
        try:
            channel = await session.open_channel()
            await channel.call(is_there_an_exchange(name))
        except ChannelClosed as error:
            missing = error if error.code == _NOT_FOUND else None
        except ClientError:
            if session.error is not None:
                del self._asking[name]
                # Messages may wait for this exchange on the next session, which must be asked again.
                self._on_found()
                return
        del self._asking[name]
        if missing is not None:
            self._on_missing(name, missing)
        else:
            # After any other error the exchange may exist. The publish will show it.
            self._learn(name)
            if channel is not None:
                await channel.close()

    def _learn(self, name: str) -> None:
        if len(self.known) >= _KNOWN_MAX:
            self.known = {""}
        self.known.add(name)
        self._on_found()
