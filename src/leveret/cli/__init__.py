"""The command `leveret`: parse, call, print."""
