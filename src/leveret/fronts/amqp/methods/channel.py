"""channel.*: only flow. Opening and closing channels is left to `Connection`."""

from __future__ import annotations

from typing import Any

from pamqp import commands as spec

from leveret.amqp.errors import ChannelError, NotImplemented_
from leveret.fronts.amqp.channel import AmqpChannel


def open_(channel: AmqpChannel, method: spec.Channel.Open) -> None:
    raise ChannelError("second 'channel.open' seen")


def flow(channel: AmqpChannel, method: spec.Channel.Flow) -> None:
    if not method.active:
        raise NotImplemented_("active=false")
    channel.reply(spec.Channel.FlowOk(True))


HANDLERS: dict[Any, Any] = {spec.Channel.Open: open_, spec.Channel.Flow: flow}
