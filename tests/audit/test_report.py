"""The report of an audit: its contents, its escaping of names, and its look in a real browser."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta, timezone
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from leveret.audit import report
from leveret.audit.findings import Findings
from leveret.audit.page_elements import ROWS_SHOWN
from leveret.audit.wording import plain
from tests.audit import browser, examples

VOID = frozenset(("meta", "link", "br"))
EXAMPLES = {
    "well": examples.well,
    "lost and doubled": examples.lost_and_doubled,
    "empty": examples.empty,
    "nasty": examples.nasty,
    "many": examples.many,
}


@dataclass
class Element:
    name: str
    attributes: dict[str, str | None]
    children: list["Element | str"] = field(default_factory=list)

    def all(self, name: str) -> list["Element"]:
        return [element for element in self.walk() if element.name == name]

    def walk(self) -> Iterator["Element"]:
        for child in self.children:
            if isinstance(child, Element):
                yield child
                yield from child.walk()

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    def section(self, anchor: str) -> "Element":
        (section,) = (
            section for section in self.all("section") if section.attributes["aria-labelledby"] == anchor
        )
        return section


class Reader(HTMLParser):
    """A strict parser that builds a tree: elements must be closed in the right order."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Element("", {})
        self._open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"{tag} has an attribute twice"
        element = Element(tag, dict(attrs))
        self._open[-1].children.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop().name == tag

    def handle_data(self, data: str) -> None:
        if not data.isspace():
            self._open[-1].children.append(data)


def parsed(findings: Findings) -> Element:
    """Return the report as a tree of elements."""
    reader = Reader()
    reader.feed(report.html(findings))
    reader.close()
    assert reader._open == [reader.root]
    return reader.root


def rows(part: Element) -> list[list[str]]:
    """Return the texts of the cells of the first table."""
    table = part if part.name == "table" else part.all("table")[0]
    return [[cell.text for cell in row.children] for row in table.all("tbody")[0].all("tr")]


@pytest.fixture(params=EXAMPLES.values(), ids=EXAMPLES.keys(), scope="module")
def page(request) -> Element:
    return parsed(request.param())


# the form of every report


def test_headings_are_in_order_and_there_is_one_first(page):
    levels = [int(element.name[1]) for element in page.walk() if re.fullmatch("h[1-6]", element.name)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later <= earlier + 1 for earlier, later in pairwise(levels))


def test_tables_have_headings_with_a_scope_and_are_full(page):
    for table in page.all("table"):
        columns = table.all("thead")[0].all("th")
        assert all(column.attributes["scope"] == "col" for column in columns)
        for row in table.all("tbody")[0].all("tr"):
            assert len(row.children) == len(columns)
            assert row.children[0].attributes["scope"] == "row"


def test_drawings_have_a_title(page):
    for drawing in page.all("svg"):
        assert drawing.attributes["role"] == "img"
        assert drawing.children[0].name == "title"
        assert drawing.children[0].text


def test_ids_are_unique_and_links_have_targets(page):
    ids = Counter(element.attributes["id"] for element in page.walk() if "id" in element.attributes)
    assert set(ids.values()) == {1}
    assert {link.attributes["href"].removeprefix("#") for link in page.all("a")} <= ids.keys()


def test_nothing_is_fetched_and_no_script_is_run(page):
    assert {element.name for element in page.walk()}.isdisjoint(
        {"script", "img", "iframe", "object", "embed", "base"}
    )
    names = {name for element in page.walk() for name in element.attributes}
    assert not any(name.startswith("on") or name in ("src", "srcset", "action") for name in names)
    assert [link.attributes["href"] for link in page.all("link")] == ["data:,"]
    (style,) = page.all("style")
    assert "url(" not in style.text
    assert "@import" not in style.text
    (policy,) = (meta for meta in page.all("meta") if "http-equiv" in meta.attributes)
    assert policy.attributes["content"].startswith("default-src 'none';")


# the verdict and what follows it


def test_the_verdict_is_the_first_heading():
    (heading,) = parsed(examples.well()).all("h1")
    assert heading.text.startswith("Every message is accounted for: 257,941 published")


def test_lost_and_doubled_messages_are_directly_below_the_verdict():
    page = parsed(examples.lost_and_doubled())
    assert page.all("h1")[0].text == "3 messages are lost and 1 is doubled."
    assert [heading.text for heading in page.all("h2")][:2] == ["Lost messages", "Doubled messages"]
    assert [row[1] for row in rows(page.section("lost"))] == ["17", "18", "140,002"]
    assert rows(page.section("doubled"))[0][:3] == ["orders", "99,100", "settled as done 2 times"]


def test_lost_messages_that_are_not_listed_are_counted():
    account = examples.account(examples.ORDERS, published=5_000, lost=1_200)
    listed = [examples.message(examples.ORDERS, 3, "lost")]
    page = parsed(examples.empty(queues=[account], lost=listed))
    assert "1,199 more are in the table of messages: audit/messages" in page.section("lost").text


