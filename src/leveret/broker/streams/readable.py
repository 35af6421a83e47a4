"""The interface of a stream for its readers: readers, groups and positions."""

from __future__ import annotations

from typing import Protocol

from leveret.broker.core import Core, Named
from leveret.broker.counters import Counters
from leveret.broker.errors import Unsupported
from leveret.broker.queues.queue_settings import QueueSettings
from leveret.storage.cursor import Cursor
from leveret.storage.log import Log


class Readable(Protocol):
    """`stream.readable()` returns the offset up to which messages may be read."""

    name: str
    log: Log
    cursor: Cursor
    settings: QueueSettings
    broker: Core
    counters: Counters
    deleted: bool

    @property
    def log_id(self) -> int: ...

    @property
    def vhost(self) -> Named: ...

    @property
    def awaits_sync(self) -> bool:
        """Whether the stream has messages that may be read after the next sync."""

    @property
    def last(self) -> int | None:
        """The offset of the last message that may be read."""

    def readable(self) -> int:
        """Return the first offset that must not be read yet."""

    def decided(self) -> int:
        """Return the end of the stream, or the offset of the first row whose batch is not committed yet."""

    def offset_after(self, offset: int, count: int) -> int:
        """Return the offset `count` messages after `offset`."""

    def follow(self, follower: Follower) -> None:
        """Wake this group's partition from now on when the stream has new messages."""

    def unfollow(self, follower: Follower) -> None: ...

    def not_supported(self, operation: str) -> Unsupported: ...


class Follower(Protocol):
    """What a stream needs of a group's partition that reads it."""

    @property
    def cursor(self) -> Cursor: ...

    @property
    def wants_more(self) -> bool:
        """Whether the partition has consumers that may be served at present."""

    def wake(self) -> None: ...
