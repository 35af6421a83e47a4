"""exchange.*: declare, delete, bind and unbind exchanges."""

from __future__ import annotations

from typing import Any

from pamqp import commands as spec

from leveret.broker.operations import bindings, exchanges
from leveret.broker.operations.bindings import WantedBinding
from leveret.broker.operations.exchanges import ExchangeDeclaration
from leveret.broker.vhosts.reserved_names import check_not_default, cleaned
from leveret.fronts.amqp.channel import AmqpChannel
from leveret.fronts.amqp.methods.fields import answer, in_turn, requester, table_of


def declare(channel: AmqpChannel, method: spec.Exchange.Declare) -> None:
    name = cleaned(method.exchange)
    defined = 0
    if method.passive:
        check_not_default(name)
        channel.vhost.exchange(name)
    else:
        wanted = ExchangeDeclaration(
            name,
            method.exchange_type,
            durable=method.durable,
            auto_delete=method.auto_delete,
            internal=method.internal,
            table=table_of(method),
        )
        exchange, _ = exchanges.declare(requester(channel), wanted, begin=in_turn)
        defined = exchange.defined
    answer(channel, method, spec.Exchange.DeclareOk(), defined=defined)


def delete(channel: AmqpChannel, method: spec.Exchange.Delete) -> None:
    name = cleaned(method.exchange)
    defined = exchanges.delete(requester(channel), name, if_unused=method.if_unused, begin=in_turn)
    if not method.nowait:
        channel.reply(spec.Exchange.DeleteOk(), defined=defined)


def bind(channel: AmqpChannel, method: spec.Exchange.Bind) -> None:
    defined = bindings.bind(requester(channel), _wanted(method), begin=in_turn)
    answer(channel, method, spec.Exchange.BindOk(), defined=defined)


def unbind(channel: AmqpChannel, method: spec.Exchange.Unbind) -> None:
    defined = bindings.unbind(requester(channel), _wanted(method), begin=in_turn)
    if not method.nowait:
        channel.reply(spec.Exchange.UnbindOk(), defined=defined)


def _wanted(method: spec.Exchange.Bind | spec.Exchange.Unbind) -> WantedBinding:
    return WantedBinding(
        method.source, method.destination, is_queue=False, key=method.routing_key, table=table_of(method)
    )


HANDLERS: dict[Any, Any] = {
    spec.Exchange.Declare: declare,
    spec.Exchange.Delete: delete,
    spec.Exchange.Bind: bind,
    spec.Exchange.Unbind: unbind,
}
