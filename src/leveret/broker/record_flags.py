"""Flags of the broker in records, in addition to the store's `PERSISTENT`."""

EXPIRES = 0x02
"""The message has the property `expiration`."""
UNLIMITED = bytes(flags for flags in range(256) if not flags & EXPIRES)
"""All values of the flags without `EXPIRES`."""
