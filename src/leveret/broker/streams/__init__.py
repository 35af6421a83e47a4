"""Streams: logs that keep what was read, and consumers that read them each from where it likes."""
