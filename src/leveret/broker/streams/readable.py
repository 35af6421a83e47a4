"""A stream, as those know it who read from it: readers, groups, and positions in it."""

from __future__ import annotations

from typing import Protocol

from leveret.broker.core import Core, Named
from leveret.broker.counters import Counters
from leveret.broker.errors import Unsupported
from leveret.broker.queues.queue_settings import QueueSettings
from leveret.storage.cursor import Cursor
from leveret.storage.log import Log


class Readable(Protocol):
    """`stream.readable()` is how far anybody may read."""

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
        """Whether it has messages that may be read once they are on disk."""

    @property
    def last(self) -> int | None:
        """The offset of the last message that may be read."""

    def readable(self) -> int:
        """Return the first offset that must not be read yet."""

    def decided(self) -> int:
        """Return the end, or the offset of the first row of a batch that is not committed yet."""

    def ahead(self, offset: int, count: int) -> int:
        """Return the offset so many messages further on."""

    def follow(self, follower: Follower) -> None:
        """Tell this group's partition what happens to the stream."""

    def unfollow(self, follower: Follower) -> None: ...

    def not_supported(self, what: str) -> Unsupported: ...


class Follower(Protocol):
    """A group's partition, as its stream knows it."""

    @property
    def cursor(self) -> Cursor: ...

    @property
    def wants_more(self) -> bool:
        """Whether it has consumers that are served at present."""

    def wake(self) -> None: ...
