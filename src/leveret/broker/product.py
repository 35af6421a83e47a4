"""What the broker says of itself, by every protocol."""

from __future__ import annotations

from typing import Final

NAME: Final = "Leveret"
RABBITMQ_VERSION: Final = "3.10.8"
"""The release of RabbitMQ that decides where our contract is silent; clients gate features on it."""
