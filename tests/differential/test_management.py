"""Requests to RabbitMQ's management API for queues, exchanges, bindings and messages, sent to both brokers.

Statuses, locations, errors and reasons must be the same, and every name in RabbitMQ's JSON must be in
Leveret's. Where Leveret differs on purpose, `Ask.differs` or `MISSING` says why. The test fails when a
difference is no longer there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import pika
import pytest

from tests.differential.management import Answer, Management
from tests.processes import wait_until

pytestmark = [pytest.mark.real, pytest.mark.needs_rabbitmq]

NULL = "RabbitMQ takes null for the text 'null' or fails; for Leveret null is a value that is missing."
FAILS = "RabbitMQ answers 500 without a reason."
NOT_TEXT = "RabbitMQ takes a number for a routing key, which no other client can read."
WIDTH = "Leveret does not keep the width of integers: see `erlang_terms`."
TOO_LARGE = "RabbitMQ takes values that do not fit AMQP's types; other clients can't read them."
DEFAULT_BINDING = "RabbitMQ invents a default binding of a queue that does not exist."
ONE_NODE = "Leveret is one process: the node of a declaration has no meaning."


@dataclass(frozen=True, slots=True)
class Ask:
    method: str
    path: str
    body: object = None
    differs: str = ""

    def __str__(self) -> str:
        return f"{self.method} {self.path} {self.body if self.body is not None else ''}".strip()


def puts(path: str, *bodies: Any) -> list[Ask]:
    """Each body in a declaration of its own: the object is deleted before."""
    found = []
    for each in bodies:
        body, differs = each if isinstance(each, tuple) else (each, "")
        found += [Ask("PUT", path, body, differs), Ask("DELETE", path, differs=differs and "as before")]
    return found


def posts(path: str, *bodies: Any) -> list[Ask]:
    split = [each if isinstance(each, tuple) else (each, "") for each in bodies]
    return [Ask("POST", path, body, differs) for body, differs in split]


QUEUE = "/api/queues/{vhost}"
EXCHANGE = "/api/exchanges/{vhost}"
BINDING = "/api/bindings/{vhost}/e"
PUBLISH = f"{EXCHANGE}/amq.default/publish"
GET = f"{QUEUE}/m-got/get"
MESSAGE = {"properties": {}, "routing_key": "m-got", "payload": "hello", "payload_encoding": "string"}
GOT = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}

LISTS = [
    *(Ask("PUT", f"{QUEUE}/m-{name}", {}) for name in ("a", "b", "c1", "c2", "Order")),
    *(
        Ask("GET", f"{QUEUE}?columns=name&{query}")
        for query in (
            *(
                "page=1&page_size=2",
                "page=1",
                "page=2&page_size=4",
                "page=9&page_size=4",
                "page=0",
                "page=-1",
            ),
            *(
                "page=1&page_size=0",
                "page=1&page_size=501",
                "page=x",
                "page=1&page_size=x",
                "page=",
                "page=01",
            ),
            *("page_size=5", "page=1&page_size=", "page=1&name=C", "page=1&name=m-[ac].&use_regex=true"),
            *("page=1&name=(&use_regex=true", "page=1&name=zzz", "page=2&name=zzz", "page=1.5", "page=%2B1"),
            *("page=1&page_size=5&sort=name", "page=2&page_size=5", "sort=name&sort_reverse=true", "name=c"),
        )
    ),
    Ask("GET", f"{QUEUE}?disable_stats=true"),
    Ask("GET", f"{QUEUE}?disable_stats=true&enable_queue_totals=true&page=1&page_size=1"),
    Ask("GET", f"{QUEUE}?columns=nope"),
    Ask("GET", f"{QUEUE}?columns="),
    Ask("GET", f"{QUEUE}/m-a?columns=name,arguments,nope.x"),
    Ask("GET", f"{EXCHANGE}?page=1&page_size=3&columns=name,type"),
    Ask("GET", "/api/exchanges/nope"),
    Ask("GET", f"{EXCHANGE}?page=1&name=^$&use_regex=true&columns=name"),
    *(Ask("DELETE", f"{QUEUE}/m-{name}") for name in ("a", "b", "c1", "c2", "Order")),
]
QUEUES = [
    *puts(
        f"{QUEUE}/m-q",
        {"durable": True},
        {"durable": "yes"},
        {"durable": "true", "auto_delete": "false"},
        {"durable": None},
        {"durable": 1},
        {"auto_delete": True},
        {"arguments": {"x-max-length": "a"}},
        {"arguments": {"x-max-length": -1}},
        {"arguments": {"x-unknown": 1, "list": [1, {"deep": True}], "double": 1.5}},
        ({"arguments": "a"}, FAILS),
        ({"arguments": None}, FAILS),
        {"arguments": []},
        {"arguments": {"a": None}},
        {"name": "other", "vhost": "nope", "state": "running", "type": "quorum", "messages": 5},
        {"arguments": {"x-queue-type": "nope"}},
        {"arguments": {"x-queue-type": "quorum"}},
        {"durable": True, "arguments": {"x-queue-type": "quorum"}},
        "[]",
        "x",
        "",
        "null",
        '"{}"',
    ),
    Ask("PUT", f"{QUEUE}/m-q", {"node": "rabbit@nope"}, ONE_NODE),
    Ask("DELETE", f"{QUEUE}/m-q", differs="as before"),
    Ask("PUT", f"{QUEUE}/m-q", {"durable": True, "arguments": {"x-max-length": 5}}),
    Ask("PUT", f"{QUEUE}/m-q", {"durable": True, "arguments": {"x-max-length": 5}}),
    Ask("PUT", f"{QUEUE}/m-q", {"durable": False}),
    Ask("PUT", f"{QUEUE}/m-q", {"durable": True}, WIDTH),
    Ask("PUT", f"{QUEUE}/m-q", {"durable": True, "auto_delete": True}),
    Ask("PUT", f"{QUEUE}/m-q", {"durable": True, "arguments": {"x-max-length": 6}}),
    Ask("PUT", f"{QUEUE}/amq.m", {}),
    Ask("PUT", f"{QUEUE}/%0Am-line%0D", {}),
    Ask("GET", f"{QUEUE}/m-line?disable_stats=true&columns=name"),
    Ask("DELETE", f"{QUEUE}/m-line"),
    Ask("PUT", f"{QUEUE}/{'x' * 256}", {}),
    Ask("PUT", "/api/queues/nope/q", {}),
    Ask("GET", "/api/queues/nope"),
    Ask("GET", "/api/queues/nope/q"),
    Ask("GET", f"{QUEUE}/nope"),
    Ask("DELETE", f"{QUEUE}/nope"),
    Ask("DELETE", f"{QUEUE}/nope?if-empty=true"),
    Ask("DELETE", "/api/queues/nope/q"),
    Ask("POST", PUBLISH, {**MESSAGE, "routing_key": "m-q"}),
    Ask("DELETE", f"{QUEUE}/m-q?if-empty=true"),
    Ask("DELETE", f"{QUEUE}/m-q/contents"),
    Ask("DELETE", f"{QUEUE}/nope/contents"),
    Ask("DELETE", f"{QUEUE}/m-q?if-empty=true&if-unused=true"),
    Ask("PUT", f"{QUEUE}/m-stream", {"durable": True, "arguments": {"x-queue-type": "stream"}}),
    Ask("DELETE", f"{QUEUE}/m-stream/contents"),
    Ask("POST", f"{QUEUE}/m-stream/get", GOT),
    Ask("DELETE", f"{QUEUE}/m-stream"),
    Ask("GET", f"{QUEUE}/nope/bindings", differs=DEFAULT_BINDING),
    Ask("PUT", f"{QUEUE}/m-q", {}),
    Ask("GET", f"{QUEUE}/m-q/bindings"),
    *posts(f"{QUEUE}/m-q/actions", {"action": "sync"}, {"action": "cancel_sync"}, {"action": "x"}, {}),
    Ask("POST", f"{QUEUE}/nope/actions", {"action": "sync"}, FAILS),
    Ask("DELETE", f"{QUEUE}/m-q"),
]
EXCHANGES = [
    *puts(
        f"{EXCHANGE}/m-x",
        {"type": "direct", "durable": True},
        {},
        {"type": "x-unheard-of"},
        {"type": ""},
        ({"type": 5}, FAILS),
        ({"type": None}, NULL),
        {"type": "fanout", "internal": "x"},
        {"type": "fanout", "internal": True, "auto_delete": True, "arguments": {"alternate-exchange": "y"}},
        ({"type": "topic", "arguments": {"alternate-exchange": 5}}, WIDTH),
        {"type": "x-consistent-hash", "arguments": {"hash-header": "a", "hash-property": "message_id"}},
        {"type": "topic", "name": "a", "vhost": "b", "foo": 1},
        "[]",
    ),
    Ask("PUT", f"{EXCHANGE}/m-x", {"type": "direct"}),
    Ask("PUT", f"{EXCHANGE}/m-x", {"type": "fanout"}),
    Ask("PUT", f"{EXCHANGE}/m-x", {"type": "direct", "durable": True}),
    Ask("PUT", f"{EXCHANGE}/m-x", {"type": "direct", "arguments": {"x": 1}}),
    Ask("PUT", f"{EXCHANGE}/amq.m", {"type": "direct"}),
    Ask("PUT", f"{EXCHANGE}/amq.direct", {"type": "direct", "durable": True}),
    Ask("PUT", f"{EXCHANGE}/amq.default", {"type": "direct", "durable": True}),
    Ask("PUT", "/api/exchanges/nope/x", {"type": "direct"}),
    *(Ask("DELETE", f"{EXCHANGE}/{name}") for name in ("amq.direct", "amq.default", "nope")),
    *(Ask("GET", f"{EXCHANGE}/{name}") for name in ("amq.default", "amq.direct", "nope", "m-x")),
    Ask("GET", "/api/exchanges/nope/x"),
    Ask("DELETE", f"{EXCHANGE}/m-x"),
]
BINDINGS = [
    Ask("PUT", f"{QUEUE}/m-q", {}),
    *(
        Ask("PUT", f"{EXCHANGE}/m-{name}", {"type": type_})
        for name, type_ in (("x", "direct"), ("y", "fanout"), ("h", "headers"), ("c", "x-consistent-hash"))
    ),
    *posts(
        f"{BINDING}/m-x/q/m-q",
        {},
        {"routing_key": "k"},
        {"routing_key": "k"},
        {"routing_key": "a/b ~c%é+"},
        {"routing_key": "~"},
        ({"routing_key": 5}, NOT_TEXT),
        ({"routing_key": None}, NULL),
        ({"arguments": 5}, FAILS),
        ("[]", FAILS),
        {"routing_key": "z", "destination": "o", "source": "s", "vhost": "v", "destination_type": "queue"},
    ),
    Ask("POST", f"{BINDING}/m-x/e/m-y", {"routing_key": "e"}),
    Ask("POST", f"{BINDING}/m-h/q/m-q", {"arguments": {"x-match": "no"}}),
    Ask("POST", f"{BINDING}/m-c/q/m-q", {"routing_key": "x"}),
    Ask("POST", f"{BINDING}/nope/q/m-q", {}),
    Ask("POST", f"{BINDING}/m-x/q/nope", {}),
    Ask("POST", f"{BINDING}/m-x/e/nope", {}),
    Ask("POST", f"{BINDING}/amq.default/q/m-q", {"routing_key": "k"}),
    Ask("POST", f"{BINDING}/m-x/e/amq.default", {}),
    Ask("POST", "/api/bindings/nope/e/m-x/q/m-q", {}),
    *(
        Ask("GET", f"{BINDING}/{path}")
        for path in (
            *("m-x/e/m-y", "amq.default/q/m-q", "m-x/q/nope", "nope/q/m-q", "nope/e/nope", "m-x/q/m-q/k"),
            *(
                "m-x/q/m-q/~",
                "m-x/q/m-q/nope",
                "m-x/q/m-q/k~nope",
                "m-x/q/m-q/a%252Fb%2B%257Ec%2525%25C3%25A9%252B",
            ),
            *("m-x/q/m-q/%257E", "amq.default/q/m-q/m-q", "nope/q/m-q/k", "m-x/q/nope/k", "m-x/q/m-q/a%2Fb"),
        )
    ),
    Ask("GET", f"{EXCHANGE}/m-y/bindings/destination"),
    Ask("GET", f"{EXCHANGE}/nope/bindings/source"),
    Ask("GET", f"{EXCHANGE}/nope/bindings/destination"),
    Ask("GET", "/api/bindings/nope"),
    Ask("DELETE", f"{BINDING}/amq.default/q/m-q/m-q"),
    Ask("DELETE", f"{BINDING}/m-x/q/m-q/nope"),
    Ask("DELETE", f"{BINDING}/m-x/q/m-q/k"),
    Ask("DELETE", f"{BINDING}/m-x/q/m-q/k"),
    Ask("DELETE", f"{EXCHANGE}/m-x?if-unused=true"),
    *(Ask("DELETE", f"{EXCHANGE}/m-{name}") for name in "xyhc"),
    Ask("DELETE", f"{QUEUE}/m-q"),
]
MESSAGES = [
    Ask("PUT", f"{QUEUE}/m-got", {}),
    *posts(
        PUBLISH,
        MESSAGE,
        {**MESSAGE, "routing_key": "nope"},
        {**MESSAGE, "payload": "aGk=", "payload_encoding": "base64"},
        {**MESSAGE, "payload": "!!", "payload_encoding": "base64"},
        {**MESSAGE, "payload_encoding": "x"},
        {**MESSAGE, "payload": 5},
        {**MESSAGE, "payload": None},
        {**MESSAGE, "payload": "é"},
        ({**MESSAGE, "routing_key": 5}, NOT_TEXT),
        ({**MESSAGE, "routing_key": "x" * 256}, TOO_LARGE),
        ({**MESSAGE, "properties": "x"}, FAILS),
        {**MESSAGE, "name": "x", "vhost": "/", "delivery_mode": "2", "headers": {}, "props": {}},
        *({name: value for name, value in MESSAGE.items() if name != missing} for missing in MESSAGE),
        {},
        "[]",
        *(
            {**MESSAGE, "properties": properties}
            for properties in (
                {"delivery_mode": 2},
                {"delivery_mode": "2"},
                {"delivery_mode": 300},
                {"delivery_mode": True},
                {"priority": "x"},
                {"timestamp": 1700000000},
                {"timestamp": "x"},
                {"expiration": "100000"},
                {"expiration": 1000},
                {"expiration": "x"},
                {"headers": {"a": 1, "b": "x", "c": [1], "f": 1.5, "t": True, "big": 1 << 40}},
                {"headers": {"a": None}},
                {"headers": {"CC": ["m-got"]}},
                {"headers": {"CC": "m-got"}},
                {
                    "content_type": "text/plain",
                    "message_id": "m",
                    "reply_to": "r",
                    "type": "t",
                    "app_id": "a",
                },
                {"content_type": 5},
                {"user_id": "guest"},
                {"user_id": "other"},
                {"unknown": 1},
            )
        ),
    ),
    Ask("POST", f"{EXCHANGE}/nope/publish", MESSAGE),
    Ask("POST", "/api/exchanges/nope/x/publish", MESSAGE),
    Ask("POST", f"{EXCHANGE}/amq.rabbitmq.trace/publish", MESSAGE),
    Ask("POST", GET, {**GOT, "ackmode": "reject_requeue_true"}),
    *posts(
        GET,
        {**GOT, "ackmode": "ack_requeue_false", "count": 2},
        {**GOT, "encoding": "base64"},
        {**GOT, "encoding": "x"},
        {**GOT, "count": 0},
        {**GOT, "count": "1", "truncate": "2"},
        {**GOT, "count": "x"},
        {**GOT, "count": None},
        {**GOT, "truncate": 0},
        ({**GOT, "truncate": -1}, FAILS),
        ({**GOT, "ackmode": "x"}, FAILS),
        {**GOT, "name": "m-got", "vhost": "/", "requeue": True},
        *({name: value for name, value in GOT.items() if name != missing} for missing in GOT),
        "[]",
        {**GOT, "ackmode": "ack_requeue_false", "count": -1},
        GOT,
    ),
    *posts(
        PUBLISH,
        ({**MESSAGE, "properties": {"priority": 256}}, TOO_LARGE),
        ({**MESSAGE, "properties": {"headers": {"a": 1 << 70}}}, TOO_LARGE),
        ({**MESSAGE, "properties": {"headers": "x"}}, FAILS),
    ),
    Ask("POST", f"{QUEUE}/nope/get", GOT),
    Ask("POST", "/api/queues/nope/q/get", GOT),
    Ask("DELETE", f"{QUEUE}/m-got"),
]

ERLANG = "a figure of Erlang's processes and of RabbitMQ's file format"
IN_MEMORY = "Leveret keeps no message in memory alone, and reads messages from files when they are needed"
NOT_MEASURED = "would cost time for every delivery"
NOT_STORED = "Leveret does not store who declared an exchange"
ONE_ONLY = "adding up all messages of all queues takes too long; shown for one queue"

OF_QUEUES = {
    "backing_queue_status": ERLANG,
    "garbage_collection": ERLANG,
    "reductions": ERLANG,
    "reductions_details": ERLANG,
    "recoverable_slaves": ERLANG,
    "message_bytes_paged_out": IN_MEMORY,
    "message_bytes_ram": IN_MEMORY,
    "messages_paged_out": IN_MEMORY,
    "messages_ram": IN_MEMORY,
    "messages_ready_ram": IN_MEMORY,
    "messages_unacknowledged_ram": IN_MEMORY,
    "consumer_capacity": NOT_MEASURED,
    "consumer_utilisation": NOT_MEASURED,
    "idle_since": NOT_MEASURED,
}
MISSING: dict[str, dict[str, str]] = {
    f"{QUEUE}/m-busy": OF_QUEUES,
    QUEUE: {
        **OF_QUEUES,
        "head_message_timestamp": ONE_ONLY,
        "message_bytes": ONE_ONLY,
        "message_bytes_persistent": ONE_ONLY,
        "message_bytes_ready": ONE_ONLY,
        "message_bytes_unacknowledged": ONE_ONLY,
        "messages_persistent": ONE_ONLY,
    },
    f"{EXCHANGE}/m-source": {"user_who_performed_action": NOT_STORED},
    EXCHANGE: {"user_who_performed_action": NOT_STORED},
    f"{QUEUE}/m-busy/bindings": {},
    "/api/bindings/{vhost}": {},
}
"""By path: the names in RabbitMQ's JSON that Leveret's lacks, with the reason."""


@pytest.mark.parametrize("asks", [LISTS, QUEUES, EXCHANGES, BINDINGS, MESSAGES], ids="LQEBM")
def test_requests_are_answered_alike(
    asks: list[Ask], leveret_management: Management, rabbitmq_management: Management
) -> None:
    differing, alike = [], []
    for ask in asks:
        ours = leveret_management.ask(ask.method, ask.path, ask.body)
        theirs = rabbitmq_management.ask(ask.method, ask.path, ask.body)
        if _told(ours) != _told(theirs) and not ask.differs:
            differing.append((str(ask), _told(ours), _told(theirs)))
        if _told(ours) == _told(theirs) and ask.differs not in ("", "as before"):
            alike.append((str(ask), ask.differs))
    assert not differing
    assert not alike


def _told(answer: Answer) -> Any:
    """What must be the same: of lists their length, and of pages all but the rows."""
    content: Any = answer.content
    if isinstance(content, list):
        content = len(content)
    elif isinstance(content, dict) and answer.status < 300:
        content = {
            name: value for name, value in content.items() if name in ("routed", "properties_key", "name")
        }
        pages = ("filtered_count", "item_count", "page", "page_count", "page_size", "total_count")
        content |= {name: answer.content[name] for name in pages if name in answer.content}
    else:
        content = answer.refusal
    return answer.status, answer.location, content


def test_every_name_in_the_json_of_rabbitmq_is_there_or_is_explained(
    leveret_management: Management, rabbitmq_management: Management
) -> None:
    brokers = (leveret_management, rabbitmq_management)
    connections = [_busy(broker) for broker in brokers]
    try:
        for broker in brokers:
            wait_until(partial(_has_statistics, broker), "the statistics were collected")
        busy = partial(rabbitmq_management.ask, "GET", f"{QUEUE}/m-busy")
        wait_until(lambda: OF_QUEUES.keys() <= busy().names, "RabbitMQ has looked at the queue")
        for path, missing in MISSING.items():
            ours, theirs = (broker.ask("GET", path).names for broker in brokers)
            lacking = {name for name in theirs - ours if "." not in name or name.rpartition(".")[0] in ours}
            assert lacking == missing.keys(), path
    finally:
        for connection in connections:
            connection.channel().queue_delete("m-busy")
            connection.channel().exchange_delete("m-source")
            connection.close()


def _busy(broker: Management) -> pika.BlockingConnection:
    """Bring a queue and an exchange into a state in which all statistics are shown."""
    place = pika.ConnectionParameters("127.0.0.1", broker.port, broker.vhost, heartbeat=0)
    connection = pika.BlockingConnection(place)
    channel = connection.channel()
    channel.exchange_declare("m-source", "topic", durable=True)
    channel.queue_declare("m-busy", durable=True, arguments={"x-max-length": 100})
    channel.queue_bind("m-busy", "m-source", "#", {"number": 1})
    channel.confirm_delivery()
    for _ in range(5):
        channel.basic_publish("m-source", "a.b", b"hello", pika.BasicProperties(delivery_mode=2, timestamp=9))
    channel.basic_get("m-busy")
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume("m-busy", lambda *_: None, consumer_tag="consumer")
    return connection


def _has_statistics(broker: Management) -> bool:
    queue = broker.ask("GET", f"{QUEUE}/m-busy").names
    exchange = broker.ask("GET", f"{EXCHANGE}/m-source").names
    wanted = {
        "message_stats.get",
        "message_stats.publish",
        "messages_details",
        "consumer_details.consumer_tag",
    }
    return wanted <= queue and "message_stats.publish_in" in exchange
