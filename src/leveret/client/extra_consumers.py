"""Further consumers on a channel, so that deliveries which wait in place take no place of the prefetch.

While some wait, unacked, each further consumer gives the broker room to send as many others; when none
waits, they leave. A queue with a single active consumer sends them nothing, and does not say so: that is
noticed when messages are ready and a consumer with all its room gets none. It is then told, once, and no
more are tried; what becomes of those that wait is left to the listener.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Final

from pamqp import commands

from leveret.amqp.methods import Method, make
from leveret.client.channel import Channel
from leveret.client.errors import ClientError
from leveret.client.passive_checks import depth

PREFETCH_MAX: Final = 65_535
_FIRST_LOOK_S: Final = 0.2
_LOOK_S: Final = 1.0


class Relief:
    """`extra_consumers.change(waiting=3)`: there is room for others in their place."""

    def __init__(
        self, queue: str, prefetch: int, *, consume: Callable[[str], Method], useless: Callable[[], None]
    ) -> None:
        """`consume` makes the method for a consumer tag; `useless` is told when relief is of no use here."""
        self._queue = queue
        self._prefetch = prefetch
        self._consume = consume
        self._useless = useless
        self._channel: Channel | None = None
        self._waiting = 0
        self._proved = False
        """A further consumer of this channel was sent something."""
        self._refuted = False
        self._changing: asyncio.Task[None] | None = None
        self._doubting: asyncio.Task[None] | None = None
        self.tags: list[str] = []
        """The further consumers; one that the broker cancels is taken out."""
        self._prefetches: dict[str, int] = {}
        """What each of them was given room for."""

    def begin(self, channel: Channel) -> None:
        """A new channel, with the first consumer only."""
        self._channel = channel
        self.tags.clear()
        self._prefetches.clear()
        self._proved = False

    def end(self) -> None:
        """No more of them."""
        self._channel = None
        for task in (self._changing, self._doubting):
            if task is not None:
                task.cancel()

    def change(self, waiting: int) -> None:
        """So many deliveries wait in place."""
        self._waiting = waiting
        if self._changing is None and self._wants_change():
            self._changing = asyncio.get_running_loop().create_task(self._change())

    def came(self, messages: list[tuple[bytes, bytes, bytes]]) -> None:
        """These were delivered, to whichever consumer; its tag is behind the fourth byte of the method."""
        if self.tags and not self._proved:
            tags = {tag.encode() for tag in self.tags}
            self._proved = any(method[5 : 5 + method[4]] in tags for method, _, _ in messages)

    @property
    def _capacity(self) -> int:
        """How many deliveries the broker may send, all consumers together."""
        return self._prefetch + sum(self._prefetches[tag] for tag in self.tags)

    def _wants_change(self) -> bool:
        """More consumers, or none any more."""
        if self._channel is None or not self._channel.open:
            return False
        if self._refuted or not self._waiting:
            return bool(self.tags)
        return self._capacity - self._waiting < (self._prefetch + 1) // 2

    async def _change(self) -> None:
        try:
            while self._wants_change():
                assert self._channel is not None
                if self._waiting and not self._refuted:
                    await self._add(self._channel)
                else:
                    await self._drop(self._channel)
        except ClientError:
            pass  # the channel is gone, and what waited with it
        finally:
            self._changing = None

    async def _add(self, channel: Channel) -> None:
        prefetch = min(max(self._prefetch, self._waiting), PREFETCH_MAX)
        tag = f"leveret.{secrets.token_hex(6)}.relief"
        self.tags.append(tag)
        self._prefetches[tag] = prefetch
        await channel.call(qos(prefetch))
        await channel.call(self._consume(tag))
        if not self._proved and self._doubting is None:
            self._doubting = asyncio.get_running_loop().create_task(self._doubt())

    async def _drop(self, channel: Channel) -> None:
        tag = self.tags.pop()
        del self._prefetches[tag]
        await channel.call(make(commands.Basic.Cancel, consumer_tag=tag, nowait=False))

    # whether it is of any use

    async def _doubt(self) -> None:
        """Looks, until something came, or nothing waits any more, or it is known to be of no use."""
        pause_s = _FIRST_LOOK_S
        try:
            while not self._refuted:
                await asyncio.sleep(pause_s)
                pause_s = _LOOK_S
                if self._channel is None or not self.tags or self._proved:
                    return
                self._refuted = await self._is_passed_over(self._channel)
            self.change(self._waiting)
            self._useless()
        except ClientError:
            pass  # the channel is gone
        finally:
            self._doubting = None

    async def _is_passed_over(self, channel: Channel) -> bool:
        """Asked twice: what was under way at the first answer is here before the second."""
        ready = await depth(channel, self._queue) and await depth(channel, self._queue)
        return bool(ready and self._waiting and self.tags and not self._proved)


def qos(prefetch: int) -> commands.Basic.Qos:
    return make(commands.Basic.Qos, prefetch_size=0, prefetch_count=prefetch, global_=False)
