"""The flow of messages as a drawing: exchanges, queues, groups, consumers and ends, from left to right.

Owns which things are shown and where they stand; names are `wording`'s, colours the style sheet's. A column
has at most `MOST_NODES` things, the others are put together as one. A link that passes a column takes up its
room there (a lane), so that no link runs behind a thing it has nothing to do with.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from leveret.audit.findings import Findings, Flow
from leveret.audit.markup import Safe, tag
from leveret.audit.wording import Names, Tone, shortened, tone

MOST_NODES: Final = 12
_KINDS: Final = ("exchange", "queue", "group", "consumer", "ended")
_HEADINGS: Final = ("Exchanges", "Queues", "Groups", "Consumers", "Ended as")
_PLURALS: Final = ("exchanges", "queues", "groups", "consumers", "ends")
_WIDTH, _NODE_WIDTH, _LABEL_WIDTH = 1080.0, 9.0, 210.0
_TOP, _THICKEST = 30.0, 260.0
_GAP, _PITCH = 10.0, 19.0
"""Between things; from one label to the next."""
_THINNEST: Final = 1.0
_LABEL_LENGTH: Final = 20


class Node(NamedTuple):
    """A thing in a column."""

    column: int
    name: str
    role: Literal["thing", "others", "lane"] = "thing"
    """In a lane only links run, to the thing of that name in a later column."""


class Link(NamedTuple):
    source: Node
    target: Node
    tone: Tone


@dataclass(slots=True)
class Place:
    """Where a thing stands, and how much of its sides is taken by links already."""

    y: float
    height: float
    taken_left: float = 0.0
    taken_right: float = 0.0


class Drawing:
    """Links, and the places of the things they join."""

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
        self._scale = _THICKEST / max(1, *totals.values(), 1)
        self.columns = sorted(totals)
        for column in self.columns:
            self._settle([node for node in nodes if node.column == column])

    @property
    def height(self) -> float:
        return max((each.y + max(each.height, _PITCH) for each in self.places.values()), default=_TOP)

    def left(self, column: int) -> float:
        return self.columns.index(column) * (_WIDTH - _LABEL_WIDTH) / max(1, len(self.columns) - 1)

    def messages(self, node: Node) -> int:
        sides = (self._into.get(node, ()), self._out_of.get(node, ()))
        return max(sum(self.links[link] for link in side) for side in sides)

    def thickness(self, link: Link) -> float:
        return max(_THINNEST, self.links[link] * self._scale)

    def reading_order(self, link: Link) -> tuple[float, float]:
        return self.places[link.source].y, self.places[link.target].y

    def _settle(self, nodes: Sequence[Node]) -> None:
        y = _TOP
        for node in sorted(nodes, key=self._order):
            sides = (self._into.get(node, ()), self._out_of.get(node, ()))
            height = max(sum(map(self.thickness, side)) for side in sides)
            self.places[node] = Place(y, height)
            y += height + max(_GAP, 0.0 if node.role == "lane" else _PITCH - height)

    def _order(self, node: Node) -> tuple[bool, int, int, str]:
        """Things stand where their messages come from, so that few links cross; the many others come last."""
        sources = [(self.places[link.source], self.links[link]) for link in self._into.get(node, ())]
        weight = sum(count for _, count in sources)
        middle = sum((place.y + place.height / 2) * count for place, count in sources) / max(1, weight)
        return node.role == "others", round(middle), -self.messages(node), node.name


def flows(findings: Findings) -> Safe:
    """The drawing; its figures are for the caller to give in words as well."""
    drawing = Drawing(with_lanes(fewer(links_of(findings.flows, Names(findings)))))
    about = "From exchanges to queues, their readers, and how messages ended: the wider, the more messages."
    return tag(
        "svg",
        tag("title", "The flow of messages"),
        tag("desc", about),
        *(
            tag("text", _HEADINGS[each], x=drawing.left(each), y=12, class_="heading")
            for each in drawing.columns
        ),
        *(_curve(drawing, link) for link in sorted(drawing.links, key=drawing.reading_order)),
        *(shape for node in drawing.places for shape in _box(drawing, node)),
        viewBox=f"0 0 {_WIDTH:.0f} {drawing.height + 6:.0f}",
        class_="flows",
        role="img",
    )


def links_of(found: Sequence[Flow], names: Names) -> dict[Link, int]:
    """What leads from a kind to a later one."""
    links: Counter[Link] = Counter()
    for flow in found:
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


def fewer(links: Mapping[Link, int]) -> dict[Link, int]:
    """The largest of each column; the rest is put together."""
    weights: dict[int, Counter[Node]] = defaultdict(Counter)
    for link, count in links.items():
        for node in (link.source, link.target):
            weights[node.column][node] += count
    merged: dict[Node, Node] = {}
    for column, counted in weights.items():
        if len(counted) > MOST_NODES:
            rest = [node for node, _ in counted.most_common()][MOST_NODES - 1 :]
            merged |= dict.fromkeys(rest, Node(column, f"{len(rest):,} other {_PLURALS[column]}", "others"))
    found: Counter[Link] = Counter()
    for link, count in links.items():
        source, target = merged.get(link.source, link.source), merged.get(link.target, link.target)
        found[Link(source, target, link.tone)] += count
    return dict(found)


def with_lanes(links: Mapping[Link, int]) -> dict[Link, int]:
    """Links that lead from each column to the next only."""
    columns = {node.column for link in links for node in (link.source, link.target)}
    found: Counter[Link] = Counter()
    for (source, target, its_tone), count in links.items():
        for column in sorted(columns & set(range(source.column + 1, target.column))):
            lane = Node(column, target.name, "lane")
            found[Link(source, lane, its_tone)] += count
            source = lane
        found[Link(source, target, its_tone)] += count
    return dict(found)


# shapes


def _curve(drawing: Drawing, link: Link) -> Safe:
    thickness = drawing.thickness(link)
    source, target = drawing.places[link.source], drawing.places[link.target]
    begin, end = drawing.left(link.source.column) + _NODE_WIDTH, drawing.left(link.target.column)
    left, right = source.y + source.taken_right, target.y + target.taken_left
    source.taken_right += thickness
    target.taken_left += thickness
    middle = (begin + end) / 2
    outline = (
        f"M{begin:.1f} {left:.1f}C{middle:.1f} {left:.1f} {middle:.1f} {right:.1f} {end:.1f} {right:.1f}"
        f"V{right + thickness:.1f}C{middle:.1f} {right + thickness:.1f} {middle:.1f} {left + thickness:.1f} "
        f"{begin:.1f} {left + thickness:.1f}Z"
    )
    about = f"{link.source.name} to {link.target.name}: {drawing.links[link]:,}"
    return tag("path", tag("title", about), d=outline, class_=f"link {link.tone}")


def _box(drawing: Drawing, node: Node) -> Iterator[Safe]:
    place, x = drawing.places[node], drawing.left(node.column)
    if node.role == "lane":
        its_tone = next(link.tone for link in drawing.links if link.target == node)
        yield tag("rect", x=x, y=place.y, width=_NODE_WIDTH, height=place.height, class_=f"link {its_tone}")
        return
    about, count = tag("title", node.name), f"{drawing.messages(node):,}"
    yield tag("rect", x=x, y=place.y, width=_NODE_WIDTH, height=max(2, place.height), class_="node")
    label = tag("tspan", shortened(node.name, _LABEL_LENGTH), class_="name")
    y = place.y + place.height / 2 + 4
    yield tag("text", about, label, f" {count}", x=x + _NODE_WIDTH + 5, y=y)
