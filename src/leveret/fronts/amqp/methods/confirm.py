"""confirm.*: put a channel into confirm mode."""

from __future__ import annotations

from typing import Any

from pamqp import commands as spec

from leveret.broker.errors import PreconditionFailed
from leveret.broker.sessions.confirms import Confirms
from leveret.fronts.amqp.channel import AmqpChannel
from leveret.fronts.amqp.methods.fields import answer


def select(channel: AmqpChannel, method: spec.Confirm.Select) -> None:
    if channel.core.transaction is not None:
        raise PreconditionFailed("cannot switch from tx to confirm mode")
    if channel.core.owed.confirms is None:
        channel.core.owed.confirms = Confirms()
    answer(channel, method, spec.Confirm.SelectOk())


HANDLERS: dict[Any, Any] = {spec.Confirm.Select: select}
