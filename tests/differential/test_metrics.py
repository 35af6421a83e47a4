"""Metrics that RabbitMQ has under the same name: their type, their help and their labels are RabbitMQ's."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

import pika
import pytest

from leveret.fronts.http.metric_tables import FAMILIES, OF_EXCHANGES, OF_NODE
from leveret.fronts.http.metrics import create_metrics_app
from leveret.fronts.http.node_facts import NodeFacts
from leveret.server.http import HttpListener
from leveret.testing.broker import WAIT_S, Broker
from tests.processes import wait_until
from tests.rabbitmq.node import RabbitMQ

pytestmark = pytest.mark.needs_rabbitmq

OTHERS = ("vhost_status", "connection_churn_metrics", "auth_attempt_metrics")
NAMES = (*FAMILIES, *OF_EXCHANGES, *OF_NODE, *OTHERS)
DETAILED = "/metrics/detailed?" + "&".join(f"family={name}" for name in NAMES)
LATER = re.compile(r"rabbitmq_(detailed_)?queue_(get_|messages_(delivered|redelivered|acked)_).*total$")
"""Metrics of queues that RabbitMQ has in later versions only."""
LESS = {
    "rabbitmq_build_info": {"erlang_version"},
    "rabbitmq_identity_info": {"rabbitmq_cluster_permanent_id"},
    "rabbitmq_channel_messages": {"exchange", "queue"},
    "rabbitmq_channel_get": {"queue"},
    "rabbitmq_queue_messages_published_total": {"channel", "exchange", "exchange_vhost"},
}
"""Labels that RabbitMQ has and Leveret has not, by the beginning of a metric's name: see decision 61."""


class Described(NamedTuple):
    kind: str
    help: str
    labels: frozenset[str]


NOTHING = Described("", "", frozenset())


@pytest.fixture(scope="module")
def leveret_url() -> Iterator[str]:
    with Broker() as broker, closing(used(broker.url)):
        app = create_metrics_app(broker.server.broker, node=NodeFacts)
        listener = HttpListener(app, "127.0.0.1", 0)
        broker.run(listener.start())
        yield listener.url
        broker.run(listener.stop())


@pytest.fixture(scope="module")
def rabbitmq_url(rabbitmq: RabbitMQ) -> Iterator[str]:
    with closing(used(rabbitmq.url)):
        url = f"http://127.0.0.1:{rabbitmq.metrics_port}"
        # A channel tells its figures at most every 5 s.
        counted = "rabbitmq_channel_get_ack_total"
        wait_until(
            lambda: described(f"{url}/metrics/per-object").get(counted, NOTHING).labels, "the get is counted"
        )
        yield url


def used(url: str) -> pika.BlockingConnection:
    """Return a connection that has published and consumed, so that all kinds of objects have figures."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.queue_declare("metrics", exclusive=True)
    channel.basic_publish("", "metrics", b"x")
    channel.basic_get("metrics")
    return connection


def described(url: str) -> dict[str, Described]:
    """Return what a page says about its metrics. It is not parsed: RabbitMQ escapes no names."""
    with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
        text = answer.read().decode(errors="replace")
    labels: dict[str, frozenset[str]] = {}
    for name, inside in re.findall(r"^(\w+)\{(.*)\} \S+$", text, re.MULTILINE):
        labels[name] = frozenset(re.findall(r'(?:^|,)(\w+)="', inside))
    helps = dict(re.findall(r"^# HELP (\w+) (.*)$", text, re.MULTILINE))
    return {
        name: Described(kind, helps[name], labels.get(name, frozenset()))
        for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE)
    }


@pytest.mark.parametrize(
    "path", ["/metrics", "/metrics/per-object", DETAILED], ids=["sum", "single", "detail"]
)
def test_a_metric_with_rabbitmqs_name_is_described_as_there(leveret_url, rabbitmq_url, path):
    ours, theirs = described(leveret_url + path), described(rabbitmq_url + path)
    shared = {name for name in ours if name.startswith("rabbitmq_") and not LATER.match(name)}
    assert shared - theirs.keys() == set()
    for name in shared:
        mine, other = ours[name], theirs[name]
        assert (mine.kind, mine.help) == (other.kind, other.help), name
        less = [gone for start, gone in LESS.items() if name.replace("detailed_", "").startswith(start)]
        if mine.labels and other.labels:
            assert mine.labels == other.labels.difference(*less), name
