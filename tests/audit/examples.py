"""Made-up findings of audits, for tests of the terminal and the report.

`well` is a day of a shop without lost or doubled messages; other examples change it or start from nothing.
"""

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec

from leveret.audit.findings import (
    Advice,
    DeadLetters,
    Findings,
    Flow,
    Hole,
    Latency,
    MessageFound,
    QueueAccount,
)

TAKEN = datetime(2026, 9, 15, 12, 30, tzinfo=UTC)
STRETCH_S = 300

NASTY = (
    "<script>alert('in a name')</script>",
    '"><img src=x onerror=alert(1)>',
    "a'b\"c & d < e > f",
    "two\nlines\tand \x1b[31mred\x00",
    "прод/注文/🐇\u202egnp.exe",
    "\udcff not UTF-8",
    "n" * 255,
    "</title></style></svg><b>bold</b>",
)
"""Hostile names of queues, consumers and reasons."""


@dataclass(frozen=True, slots=True)
class Reader:
    """A virtual host, queue and group, as in `Findings`."""

    queue: str
    reader: str = ""
    vhost: str = "/"

    def fields(self) -> dict[str, str]:
        return {"vhost": self.vhost, "queue": self.queue, "reader": self.reader}


ORDERS, INVOICES, MAIL = Reader("orders"), Reader("invoices"), Reader("mail.outgoing")
BILLING = Reader("orders.topic.0", "billing")


def account(place: Reader, **figures: object) -> QueueAccount:
    """Return an account in which all messages were delivered and acked, except for `figures`."""
    published = figures.get("published", 0)
    known = {
        "audited": True,
        "published": 0,
        "confirmed": published,
        "delivered": published,
        "deliveries": published,
        "returns": 0,
        "late": 0,
        "outcomes": {"acked": published} if published else {},
        "ready": 0,
        "in_flight": 0,
        "lost": 0,
        "doubled": 0,
        "gone": 0,
    }
    return QueueAccount(**place.fields(), **{**known, **figures})


def empty(**changes: object) -> Findings:
    """Return the findings of a broker without messages, except for `changes`."""
    known = {
        name: [] for name in Findings.__struct_fields__ if Findings.__annotations__[name].startswith("list")
    }
    known |= {"source": "the broker at localhost:5672", "taken": TAKEN, "took_s": 0.8, "stretch_s": 1}
    known |= {"returned": {}, "table": "audit/messages"}
    known |= {f"{name}_count": len(changes.get(name, ())) for name in ("loops", "holes")}
    return Findings(**{**known, **changes})


def well() -> Findings:
    """Return findings without lost or doubled messages: some orders were rejected, one message hangs."""
    return empty(
        took_s=74.2,
        stretch_s=STRETCH_S,
        queues=[
            account(INVOICES, published=48_211),
            account(
                MAIL,
                published=9_730,
                confirmed=0,
                audited=False,
                delivered=7_000,
                deliveries=7_004,
                outcomes={"acked": 6_980, "before the window": 20},
                ready=2_700,
                in_flight=30,
            ),
            account(
                ORDERS,
                published=200_000,
                deliveries=204_312,
                returns=4_312,
                late=38,
                outcomes={"acked": 198_950, "dead lettered": 612, "expired": 37, "rejected": 400},
                in_flight=1,
            ),
            account(BILLING, published=66_667, outcomes={"acked": 66_660}, ready=6, in_flight=1),
        ],
        returned={"orders.in": 125, "": 3},
        loops=[
            message(ORDERS, 71_003, "delivered 17 times", delivered_to="worker-3", outcome="dead lettered")
        ],
        holes=[
            hole(BILLING, 51_200, 51_201, held_by="billing-2"),
            hole(BILLING, 51_210, 51_216, state="ready"),
        ],
        latencies=[
            *latencies(ORDERS, 60, slow=4.0),
            *latencies(INVOICES, 60, slow=900.0),
            *latencies(MAIL, 60, slow=60_000.0, confirmed=False),
            *latencies(BILLING, 20, slow=30.0),
        ],
        dead_letters=[
            dead(ORDERS, "dead lettered", "rejected: the price is negative", 480),
            dead(ORDERS, "rejected", "the body is not JSON: Expecting value: line 1 column 1 (char 0)", 400),
            dead(ORDERS, "dead lettered", "delivery limit", 132),
            dead(ORDERS, "expired", "", 37),
        ],
        flows=flows(),
        advice=[
            advice(
                "worker-1 (ctag1.3f)", gain=1.0, prefetch=40, why="it suits: 0.4 ms on the way, 11 ms of work"
            ),
            advice("worker-3 (ctag1.a0)", gain=6.8, prefetch=120, measured=False),
        ],
    )


