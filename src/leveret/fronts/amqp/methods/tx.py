"""tx.*: transactions, which hold publishes and settlements until the commit."""

from __future__ import annotations

from typing import Any

from pamqp import commands as spec

from leveret.broker.errors import PreconditionFailed
from leveret.broker.sessions import transaction_commit
from leveret.broker.sessions.transaction import Buffer
from leveret.fronts.amqp.channel import AmqpChannel


def select(channel: AmqpChannel, method: spec.Tx.Select) -> None:
    if channel.core.owed.confirms is not None:
        raise PreconditionFailed("cannot switch from confirm to tx mode")
    if channel.core.transaction is None:
        channel.core.transaction = Buffer()
    channel.reply(spec.Tx.SelectOk())


def commit(channel: AmqpChannel, method: spec.Tx.Commit) -> None:
    """Commit; the answer is sent when the whole transaction is durable."""
    ticket = transaction_commit.commit(channel.core, _transaction(channel))
    channel.reply(spec.Tx.CommitOk(), ticket=ticket)


def rollback(channel: AmqpChannel, method: spec.Tx.Rollback) -> None:
    _transaction(channel).rollback(channel.core.unacked)
    channel.reply(spec.Tx.RollbackOk())


def _transaction(channel: AmqpChannel) -> Buffer:
    if channel.core.transaction is None:
        raise PreconditionFailed("channel is not transactional")
    return channel.core.transaction


HANDLERS: dict[Any, Any] = {spec.Tx.Select: select, spec.Tx.Commit: commit, spec.Tx.Rollback: rollback}
