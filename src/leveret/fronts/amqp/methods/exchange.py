"""exchange.*: declare, delete, bind and unbind exchanges."""

from __future__ import annotations

from typing import Any

from pamqp import commands as spec

from leveret.amqp.errors import CommandInvalid
from leveret.broker.errors import AccessRefused, PreconditionFailed
from leveret.broker.exchanges import ROUTERS
from leveret.broker.exchanges.exchange import Exchange
from leveret.broker.queues import arguments
from leveret.broker.vhosts.reserved_names import check_not_default, check_not_reserved, cleaned
from leveret.fronts.amqp.channel import AmqpChannel
from leveret.fronts.amqp.methods.fields import answer, table_of


def declare(channel: AmqpChannel, method: spec.Exchange.Declare) -> None:
    vhost = channel.vhost
    name = cleaned(method.exchange)
    check_not_default(name)
    if method.passive:
        vhost.exchange(name)
        defined = 0
    else:
        channel.session.check_access("configure", "exchange", name)
        defined = _declare(channel, name, method).defined
    answer(channel, method, spec.Exchange.DeclareOk(), defined=defined)


def _declare(channel: AmqpChannel, name: str, method: spec.Exchange.Declare) -> Exchange:
    vhost, type_ = channel.vhost, method.exchange_type
    if type_ not in ROUTERS:
        problem = "unknown" if type_ else "invalid"
        raise CommandInvalid(f"{problem} exchange type '{type_}'")
    current = vhost.exchanges.get(name)
    if current is not None:
        _check_equivalent(channel, current, method)
        return current
    check_not_reserved("exchange", name)
    alternate = arguments.alternate_exchange(table_of(method), name=name, vhost=vhost.name)
    if alternate is not None:
        channel.session.check_access("read", "exchange", name)
        channel.session.check_access("write", "exchange", alternate)
    return vhost.add_exchange(
        name,
        type_,
        durable=method.durable,
        auto_delete=method.auto_delete,
        internal=method.internal,
        table=table_of(method),
    )


def _check_equivalent(channel: AmqpChannel, current: Exchange, method: spec.Exchange.Declare) -> None:
    subject = {"kind": "exchange", "name": current.name, "vhost": channel.vhost.name}
    arguments.check_same("type", current.type, method.exchange_type, **subject)
    arguments.check_same("durable", current.durable, method.durable, **subject)
    arguments.check_same("auto_delete", current.auto_delete, method.auto_delete, **subject)
    arguments.check_same("internal", current.internal, method.internal, **subject)
    arguments.check_equivalent(current.table, table_of(method), **subject)


def delete(channel: AmqpChannel, method: spec.Exchange.Delete) -> None:
    vhost, name = channel.vhost, cleaned(method.exchange)
    check_not_default(name)
    if name.startswith("amq."):
        raise AccessRefused(f"deletion of system exchange '{name}' in vhost '{vhost.name}' not allowed")
    channel.session.check_access("configure", "exchange", name)
    exchange = vhost.exchanges.get(name)
    defined = 0
    if exchange is not None:
        if method.if_unused and len(exchange.router):
            raise PreconditionFailed(f"{vhost.describe(exchange)} in use")
        vhost.groups.check_exchange_deletion(exchange)
        defined = vhost.delete_exchange(exchange)
    if not method.nowait:
        channel.reply(spec.Exchange.DeleteOk(), defined=defined)


def _check_binding(channel: AmqpChannel, method: spec.Exchange.Bind | spec.Exchange.Unbind) -> None:
    check_not_default(method.destination)
    check_not_default(method.source)
    channel.session.check_access("write", "exchange", method.destination)
    channel.vhost.check_source(channel.session.user, method.source, method.routing_key)


def bind(channel: AmqpChannel, method: spec.Exchange.Bind) -> None:
    _check_binding(channel, method)
    source, destination = channel.vhost.exchange(method.source), channel.vhost.exchange(method.destination)
    source.router.check_arguments(table_of(method))
    defined = channel.vhost.bind(source, destination, method.routing_key, table_of(method))
    answer(channel, method, spec.Exchange.BindOk(), defined=defined)


def unbind(channel: AmqpChannel, method: spec.Exchange.Unbind) -> None:
    _check_binding(channel, method)
    source = channel.vhost.exchanges.get(method.source)
    destination = channel.vhost.exchanges.get(method.destination)
    defined = 0
    if source is not None and destination is not None:
        defined = channel.vhost.unbind(source, destination, method.routing_key, table_of(method))
    if not method.nowait:
        channel.reply(spec.Exchange.UnbindOk(), defined=defined)


HANDLERS: dict[Any, Any] = {
    spec.Exchange.Declare: declare,
    spec.Exchange.Delete: delete,
    spec.Exchange.Bind: bind,
    spec.Exchange.Unbind: unbind,
}