def lost_and_doubled() -> Findings:
    """Return `well` with three lost messages and one that was settled twice."""
    before = well()
    orders = msgspec.structs.replace(before.queues[2], lost=3, doubled=1)
    return msgspec.structs.replace(
        before,
        queues=[*before.queues[:2], orders, before.queues[3]],
        lost=[message(ORDERS, offset, "lost") for offset in (17, 18, 140_002)],
        doubled=[
            message(ORDERS, 99_100, "settled as done 2 times", delivered_to="worker-1", outcome="acked")
        ],
    )


def nasty() -> Findings:
    """Return findings in which everything with a name has every name of `NASTY`."""
    places = [
        Reader(name, other, host)
        for name, other, host in zip(NASTY, NASTY[::-1], NASTY[1:] + NASTY[:1], strict=True)
    ]
    return empty(
        source=NASTY[0],
        table=NASTY[1],
        stretch_s=STRETCH_S,
        queues=[account(place, published=5, lost=1, outcomes={place.queue: 5}) for place in places],
        returned=dict.fromkeys(NASTY, 3),
        lost=[
            message(place, 3, place.queue, delivered_to=place.queue, outcome=place.queue) for place in places
        ],
        doubled=[message(place, 4, "in the table 2 times", delivered_to=place.queue) for place in places],
        doubled_in_table=len(places),
        loops=[message(place, 5, "delivered 9 times", delivered_to=place.queue) for place in places],
        holes=[hole(place, 1, 9, held_by=place.queue) for place in places],
        latencies=[point for place in places for point in latencies(place, 3, slow=10.0)],
        dead_letters=[dead(place, place.queue, place.queue, 4) for place in places],
        flows=[
            flow(kind, a, other, b, 7)
            for kind, other in (("exchange", "queue"), ("queue", "ended"))
            for a in NASTY
            for b in NASTY
        ],
        advice=[advice(place.queue, why=place.queue, place=place) for place in places],
        damage=list(NASTY),
    )


def many(holes: int = 1_000, things: int = 40) -> Findings:
    """Return findings with more entries than the report shows at once."""
    places = [Reader(f"queue-{number:03}") for number in range(things)]
    return empty(
        stretch_s=STRETCH_S,
        queues=[account(place, published=number + 1) for number, place in enumerate(places)],
        holes=[hole(places[0], 2 * number, 2 * number + 1, held_by="slow") for number in range(holes)],
        latencies=[point for place in places for point in latencies(place, 2, slow=5.0)],
        flows=[
            *(
                flow("exchange", f"exchange-{number}", "queue", place.queue, number + 1)
                for number, place in enumerate(places)
            ),
            *(
                flow("queue", place.queue, "consumer", f"consumer-{number}", number + 1)
                for number, place in enumerate(places)
            ),
        ],
        loops=[message(places[0], number, "delivered 9 times") for number in range(50)],
    )


# one of each


def message(
    place: Reader, offset: int, what: str, *, delivered_to: str = "", outcome: str = ""
) -> MessageFound:
    published = TAKEN - timedelta(hours=4) + timedelta(seconds=offset % 3600)
    return MessageFound(
        **place.fields(),
        offset=offset,
        what=what,
        published=published,
        delivered_to=delivered_to,
        settled=published + timedelta(seconds=3) if outcome else None,
        outcome=outcome,
    )


def hole(place: Reader, start: int, stop: int, *, held_by: str = "", state: str = "in flight") -> Hole:
    since = TAKEN - timedelta(minutes=47, seconds=12) if held_by else None
    return Hole(
        **place.fields(), start=start, stop=stop, state=state, held_by=held_by, since=since, deliveries=2
    )


