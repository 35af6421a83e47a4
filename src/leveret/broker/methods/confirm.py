"""confirm.*: a channel that confirms its publishes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pamqp import commands as spec

from leveret.amqp.errors import PreconditionFailed
from leveret.broker.confirms import Confirms

if TYPE_CHECKING:
    from leveret.broker.channel import Channel


def select(channel: Channel, method: spec.Confirm.Select) -> None:
    if channel.transaction is not None:
        raise PreconditionFailed("cannot switch from tx to confirm mode")
    if channel.confirms is None:
        channel.confirms = Confirms(channel.number)
    if not method.nowait:
        channel.reply(spec.Confirm.SelectOk())


HANDLERS: dict[Any, Any] = {spec.Confirm.Select: select}
