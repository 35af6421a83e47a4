"""The flow diagram: no message is left out, no node overlaps another, and large diagrams stay readable."""

from collections import Counter
from itertools import pairwise

from leveret.audit import diagram
from leveret.audit.diagram import NODES_MAX, Drawing
from leveret.audit.wording import Names
from tests.audit import examples


def links(findings):
    return diagram.links_of(findings.flows, Names(findings))


def test_flows_between_two_nodes_are_one_link():
    flow = examples.flow("exchange", "in", "queue", "orders", 5)
    merged = links(examples.empty(flows=[flow, flow]))
    assert list(merged.values()) == [10]


def test_flows_to_an_earlier_column_are_left_out():
    assert links(examples.empty(flows=[examples.flow("queue", "orders", "exchange", "dead", 5)])) == {}


def test_a_column_has_few_nodes_and_merges_the_others():
    whole = links(examples.many(things=60))
    few = diagram.merged(whole)
    nodes = {node for link in few for node in (link.source, link.target)}
    columns = Counter(node.column for node in nodes)
    assert set(columns.values()) == {NODES_MAX}
    assert sum(few.values()) == sum(whole.values())
    others = {node.name for node in nodes if node.role == "others"}
    assert others == {"49 other exchanges", "49 other queues", "49 other consumers"}


def test_a_link_that_passes_a_column_has_a_lane_there():
    split = diagram.with_lanes(links(examples.well()))
    columns = sorted({node.column for link in split for node in (link.source, link.target)})
    following = set(pairwise(columns))
    assert {(link.source.column, link.target.column) for link in split} <= following
    returned = [link for link in split if link.target.name == "returned"]
    assert [split[link] for link in returned] == [12_500] * 4


def test_nodes_of_a_column_do_not_overlap():
    for findings in (examples.well(), examples.many(things=60), examples.nasty()):
        drawing = Drawing(diagram.with_lanes(diagram.merged(links(findings))))
        for column in drawing.columns:
            places = sorted(
                (place.y, place.y + place.height)
                for node, place in drawing.places.items()
                if node.column == column
            )
            for above, below in pairwise(places):
                assert above[1] < below[0]


def test_nodes_are_near_their_sources_and_merged_nodes_come_last():
    flows = [
        examples.flow("exchange", "large", "queue", "fed by the large", 5),
        examples.flow("exchange", "large", "queue", "z", 95),
        examples.flow("exchange", "small", "queue", "a", 50),
    ]
    drawing = Drawing(links(examples.empty(flows=flows[::-1])))
    assert [node.name for node in drawing.places] == ["large", "small", "z", "fed by the large", "a"]
    crowded = Drawing(diagram.merged(links(examples.many())))
    assert {node.role for node in list(crowded.places)[:11]} == {"thing"}
    assert list(crowded.places)[11].role == "others"


def test_the_more_messages_the_wider_a_link():
    drawing = Drawing(links(examples.well()))
    by_count = sorted(drawing.links, key=drawing.links.__getitem__)
    wide = [drawing.thickness(link) for link in by_count]
    assert wide == sorted(wide)
    assert wide[0] >= 1


def test_a_broker_without_flows_has_an_empty_drawing():
    drawing = diagram.flows(examples.empty())
    assert (list(drawing.outlines()), drawing.headings) == ([], [])
