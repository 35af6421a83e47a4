"""What the broker writes into the flags of a record, beside the store's own `PERSISTENT`."""

EXPIRES = 0x02
"""The message has an expiration of its own."""
UNLIMITED = bytes(flags for flags in range(256) if not flags & EXPIRES)
"""The flags of messages without one."""
