"""Rejects of one batch, in requests that the broker takes."""

from __future__ import annotations

from leveret.flight import actions, bounds
from leveret.flight.bounds import RANGES_MAX
from leveret.flight.tickets import unpack_ranges
from leveret.spark.pipelines import rejects
from leveret.spark.pipelines.recorded_rejects import Part, Verdict


def test_many_rejects_of_a_batch_are_settled_by_several_requests() -> None:
    ranges = [(number, number + 1) for number in range(0, 2 * (2 * RANGES_MAX + 5), 2)]
    few = Part("other", 0, [(7, 9)], "parse", None)
    verdict = Verdict("q-1", 7, [Part("orders", 0, ranges, "parse", None), few])
    found = list(rejects._bounded(verdict))
    for part, packed in found:
        bounds.check(actions.Reject("/", part.queue, "nightly", packed, part.why))
    of_orders = [each for part, packed in found if part.queue == "orders" for each in unpack_ranges(packed)]
    assert of_orders == ranges
    assert len(found) == 4
