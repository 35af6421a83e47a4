"""Which exchanges are there, as far as a publisher can know.

A publish to an exchange that does not exist closes the channel, and whatever else is on its way there must
be sent again, perhaps for the second time. So the broker is asked before the first publish to each
exchange, on a channel of its own that may be closed without harm. Whoever is deleted later is noticed by
the publish itself.
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

    def __init__(self, *, found: Callable[[], None], missing: Callable[[str, ChannelClosed], None]) -> None:
        self.known = {""}
        """The default exchange is always there."""
        self._found = found
        self._missing = missing
        self._asking: dict[str, asyncio.Task[None]] = {}

    def ask(self, session: Session, name: str) -> None:
        """Finds out, unless somebody does so already; then `found` or `missing` is called."""
        if name not in self._asking:
            self._asking[name] = asyncio.get_running_loop().create_task(self._ask(session, name))

    def forget(self, name: str) -> None:
        """It may be gone."""
        if name:
            self.known.discard(name)

    def forget_all(self) -> None:
        """There is another session: not everything outlives a broker."""
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
                self._found()  # somebody may have to ask again, on the next session
                return
        del self._asking[name]
        if missing is not None:
            self._missing(name, missing)
        else:
            self._learn(name)  # if something else is wrong, the publish will tell
            if channel is not None:
                await channel.close()

    def _learn(self, name: str) -> None:
        if len(self.known) >= _KNOWN_MAX:
            self.known = {""}
        self.known.add(name)
        self._found()
