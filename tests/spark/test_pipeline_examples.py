"""The examples of pipelines, run as they are on what they make up; what must come of it is reckoned here."""

import asyncio
import importlib.util
import json
import shutil
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from leveret.spark.pipelines import declaration, declaration_checks, running
from leveret.spark.pipelines.tables import read
from tests.spark.rejecting import take

EXAMPLES = Path(__file__).parents[2] / "examples" / "pipelines"


def _made():
    spec = importlib.util.spec_from_file_location("make_examples", EXAMPLES / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make = _made()


@pytest.fixture
def place(tmp_path) -> Path:
    """The examples, where they may write."""
    return Path(shutil.copytree(EXAMPLES, tmp_path / "pipelines"))


def run(spark, leveret, place, name, what):
    """Publishes and runs to the end; the pipeline's account, and the declaration."""
    asyncio.run(make.publish(what, leveret.url))
    declared = declaration.read(place / f"{name}.toml", {"LEVERET_URL": leveret.url})
    declaration_checks.check(declared)
    query, batches = running.start(spark, declared, once=True)
    assert query.awaitTermination(120)
    return batches.counts, declared


def test_orders_end_in_the_table_of_their_day_and_country_or_among_the_rejects(spark, own_leveret, place):
    bodies = make.orders()
    counts, declared = run(spark, own_leveret, place, "orders", "orders")
    orders = [json.loads(body) for body in bodies if body.endswith(b"}")]
    good = [o for o in orders if "customer" in o and o["amount"] > 0 and o["country"] != "us"]

    table = read(spark, declared.sinks[0].path)
    rows = table.select("order_id", "country", "day", "_offset").collect()

    assert sorted(row.order_id for row in rows) == sorted(order["order_id"] for order in good)
    assert {(row.order_id, row.country, str(row.day)) for row in rows} == {
        (order["order_id"], order["country"], order["at"][:10]) for order in good
    }
    assert len({row["_offset"] for row in rows}) == len(rows)
    assert counts.rejected == len(bodies) - len(good)
    assert own_leveret.depth("orders.rejected") == len(bodies) - len(good)
    assert own_leveret.depth("orders") == 0


@pytest.mark.full
def test_clicks_become_sessions_and_late_ones_are_rejected(spark, own_leveret, place):
    bodies = make.clicks()
    expected = reckoned([json.loads(body) for body in bodies], batch=500)
    _, declared = run(spark, own_leveret, place, "sessions", "clicks")

    table = read(spark, declared.sinks[0].path, "json").collect()

    found = sorted((row.customer, row.began, row.clicks) for row in table)
    assert [(customer, clicks) for customer, _, clicks in found] == [
        (customer, clicks) for customer, _, clicks in sorted(expected["sessions"])
    ]
    assert expected["late"] > 0
    assert expected["duplicates"] > 0
    assert own_leveret.depth("clicks.rejected") == expected["late"]
    assert sum(row.clicks for row in table) + expected["waiting"] + expected["late"] + expected[
        "duplicates"
    ] == len(bodies)
    assert own_leveret.depth("clicks") == 0


def reckoned(clicks: list[dict], batch: int) -> dict:
    """What the file says, in plain Python: batch by batch, with the watermark of the batch before."""
    delay, gap = timedelta(minutes=5), timedelta(minutes=10)
    watermark = None
    seen, waiting, sessions = set(), [], []
    late = duplicates = 0
    for first in range(0, len(clicks), batch):
        times = []
        for click in clicks[first : first + batch]:
            at = datetime.fromisoformat(click["at"])
            if watermark is not None and at < watermark:
                late += 1
                continue
            times.append(at)
            if click["click"] in seen:
                duplicates += 1
                continue
            seen.add(click["click"])
            waiting.append((click["customer"], at))
        if times:
            watermark = max(max(times) - delay, watermark or max(times) - delay)
        closed, waiting = _closed(sorted(waiting), watermark, gap)
        sessions += closed
    return {"sessions": sessions, "waiting": len(waiting), "late": late, "duplicates": duplicates}


def _closed(waiting, watermark, gap):
    closed, kept, run = [], [], []

    def end(session):
        if session and session[-1][1] + gap <= watermark:
            closed.append((session[0][0], session[0][1], len(session)))
        else:
            kept.extend(session)

    for customer, at in waiting:
        if run and (run[-1][0] != customer or at - run[-1][1] >= gap):
            end(run)
            run = []
        run.append((customer, at))
    end(run)
    return closed, kept


@pytest.mark.full
def test_purchases_come_back_with_what_is_known_of_their_customers(spark, own_leveret, place):
    bodies = make.purchases()
    counts, _ = run(spark, own_leveret, place, "enrichment", "purchases")
    known = [each for each in map(json.loads, bodies) if each["customer"] != 9]

    found = [json.loads(body) for body, _ in take(own_leveret.url, "purchases.enriched")]

    assert sorted(each["purchase"] for each in found) == [each["purchase"] for each in known]
    assert {(each["customer"], each["name"]) for each in found} >= {(2, "Béla"), (7, "Gül")}
    assert counts.rejected == len(bodies) - len(known) == own_leveret.depth("purchases.rejected")
