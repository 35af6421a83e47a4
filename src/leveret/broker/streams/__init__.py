"""Streams: logs whose messages stay after they are read, and consumers that read them from any position."""
