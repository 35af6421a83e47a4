"""Geometry of the flow diagram: exchanges, queues, groups, consumers and outcomes, from left to right.

This module chooses which nodes are shown and computes where nodes and links are. `templates/elements.html`
draws them, and the style sheet colours them. A column shows at most `NODES_MAX` nodes and merges the others
into one. A link that passes a column gets a lane of its own width there, so it hides behind no other node.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from leveret.audit.findings import Findings, Flow
from leveret.audit.wording import Names, Tone, tone

NODES_MAX: Final = 12
_KINDS: Final = ("exchange", "queue", "group", "consumer", "ended")
_HEADINGS: Final = ("Exchanges", "Queues", "Groups", "Consumers", "Ended as")
_PLURALS: Final = ("exchanges", "queues", "groups", "consumers", "ends")
_WIDTH, _NODE_WIDTH, _LABEL_WIDTH = 1080.0, 9.0, 210.0
_TOP, _BOTTOM_MARGIN = 30.0, 6.0
_COLUMN_HEIGHT: Final = 260.0
"""Height of the links of the column with most messages."""
_NODE_GAP, _LABEL_DISTANCE = 10.0, 19.0
_LINK_THICKNESS_MIN: Final = 1.0


class Node(NamedTuple):
    """A thing in a column."""

    column: int
    name: str
    role: Literal["thing", "others", "lane"] = "thing"
    """A lane holds only links, which lead to the node of this name in a later column."""


class Link(NamedTuple):
    source: Node
    target: Node
    tone: Tone


@dataclass(slots=True)
class Place:
    """The place of a node, and how much of its two sides links already occupy."""

    y: float
    height: float
    taken_left: float = 0.0
    taken_right: float = 0.0


class Drawing:
    """Links, and the places of the nodes that they connect."""

    width, node_width, label_length = _WIDTH, _NODE_WIDTH, 20

    def __init__(self, links: Mapping[Link, int]) -> None:
        self.links = links
        self.places: dict[Node, Place] = {}
        self._into: dict[Node, list[Link]] = defaultdict(list)
        self._out_of: dict[Node, list[Link]] = defaultdict(list)
        for link in links:
            self._into[link.target].append(link)
            self._out_of[link.source].append(link)
        nodes = {node: self.messages(node) for link in links for node in (link.source, link.target)}
        totals: Counter[int] = Counter()
        for node, count in nodes.items():
            totals[node.column] += count
        self._scale = _COLUMN_HEIGHT / max(1, *totals.values(), 1)
        self.columns = sorted(totals)
        for column in self.columns:
            self._place_column([node for node in nodes if node.column == column])

    @property
    def height(self) -> float:
        ends = (place.y + max(place.height, _LABEL_DISTANCE) for place in self.places.values())
        return max(ends, default=_TOP) + _BOTTOM_MARGIN

    @property
    def headings(self) -> list[tuple[float, str]]:
        return [(self.left(column), _HEADINGS[column]) for column in self.columns]

    def left(self, column: int) -> float:
        return self.columns.index(column) * (_WIDTH - _LABEL_WIDTH) / max(1, len(self.columns) - 1)

    def messages(self, node: Node) -> int:
        return max(sum(self.links[link] for link in side) for side in self._sides(node))

    def thickness(self, link: Link) -> float:
        return max(_LINK_THICKNESS_MIN, self.links[link] * self._scale)

    def outlines(self) -> Iterator[tuple[Link, str]]:
        """Yield each link with its outline, the `d` of an SVG path.

        Call it once: each link occupies a part of its nodes' sides.
        """
        places = self.places
        for link in sorted(self.links, key=lambda link: (places[link.source].y, places[link.target].y)):
            yield link, self._outline(link)

    def tone(self, lane: Node) -> Tone:
        return self._into[lane][0].tone

    def _sides(self, node: Node) -> tuple[Sequence[Link], Sequence[Link]]:
        return self._into.get(node, ()), self._out_of.get(node, ())

    def _place_column(self, nodes: Sequence[Node]) -> None:
        y = _TOP
        for node in sorted(nodes, key=self._order):
            height = max(sum(map(self.thickness, side)) for side in self._sides(node))
            self.places[node] = Place(y, height)
            y += height + max(_NODE_GAP, 0.0 if node.role == "lane" else _LABEL_DISTANCE - height)

    def _order(self, node: Node) -> tuple[bool, int, int, str]:
        """Sort nodes by where their messages come from, so that few links cross; merged nodes come last."""
        sources = [(self.places[link.source], self.links[link]) for link in self._into.get(node, ())]
        weight = sum(count for _, count in sources)
        middle = sum((place.y + place.height / 2) * count for place, count in sources) / max(1, weight)
        return node.role == "others", round(middle), -self.messages(node), node.name

    def _outline(self, link: Link) -> str:
        thickness = self.thickness(link)
        source, target = self.places[link.source], self.places[link.target]
        begin, end = self.left(link.source.column) + _NODE_WIDTH, self.left(link.target.column)
        left, right = source.y + source.taken_right, target.y + target.taken_left
        source.taken_right += thickness
        target.taken_left += thickness
        middle = (begin + end) / 2
        return (
            f"M{begin:.1f} {left:.1f}C{middle:.1f} {left:.1f} {middle:.1f} {right:.1f} {end:.1f} {right:.1f}"
            f"V{right + thickness:.1f}C{middle:.1f} {right + thickness:.1f} "
            f"{middle:.1f} {left + thickness:.1f} {begin:.1f} {left + thickness:.1f}Z"
        )


def flows(findings: Findings) -> Drawing:
    """Return the diagram of all flows; the caller shows its figures as a table too."""
    return Drawing(with_lanes(merged(links_of(findings.flows, Names(findings)))))


def links_of(flows: Sequence[Flow], names: Names) -> dict[Link, int]:
    """Return the links that lead to a later column, with their messages."""
    links: Counter[Link] = Counter()
    for flow in flows:
        begin, end = _column(flow.from_kind), _column(flow.to_kind)
        if begin < end and flow.messages > 0:
            source = Node(begin, names.end(flow.vhost, flow.from_kind, flow.from_name))
            target = Node(end, names.end(flow.vhost, flow.to_kind, flow.to_name))
            links[Link(source, target, _tone_of(flow))] += flow.messages
    return dict(links)


def _column(kind: str) -> int:
    return _KINDS.index("ended" if kind == "returned" else kind)


def _tone_of(flow: Flow) -> Tone:
    return tone({"ended": flow.to_name, "returned": "returned"}.get(flow.to_kind, ""))


def merged(links: Mapping[Link, int]) -> dict[Link, int]:
    """Keep the largest nodes of each column and merge the others of the column into one."""
    weights: dict[int, Counter[Node]] = defaultdict(Counter)
    for link, count in links.items():
        for node in (link.source, link.target):
            weights[node.column][node] += count
    others: dict[Node, Node] = {}
    for column, counts in weights.items():
        if len(counts) > NODES_MAX:
            rest = [node for node, _ in counts.most_common()][NODES_MAX - 1 :]
            others |= dict.fromkeys(rest, Node(column, f"{len(rest):,} other {_PLURALS[column]}", "others"))
    merged_links: Counter[Link] = Counter()
    for link, count in links.items():
        source, target = others.get(link.source, link.source), others.get(link.target, link.target)
        merged_links[Link(source, target, link.tone)] += count
    return dict(merged_links)


def with_lanes(links: Mapping[Link, int]) -> dict[Link, int]:
    """Split each link that passes columns into links from one column to the next, over lanes."""
    columns = {node.column for link in links for node in (link.source, link.target)}
    split: Counter[Link] = Counter()
    for (source, target, link_tone), count in links.items():
        for column in sorted(columns & set(range(source.column + 1, target.column))):
            lane = Node(column, target.name, "lane")
            split[Link(source, lane, link_tone)] += count
            source = lane
        split[Link(source, target, link_tone)] += count
    return dict(split)
