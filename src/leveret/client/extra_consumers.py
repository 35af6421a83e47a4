"""Extra consumers on a listener's channel, so that waiting deliveries do not use up the prefetch.

A delivery that waits for its next try stays unacked. While some wait, each extra consumer lets the broker
send as many other messages. When none waits, the extra consumers are cancelled. On a queue with a single
active consumer they get nothing, and the broker does not say so. This module notices it: messages are ready,
and a consumer with all its prefetch free gets none. It then tells the listener once, and adds no more.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Final

from pamqp import commands

from leveret.amqp.methods import Method, make
from leveret.client.channel import Channel
from leveret.client.consumer_methods import qos
from leveret.client.errors import ClientError
from leveret.client.passive_checks import depth

PREFETCH_MAX: Final = 65_535
_FIRST_CHECK_S: Final = 0.2
_CHECK_S: Final = 1.0


class ExtraConsumers:
    """`extra_consumers.make_room(3)`: let the broker send three others in place of three that wait."""

    def __init__(
        self, queue: str, prefetch: int, *, consume: Callable[[str], Method], useless: Callable[[], None]
    ) -> None:
        """`consume` makes the method for a tag. `useless` is called if extra consumers get nothing."""
        self._queue = queue
        self._prefetch = prefetch
        self._consume = consume
        self._on_useless = useless
        self._channel: Channel | None = None
        self._waiting_count = 0
        self._is_useful = False
        """Whether an extra consumer of this channel has got a delivery."""
        self._is_useless = False
        self._change_task: asyncio.Task[None] | None = None
        self._check_task: asyncio.Task[None] | None = None
        self._prefetches: dict[str, int] = {}
        """The prefetch of each extra consumer, by consumer tag."""

    @property
    def tags(self) -> list[str]:
        return list(self._prefetches)

    def begin(self, channel: Channel) -> None:
        """Start anew on a channel that has only the first consumer."""
        self._channel = channel
        self._prefetches.clear()
        self._is_useful = False

    def end(self) -> None:
        """Add and cancel no more consumers."""
        self._channel = None
        for task in (self._change_task, self._check_task):
            if task is not None:
                task.cancel()

    def make_room(self, waiting_count: int) -> None:
        """Add or cancel consumers, now that this many deliveries wait in the process."""
        self._waiting_count = waiting_count
        if self._change_task is None and self._must_change():
            self._change_task = asyncio.get_running_loop().create_task(self._change())

    def note_deliveries(self, messages: list[tuple[bytes, bytes, bytes]]) -> None:
        """Look whether one of these deliveries is for an extra consumer.

        Byte 4 of a basic.deliver is the length of the consumer tag, which follows.
        """
        if self._prefetches and not self._is_useful:
            tags = {tag.encode() for tag in self._prefetches}
            self._is_useful = any(method[5 : 5 + method[4]] in tags for method, _, _ in messages)

    def cancelled(self, tag: str) -> bool:
        """Forget a consumer that the broker has cancelled; return whether it was an extra one."""
        return self._prefetches.pop(tag, None) is not None

    def _must_change(self) -> bool:
        """Return whether consumers must be added, or all of them cancelled."""
        if self._channel is None or not self._channel.open:
            return False
        if self._is_useless or not self._waiting_count:
            return bool(self._prefetches)
        deliveries_max = self._prefetch + sum(self._prefetches.values())
        return deliveries_max - self._waiting_count < (self._prefetch + 1) // 2

    async def _change(self) -> None:
        try:
            while self._must_change():
                assert self._channel is not None
                if self._waiting_count and not self._is_useless:
                    await self._add(self._channel)
                else:
                    await self._cancel_last(self._channel)
        except ClientError:
            # The channel has ended. The broker delivers what waited again.
            pass
        finally:
            self._change_task = None

    async def _add(self, channel: Channel) -> None:
        prefetch = min(max(self._prefetch, self._waiting_count), PREFETCH_MAX)
        tag = f"leveret.{secrets.token_hex(6)}.relief"
        self._prefetches[tag] = prefetch
        await channel.call(qos(prefetch))
        await channel.call(self._consume(tag))
        if not self._is_useful and self._check_task is None:
            self._check_task = asyncio.get_running_loop().create_task(self._check())

    async def _cancel_last(self, channel: Channel) -> None:
        tag, _ = self._prefetches.popitem()
        await channel.call(make(commands.Basic.Cancel, consumer_tag=tag, nowait=False))

    async def _check(self) -> None:
        """Check until a delivery came, no extra consumer is left, or they are known to be useless."""
        pause_s = _FIRST_CHECK_S
        try:
            while not self._is_useless:
                await asyncio.sleep(pause_s)
                pause_s = _CHECK_S
                if self._channel is None or not self._prefetches or self._is_useful:
                    return
                self._is_useless = await self._is_passed_over(self._channel)
            self.make_room(self._waiting_count)
            self._on_useless()
        except ClientError:
            # The channel has ended. The next one starts anew.
            pass
        finally:
            self._check_task = None

    async def _is_passed_over(self, channel: Channel) -> bool:
        """Return whether messages are ready, and none of them is sent to an extra consumer.

        The queue is asked twice: a delivery under way at the first answer arrives before the second.
        """
        is_ready = await depth(channel, self._queue) and await depth(channel, self._queue)
        return bool(is_ready and self._waiting_count and self._prefetches and not self._is_useful)
