"""tx.*: a channel whose publishes and settlements wait for a commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pamqp import commands as spec

from leveret.amqp.errors import PreconditionFailed
from leveret.broker.transaction import Buffer

if TYPE_CHECKING:
    from leveret.broker.channel import Channel


def select(channel: Channel, method: spec.Tx.Select) -> None:
    if channel.confirms is not None:
        raise PreconditionFailed("cannot switch from confirm to tx mode")
    if channel.transaction is None:
        channel.transaction = Buffer()
    channel.reply(spec.Tx.SelectOk())


def commit(channel: Channel, method: spec.Tx.Commit) -> None:
    """Answered when everything in it is durable."""
    ticket = _transaction(channel).commit(channel)
    channel.reply(spec.Tx.CommitOk(), ticket=ticket)


def rollback(channel: Channel, method: spec.Tx.Rollback) -> None:
    _transaction(channel).rollback(channel)
    channel.reply(spec.Tx.RollbackOk())


def _transaction(channel: Channel) -> Buffer:
    if channel.transaction is None:
        raise PreconditionFailed("channel is not transactional")
    return channel.transaction


HANDLERS: dict[Any, Any] = {spec.Tx.Select: select, spec.Tx.Commit: commit, spec.Tx.Rollback: rollback}