def test_holes_and_loops_that_are_not_listed_are_counted():
    whole = msgspec.structs.replace(examples.many(), holes_count=70_000, loops_count=80_000)
    page = parsed(whole)
    for anchor, count in (
        ("holes", 70_000 - len(whole.holes)),
        ("loops", 80_000 - len(whole.loops)),
    ):
        assert f"{count:,} more are in the table of messages" in page.section(anchor).text


def test_without_losses_there_is_no_section_about_them():
    assert "Lost messages" not in [heading.text for heading in parsed(examples.well()).all("h2")]


@pytest.mark.parametrize(
    ("findings", "kind"),
    [
        (examples.well(), "well"),
        (examples.lost_and_doubled(), "lost"),
        (examples.empty(damage=["segment 7"]), "attention"),
    ],
    ids=["well", "lost", "damaged"],
)
def test_the_verdict_is_marked_by_more_than_a_colour(findings, kind):
    header = parsed(findings).all("header")[0]
    (box,) = (div for div in header.all("div") if "verdict" in (div.attributes.get("class") or ""))
    assert box.attributes["class"] == f"verdict {kind}"
    assert box.all("span")[0].text == {"well": "✓", "lost": "✗", "attention": "!"}[kind]


def test_each_section_without_findings_says_so():
    page = parsed(examples.empty())
    for anchor in ("queues", "holes", "loops", "deadlines", "latencies", "dead-letters", "flows", "advice"):
        assert [paragraph.attributes["class"] for paragraph in page.section(anchor).all("p")] == ["none"]


# sections


def test_a_queue_is_shown_with_what_became_of_its_messages():
    page = parsed(examples.lost_and_doubled())
    first = rows(page.section("queues"))[0]
    assert first[:3] == ["orders", "200,000", "200,000"]
    assert first[3] == "200,0004,312 again"
    assert first[7:9] == ["3", "1"]
    for part in ("acked 198,950", "dead lettered 612", "in flight 1", "lost 3"):
        assert part in first[9]


def test_groups_and_missing_audit_windows_are_named():
    names = [row[0] for row in rows(parsed(examples.well()).section("queues"))]
    assert "orders.topic.0group billing" in names
    assert "mail.outgoingno audit window" in names


def test_virtual_hosts_are_named_where_there_are_several():
    accounts = [
        examples.account(examples.Reader("orders", vhost=host), published=1) for host in ("/", "shop")
    ]
    names = [row[0] for row in rows(parsed(examples.empty(queues=accounts)).section("queues"))]
    assert names == ["/: orders", "shop: orders"]


def test_a_hole_names_its_holder_its_begin_and_its_age():
    row = rows(parsed(examples.well()).section("holes"))[0]
    assert row[1:7] == ["51,200", "1", "in flight", "billing-2", "2026-09-15 11:42:48", "47 min 12 s"]


def test_deadlines_are_counted_by_queue():
    assert rows(parsed(examples.well()).section("deadlines")) == [["orders", "38", "204,312", "< 0.1 %"]]


def test_every_queue_has_a_chart_for_each_known_stage():
    section = parsed(examples.well()).section("latencies")
    titles = [drawing.all("title")[0].text for drawing in section.all("svg")]
    assert len(titles) == 4 * 3 - 1
    # the queue with fewest messages comes last
    assert titles[-1].startswith("orders.topic.0, group billing: ")
    assert "Nothing is known" not in section.text
    assert "mail.outgoing: from publish to confirm" not in titles
    for drawing in section.all("svg"):
        lines = [line.attributes["class"] for line in drawing.all("path")]
        assert lines == ["line p50", "line p95", "line p99"]


def test_queues_that_are_not_drawn_are_counted_and_listed():
    section = parsed(examples.many()).section("latencies")
    assert len(section.all("svg")) == 12 * 3
    assert "28 queues with fewer messages are not drawn." in section.text
    assert len(rows(section)) == 40 * 3


def test_a_chart_is_as_wide_as_its_queue_has_times():
    """A queue that was busy in 20 of 60 stretches fills its chart too."""
    section = parsed(examples.well()).section("latencies")
    for drawing in section.all("svg"):
        (axis,) = (line for line in drawing.all("line") if line.attributes["class"] == "axis")
        places = [float(x) for x in re.findall(r"[ML]([0-9.]+) ", drawing.all("path")[0].attributes["d"])]
        width = float(axis.attributes["x2"]) - float(axis.attributes["x1"])
        assert max(places) - min(places) > 0.9 * width


def figures(findings: Findings) -> dict[str, str]:
    section = parsed(findings).section("figures")
    return {tile.all("dt")[0].text: tile.all("dd")[0].text for tile in section.all("div")}


def test_messages_in_flight_include_those_of_groups():
    # 30 of a queue, 1 of another, 1 of a group
    assert figures(examples.well())["in flight"] == "32"