def dead(place: Reader, outcome: str, reason: str, messages: int) -> DeadLetters:
    return DeadLetters(**place.fields(), outcome=outcome, reason=reason, messages=messages)


def flow(from_kind: str, from_name: str, to_kind: str, to_name: str, messages: int) -> Flow:
    return Flow(
        vhost="/",
        from_kind=from_kind,
        from_name=from_name,
        to_kind=to_kind,
        to_name=to_name,
        messages=messages,
    )


def advice(
    consumer: str,
    *,
    gain: float = 1.0,
    prefetch: int = 20,
    measured: bool = True,
    why: str = "it waits for the next message: 40 ms on the way, 6 ms of work",
    place: Reader = ORDERS,
) -> Advice:
    return Advice(
        **place.fields(),
        consumer=consumer,
        messages=66_000,
        rate=24.5,
        hold_ms=(46.2, 47.0, 58.9),
        work_ms=6.2,
        round_trip_ms=40.0,
        round_trip_measured=measured,
        in_flight=1.0,
        prefetch=prefetch,
        gain=gain,
        why=why,
    )


def latencies(place: Reader, stretches: int, *, slow: float, confirmed: bool = True) -> list[Latency]:
    """Return a quiet morning with a silent stretch and a half hour that is `slow` times as slow."""
    points = []
    for number in range(stretches):
        if stretches > 30 and 20 <= number < 24:
            continue
        bad = 1 + (slow - 1) * math.exp(-(((number - stretches * 0.6) / 3) ** 2))
        calm = 1 + 0.25 * math.sin(number / 4)

        def three(ms: float, worse: float, calm: float = calm) -> tuple[float, float, float]:
            return ms * calm, 2.2 * ms * calm * worse**0.5, 4.0 * ms * calm * worse

        points.append(
            Latency(
                **place.fields(),
                at=TAKEN - timedelta(seconds=STRETCH_S * (stretches - number)),
                messages=round(1000 * calm),
                confirm_ms=three(1.4, bad**0.3) if confirmed else (None, None, None),
                delivery_ms=three(2.1, bad),
                settle_ms=three(14.0, bad),
            )
        )
    return points


def flows() -> list[Flow]:
    return [
        flow("exchange", "orders.in", "queue", "orders", 200_000),
        flow("exchange", "orders.in", "queue", "orders.topic.0", 66_667),
        flow("exchange", "billing", "queue", "invoices", 48_211),
        flow("exchange", "", "queue", "mail.outgoing", 9_730),
        flow("exchange", "orders.in", "returned", "publisher", 12_500),
        flow("queue", "orders", "consumer", "worker-1", 90_000),
        flow("queue", "orders", "consumer", "worker-2", 60_000),
        flow("queue", "orders", "consumer", "worker-3", 49_963),
        flow("queue", "orders", "ended", "expired", 2_037),
        flow("queue", "orders.topic.0", "group", "billing", 66_661),
        flow("group", "billing", "consumer", "billing-1", 40_000),
        flow("group", "billing", "consumer", "billing-2", 26_661),
        flow(
            "queue", "invoices", "consumer", "a-very-long-name-of-a-consumer-of-invoices (ctag1.77)", 48_211
        ),
        flow("queue", "mail.outgoing", "consumer", "mailer", 7_000),
        flow("consumer", "worker-1", "ended", "acked", 89_600),
        flow("consumer", "worker-2", "ended", "acked", 59_600),
        flow("consumer", "worker-3", "ended", "acked", 49_750),
        flow("consumer", "worker-3", "ended", "dead lettered", 6_120),
        flow("consumer", "worker-1", "ended", "rejected", 400),
        flow("consumer", "billing-1", "ended", "acked", 40_000),
        flow("consumer", "billing-2", "ended", "acked", 26_660),
        flow("consumer", "a-very-long-name-of-a-consumer-of-invoices (ctag1.77)", "ended", "acked", 48_211),
        flow("consumer", "mailer", "ended", "acked", 6_980),
    ]
