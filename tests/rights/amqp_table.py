"""What every AMQP method needs. Each row is played on Leveret, and on RabbitMQ unless it is about groups.

Before a row is played there are the queue `{queue}` with a message, bound to the exchange `{exchange}`; the
exchange `{exchange}2`, bound to the first; the queue `{locked}`, exclusive to the owner's connection; the
stream `plain-s` and the owner's group `{group}` on it. There is no `{new}`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pika.adapters.blocking_connection import BlockingChannel

from tests.rights.names import Names

Act = Callable[[BlockingChannel, Names], Any]


@dataclass(frozen=True, slots=True)
class Row:
    method: str
    needs: tuple[str, ...]
    act: Act
    case: str = ""
    is_ours: bool = False
    """Whether RabbitMQ has no answer."""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.method, self.case)))


def consume(channel: BlockingChannel, queue: str, **arguments: Any) -> str:
    channel.basic_qos(prefetch_count=1)
    named = {name.replace("_", "-"): value for name, value in arguments.items()}
    return str(channel.basic_consume(queue, lambda *_: None, arguments=named))


def join(channel: BlockingChannel, group: str, **settings: Any) -> str:
    return consume(channel, "plain-s", x_group=group, **settings)


def get(channel: BlockingChannel, names: Names) -> int:
    method, _, _ = channel.basic_get(names.queue)
    assert method is not None
    return int(method.delivery_tag)


def committed(channel: BlockingChannel, end: str) -> None:
    channel.tx_select()
    getattr(channel, end)()


_CONFIGURE_QUEUE = ("configure queue {queue}",)
_READ = ("read queue {queue}",)
_BIND = ("write queue {queue}", "read exchange {exchange}")
_BIND_EXCHANGE = ("write exchange {exchange}2", "read exchange {exchange}")
_DEAD = {"x-dead-letter-exchange": "plain-x"}
_ALTERNATE = {"alternate-exchange": "plain-x"}
_JOIN = ("read queue plain-s",)

ROWS: Final = (
    # channels
    Row("channel.open", (), lambda c, n: None),
    Row("channel.flow", (), lambda c, n: c.flow(True)),
    Row("channel.close", (), lambda c, n: c.close()),
    Row("confirm.select", (), lambda c, n: c.confirm_delivery()),
    Row("tx.select", (), lambda c, n: c.tx_select()),
    Row("tx.commit", (), lambda c, n: committed(c, "tx_commit")),
    Row("tx.rollback", (), lambda c, n: committed(c, "tx_rollback")),
    # queues
    Row("queue.declare", ("configure queue {new}",), lambda c, n: c.queue_declare(n.new)),
    Row("queue.declare", _CONFIGURE_QUEUE, lambda c, n: c.queue_declare(n.queue), "again"),
    Row("queue.declare", (), lambda c, n: c.queue_declare(n.queue, passive=True), "passive"),
    Row(
        "queue.declare",
        ("configure queue {new}", "read queue {new}", "write exchange plain-x"),
        lambda c, n: c.queue_declare(n.new, arguments=_DEAD),
        "with dead letters",
    ),
    Row(
        "queue.declare",
        ("hold queue {locked}",),
        lambda c, n: c.queue_declare(n.locked, passive=True),
        "passive, exclusive",
    ),
    Row("queue.bind", _BIND, lambda c, n: c.queue_bind(n.queue, n.exchange, "new")),
    Row("queue.unbind", _BIND, lambda c, n: c.queue_unbind(n.queue, n.exchange, "k")),
    Row("queue.purge", _READ, lambda c, n: c.queue_purge(n.queue)),
    Row(
        "queue.purge",
        ("read queue {locked}", "hold queue {locked}"),
        lambda c, n: c.queue_purge(n.locked),
        "exclusive",
    ),
    Row("queue.delete", _CONFIGURE_QUEUE, lambda c, n: c.queue_delete(n.queue)),
    # exchanges
    Row("exchange.declare", ("configure exchange {new}",), lambda c, n: c.exchange_declare(n.new)),
    Row("exchange.declare", (), lambda c, n: c.exchange_declare(n.exchange, passive=True), "passive"),
    Row(
        "exchange.declare",
        ("configure exchange {new}", "read exchange {new}", "write exchange plain-x"),
        lambda c, n: c.exchange_declare(n.new, arguments=_ALTERNATE),
        "with an alternate",
    ),
    Row("exchange.delete", ("configure exchange {exchange}",), lambda c, n: c.exchange_delete(n.exchange)),
    Row(
        "exchange.bind",
        _BIND_EXCHANGE,
        lambda c, n: c.exchange_bind(f"{n.exchange}2", n.exchange, "new"),
    ),
    Row(
        "exchange.unbind",
        _BIND_EXCHANGE,
        lambda c, n: c.exchange_unbind(f"{n.exchange}2", n.exchange, "k"),
    ),
    # messages
    Row(
        "basic.publish",
        ("write exchange {exchange}",),
        lambda c, n: c.basic_publish(n.exchange, "k", b"x"),
    ),
    Row(
        "basic.publish",
        ("write exchange ",),
        lambda c, n: c.basic_publish("", n.queue, b"x"),
        "to the default exchange",
    ),
    Row("basic.get", _READ, get),
    Row("basic.ack", _READ, lambda c, n: c.basic_ack(get(c, n))),
    Row("basic.nack", _READ, lambda c, n: c.basic_nack(get(c, n))),
    Row("basic.reject", _READ, lambda c, n: c.basic_reject(get(c, n))),
    Row("basic.qos", (), lambda c, n: c.basic_qos(prefetch_count=1)),
    Row("basic.consume", _READ, lambda c, n: consume(c, n.queue)),
    Row(
        "basic.consume",
        ("read queue {locked}", "hold queue {locked}"),
        lambda c, n: consume(c, n.locked),
        "exclusive",
    ),
    Row("basic.cancel", _READ, lambda c, n: c.basic_cancel(consume(c, n.queue))),
    Row("basic.recover", (), lambda c, n: c.basic_recover(requeue=True)),
    # what RabbitMQ does not have
    Row("basic.consume", _READ, lambda c, n: consume(c, n.queue, x_peek=True), "peek", is_ours=True),
    Row("basic.consume", _JOIN, lambda c, n: join(c, f"{n.group}b"), "make a group", is_ours=True),
    Row(
        "basic.consume",
        (*_JOIN, "join group {group}"),
        lambda c, n: join(c, n.group),
        "join a group",
        is_ours=True,
    ),
    Row(
        "basic.consume",
        (*_JOIN, "join group {group}", "operate group {group}"),
        lambda c, n: join(c, n.group, x_group_max_span=7),
        "change a group",
        is_ours=True,
    ),
)

WITHOUT_A_RIGHT: Final = {
    "access.request": "it is answered, and grants nothing",
    "basic.recover-async": "no client here sends it; it is basic.recover without an answer",
    "connection.close": "everybody may leave",
    "connection.open": "a test of its own: every user opens a connection",
    "connection.update-secret": "it is accepted without effect",
}
"""Methods without a row, and why."""