def test_messages_kept_in_streams_and_ready_for_groups_have_figures_of_their_own():
    stream = examples.Reader("log-0")
    kept = examples.account(stream, published=300, delivered=0, outcomes={}, ready=300, stream=True)
    read = examples.account(
        examples.Reader("log-0", "billing"), published=300, outcomes={"acked": 215}, ready=85, stream=True
    )
    findings = examples.empty(queues=[kept, read, examples.account(examples.ORDERS, published=7, ready=7)])
    shown = figures(findings)
    assert (shown["ready"], shown["ready for groups"], shown["kept in streams"]) == ("7", "85", "300")
    (row,) = (row for row in rows(parsed(findings).section("queues")) if row[0] == "log-0")
    assert row[5] == "–"
    assert "kept 300" in row[-1]


def test_the_figures_say_that_a_message_counts_in_each_queue():
    assert "once in each queue that took it" in parsed(examples.well()).section("figures").text


def test_the_holder_of_a_hole_has_a_name_and_an_address():
    label = "127.0.0.1:37884 -> 127.0.0.1:5672 billing-1 (consuming) (1) leveret.74f2bcf484a6"
    findings = examples.empty(holes=[examples.hole(examples.BILLING, 9, 10, held_by=label)])
    section = parsed(findings).section("holes")
    assert "billing-1127.0.0.1:37884" in section.text
    assert "leveret.74f2bcf484a6" not in section.text


def test_dead_letters_have_a_bar_as_long_as_they_are_many():
    section = parsed(examples.well()).section("dead-letters")
    bars = [float(bar.attributes["width"]) for bar in section.all("table")[0].all("rect")]
    assert bars == sorted(bars, reverse=True)
    assert bars[0] == 100


def test_returned_messages_are_counted_by_exchange():
    section = parsed(examples.well()).section("dead-letters")
    assert [row[:2] for row in rows(section.all("table")[1])] == [
        ["orders.in", "125"],
        ["default exchange", "3"],
    ]


def test_advice_comes_with_its_sentence():
    row = rows(parsed(examples.well()).section("advice"))[1]
    assert row[5] == "40 ms *"
    assert row[7:] == [
        "120",
        "6.8 × as fast",
        "it waits for the next message: 40 ms on the way, 6 ms of work",
    ]


def test_damaged_files_are_named():
    page = parsed(examples.empty(damage=["queues/7/00000000.seg: a record's sum is wrong"]))
    assert rows(page.section("evidence")) == [["queues/7/00000000.seg: a record's sum is wrong"]]


def test_a_long_table_shows_its_first_rows_and_folds_the_others():
    section = parsed(examples.many()).section("holes")
    (more,) = section.all("details")
    assert len(rows(section)) == ROWS_SHOWN
    assert more.all("summary")[0].text == "980 more"
    assert len(rows(more)) == 980


def test_times_are_shown_in_utc_wherever_the_machine_is():
    in_tokyo = examples.TAKEN.astimezone(timezone(timedelta(hours=9)))
    page = parsed(msgspec.structs.replace(examples.well(), taken=in_tokyo))
    assert "2026-09-15 12:30:00 UTC" in page.all("header")[0].text


# names


def test_names_are_text_whatever_they_are():
    text = parsed(examples.nasty()).text
    for name in examples.NASTY:
        assert plain(name) in text


def test_a_report_can_always_be_written():
    for make in EXAMPLES.values():
        written = report.html(make()).encode("utf-8")
        assert b"\0" not in written
        assert b"\x1b" not in written


def test_no_template_switches_escaping_off():
    templates = list((Path(report.__file__).parent / "templates").iterdir())
    assert {path.name for path in templates} == {"report.html", "elements.html", "report.css"}
    for path in templates:
        assert not re.search(r"\|\s*safe|autoescape", path.read_text("utf-8"))


# in a browser


@pytest.fixture(scope="module")
def screen(tmp_path_factory) -> Iterator[browser.Page]:
    with browser.page(tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.mark.needs_browser
@pytest.mark.parametrize("width", [390, 800, 1280])
@pytest.mark.parametrize("name", ["lost and doubled", "nasty"])
def test_a_browser_without_a_network_shows_the_whole_report(
    screen: browser.Page, tmp_path: Path, name, width
):
    path = tmp_path / "report.html"
    path.write_text(report.html(EXAMPLES[name]()), encoding="utf-8")
    screen.open(path, width=width, dark=width == 390)
    assert screen.complaints == []
    assert screen.requests == [path.as_uri()]
    assert screen.ask("document.documentElement.scrollWidth <= window.innerWidth")
    seen = screen.ask("[...document.querySelectorAll('h2')].filter(e => e.offsetHeight > 0).length")
    assert seen == 13
    texts = "[...document.querySelectorAll('h1, h2, h3, p')]"
    cut = f"{texts}.filter(e => e.scrollWidth > e.clientWidth + 1).length"
    assert screen.ask(cut) == 0
    assert screen.printed().startswith(b"%PDF")
