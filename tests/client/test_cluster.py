"""Publishers on a real RabbitMQ cluster whose nodes are killed: what was confirmed is there at the end.

A confirm of a quorum queue means that a majority has the message, one of a mirrored queue that all mirrors
have it. So a follower may die, and then the node that leads, and nothing confirmed is lost. All queues go
through one upheaval together, each with a publisher of its own: on the node that survives, or on each node
until it dies.
"""

from collections.abc import Iterator

import pytest

from leveret.client.receipt import Status
from tests.client.accounts import drained
from tests.client.load import Load, publish_during
from tests.rabbitmq.cluster import MIRRORED_PREFIX, Cluster, Node, running_cluster

pytestmark = [pytest.mark.full, pytest.mark.needs_rabbitmq, pytest.mark.timeout(900)]

STAYING = {"quorum": "orders.staying", "mirrored": f"{MIRRORED_PREFIX}orders.staying"}
FLEEING = {"quorum": "orders.fleeing", "mirrored": f"{MIRRORED_PREFIX}orders.fleeing"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as running:
        yield running


@pytest.fixture(scope="module")
def loads(cluster: Cluster) -> dict[str, Load]:
    """By queue: what was published while first a follower died, and then the node that leads them all."""
    leader, follower, survivor = cluster.nodes
    loads = {
        **{name: Load([survivor.url], name) for name in STAYING.values()},
        **{name: Load([follower.url, leader.url, survivor.url], name) for name in FLEEING.values()},
    }
    for queues in (STAYING, FLEEING):
        cluster.declare_quorum_queue(queues["quorum"], on=leader)
        cluster.declare_mirrored_queue(queues["mirrored"], on=leader)
    publish_during(lambda: upheaval(cluster, [follower, leader], loads), *loads.values())
    return loads


def upheaval(cluster: Cluster, victims: list[Node], loads: dict[str, Load]) -> None:
    """One node after another dies and comes back; what it missed is made up before the next one dies."""
    for victim in victims:
        victim.kill()
        for load in loads.values():
            load.goes_on()
        victim.start()
        cluster.wait_until_in_step(*loads)
        for load in loads.values():
            load.goes_on()


def test_three_nodes_are_one_cluster(cluster):
    status = cluster.nodes[0].rabbitmqctl("cluster_status", "--formatter", "json")
    assert all(node.name in status.partition('"running_nodes"')[2] for node in cluster.nodes)


@pytest.mark.parametrize("queue", [*STAYING.values(), *FLEEING.values()])
def test_another_node_leads_after_the_leader_died(cluster, loads, queue):
    assert cluster.leader_of(queue) is not cluster.nodes[0]


@pytest.mark.parametrize("kind", STAYING)
def test_a_publisher_on_a_node_that_survives_stays_connected_and_its_receipts_are_true(cluster, loads, kind):
    load = loads[STAYING[kind]]
    assert load.connections == 1
    assert load.books.wrong(drained(cluster.nodes[0].url, load.queue)) == []
    assert load.books.count(Status.CONFIRMED) == len(load.books.entries)


@pytest.mark.parametrize("kind", FLEEING)
def test_a_publisher_whose_nodes_die_flees_to_the_next_and_its_receipts_are_true(cluster, loads, kind):
    load = loads[FLEEING[kind]]
    assert load.connections == 3
    assert load.books.wrong(drained(cluster.nodes[0].url, load.queue)) == []
