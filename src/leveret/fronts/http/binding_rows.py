"""Bindings as JSON, and their names in paths (`properties_key`), as RabbitMQ has them.

    properties_key("order.new", "")         "order.new"
    properties_key("", "")                  "~"
    properties_key("a/b ~", "hJ8s-aQ0")     "a%2Fb+%7E~hJ8s-aQ0"

In a path the name is encoded once more; as in RabbitMQ, a key without `~` may also stand there as it is. The
hash of the arguments is Leveret's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Final
from urllib.parse import quote_plus, unquote_plus

from starlette.requests import Request
from starlette.responses import Response

from leveret.broker.views.exchanges import BindingView
from leveret.fronts.http.json_replies import jsonable, text
from leveret.fronts.http.listings import Rows, gathered, reply_listed

_CHEAP: Final = {name: attrgetter(name) for name in ("source", "vhost", "destination", "routing_key")}


def describe_binding(binding: BindingView) -> dict[str, object]:
    return {
        "source": text(binding.source),
        "vhost": text(binding.vhost),
        "destination": text(binding.destination),
        "destination_type": "queue" if binding.is_queue else "exchange",
        "routing_key": text(binding.routing_key),
        "arguments": jsonable(binding.arguments),
        "properties_key": properties_key(binding.routing_key, binding.arguments_hash),
    }


async def list_bindings(request: Request, bindings: Iterable[BindingView]) -> Response:
    """Return a list of bindings; RabbitMQ has no pages of them."""
    rows = Rows(await gathered(bindings), row=describe_binding, cheap=_CHEAP)
    return await reply_listed(request, rows, paged=False)


def properties_key(routing_key: str, arguments_hash: str) -> str:
    """Return the name that a binding has among those with equal source and destination.

    >>> properties_key("a/b ~", "hJ8s-aQ0")
    'a%2Fb+%7E~hJ8s-aQ0'
    """
    encoded = quote_plus(routing_key, safe="", errors="surrogateescape").replace("~", "%7E")
    if arguments_hash or not encoded:
        encoded += f"~{arguments_hash}"
    return encoded


def binding_named(name: str) -> tuple[str, str]:
    """Return routing key and hash of the arguments of the binding with this `properties_key`.

    >>> binding_named("a%2Fb+%7E~hJ8s-aQ0"), binding_named("~")
    (('a/b ~', 'hJ8s-aQ0'), ('', ''))
    """
    key, _, arguments_hash = name.partition("~")
    return unquote_plus(key, errors="surrogateescape"), arguments_hash
