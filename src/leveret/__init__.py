"""Leveret: a message broker that accounts for every message.

This file owns the version and nothing else. Each part is a package of its own and is imported by its
name (``leveret.storage``), so that a program loads only what it uses.
"""

__version__ = "0.1.0"
