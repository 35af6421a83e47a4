"""Files of definitions in RabbitMQ's form: read and written without a running broker, and loaded at a start.

    left_out = import_offline(Path("leveret-data"), read_document(Path("rabbitmq.json")))

What a document holds is left to `broker.views.definitions` and `broker.operations.definitions`. The rule: a
data directory that a broker has open is never used.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from leveret.broker.access.passwords import NOBODY_HASH, hash_password
from leveret.broker.broker import Broker
from leveret.broker.operations.definitions import Plan, plain_passwords
from leveret.broker.views.definitions import sections
from leveret.server.definitions import Definitions
from leveret.server.server import Server
from leveret.server.tls import OFF
from leveret.storage.files import OsFiles

T = TypeVar("T")


class UnreadableFile(Exception):
    """The file can't be read or is not JSON."""


def read_document(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise UnreadableFile(f"{path} can't be read: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise UnreadableFile(
            f"{path} is not JSON: line {error.lineno}, column {error.colno}: {error.msg}"
        ) from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise UnreadableFile(f"{path} is not JSON: {error}") from error


def load(broker: Broker, document: Any, *, vhost: str | None = None) -> Plan:
    """Make what a document holds; raise `BrokerError` before anything is changed if it has a mistake."""
    hashes = {
        name: hash_password(password.encode("utf-8", "surrogatepass"), secrets.token_bytes())
        for name, password in plain_passwords(document).items()
    }
    plan = Plan(broker, vhost=vhost, hashes=hashes)
    for _ in chain(plan.read(document), plan.apply()):
        pass
    return plan


def import_offline(
    directory: Path, document: Any, *, vhost: str | None = None, is_dry_run: bool = False
) -> Plan:
    """Load a document into the data directory of a stopped broker."""

    def change(broker: Broker) -> Plan:
        if not is_dry_run:
            return load(broker, document, vhost=vhost)
        plan = Plan(broker, vhost=vhost, hashes=dict.fromkeys(plain_passwords(document), NOBODY_HASH))
        for _ in plan.read(document):
            pass
        return plan

    return asyncio.run(_with_broker(directory, change))


def export_offline(directory: Path, *, vhost: str | None = None) -> dict[str, Any]:
    """Return the definitions in the data directory of a stopped broker."""
    return asyncio.run(_with_broker(directory, lambda broker: whole(sections(broker, vhost))))


def whole(parts: Iterator[tuple[str, Any]]) -> dict[str, Any]:
    """Return the document that these sections make."""
    return {name: list(value) if isinstance(value, Iterator) else value for name, value in parts}


async def _with_broker(directory: Path, use: Callable[[Broker], T]) -> T:
    """Start a broker without listeners, use it, and stop it when all changes are on disk."""
    results: list[T] = []
    server = Server(
        OsFiles(str(directory)),
        definitions=Definitions(str(directory / "definitions.db")),
        port=OFF,
        prepare=lambda broker: results.append(use(broker)),
    )
    await server.start()
    last_change = server.broker.definitions.number
    await server.stop()
    refusal = server.broker.definitions.refusal or server.failure
    if refusal is not None and server.broker.definitions.committed < last_change:
        raise refusal
    return results[0]
