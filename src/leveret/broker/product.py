"""Name and version that the broker reports to clients of every protocol."""

from __future__ import annotations

from typing import Final

NAME: Final = "Leveret"
RABBITMQ_VERSION: Final = "3.10.8"
"""The release of RabbitMQ whose behaviour we follow; clients use it to decide which features exist."""
