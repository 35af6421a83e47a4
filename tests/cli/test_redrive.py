"""`leveret redrive` as a process: what fits is moved, the rest is where it was, and the account is right."""

import signal
from collections.abc import Callable

import pytest

from leveret.testing.broker import Broker
from tests.cli.command import LIMIT_S, finished, leveret, started
from tests.cli.queues import bodies, declare, depth, put, take_all, wait_until_depth

NOTHING_ODD = {"homeless": 0, "dry_run": False, "interrupted": False}


@pytest.fixture
def parked(amqp_url: str, fresh: Callable[[str], str]) -> tuple[str, str]:
    """A parking place with six messages of a queue, and that queue."""
    home, parking = declare(amqp_url, fresh("home")), declare(amqp_url, fresh("parked"))
    for number in range(6):
        headers = {
            "x-original-queue": home,
            "x-exception-type": "builtins.TimeoutError" if number % 2 else "builtins.ValueError",
            "x-exception-message": "it failed",
            "region": "eu" if number < 3 else "us",
        }
        put(amqp_url, parking, b'{"id": %d}' % number, headers=headers, message_id=f"m{number}")
    return parking, home


def ids(url: str, queue: str) -> list[int]:
    return [int(kept.body.strip(b'{}"id: ')) for kept in take_all(url, queue)]


def test_everything_goes_back_to_where_it_came_from(amqp_url: str, parked: tuple[str, str]):
    parking, home = parked
    ran = leveret("redrive", parking, "--json", url=amqp_url)
    assert ran.code == 0, ran.err
    assert ran.result == {"found": 6, "moved": 6, "kept": 0, **NOTHING_ODD}
    assert (ran.err, depth(amqp_url, parking)) == ("", 0)
    found = take_all(amqp_url, home)
    assert [kept.properties.message_id for kept in found] == [f"m{number}" for number in range(6)]
    assert not any(name.startswith("x-exception") for kept in found for name in kept.properties.headers)
    assert {kept.properties.headers["region"] for kept in found} == {"eu", "us"}


@pytest.mark.sample(every=3)
@pytest.mark.parametrize(
    ("options", "moved"),
    [
        (("--where", "header.region=eu"), [0, 1, 2]),
        (("--where", "header.region!=eu"), [3, 4, 5]),
        (("--where", "type~=Timeout", "--where", "header.region=us"), [3, 5]),
        (("--where", "body.id=4"), [4]),
        (("--where", "message_id=m2"), [2]),
        (("--limit", "2"), [0, 1]),
        (("--where", "type=ValueError", "--limit", "2"), [0, 2]),
        (("--where", "header.nobody=x"), []),
    ],
)
def test_only_what_is_meant_is_moved_and_the_rest_keeps_its_order(
    amqp_url: str, parked: tuple[str, str], options: tuple[str, ...], moved: list[int]
):
    parking, home = parked
    ran = leveret("redrive", parking, *options, "--json", url=amqp_url)
    assert ran.code == 0, ran.err
    assert ran.result["moved"] == len(moved)
    wait_until_depth(amqp_url, parking, 6 - len(moved))
    assert ids(amqp_url, home) == moved
    assert ids(amqp_url, parking) == [number for number in range(6) if number not in moved]


def test_a_dry_run_moves_nothing(amqp_url: str, parked: tuple[str, str]):
    parking, home = parked
    ran = leveret("redrive", parking, "--dry-run", "--where", "header.region=eu", "--json", url=amqp_url)
    assert ran.code == 0
    assert ran.result == {"found": 6, "moved": 3, "kept": 3, **NOTHING_ODD, "dry_run": True}
    wait_until_depth(amqp_url, parking, 6)
    assert (ids(amqp_url, parking), depth(amqp_url, home)) == ([0, 1, 2, 3, 4, 5], 0)
    put(amqp_url, parking, b"1", b"2", headers={"x-original-queue": home})
    assert "2 messages found, 1 would be moved, 1 kept" in (
        leveret("redrive", parking, "--dry-run", "--limit", 1, url=amqp_url).err
    )


def test_what_redrive_leaves_where_it_is_has_used_up_no_attempt_on_leveret(
    leveret_url: str, fresh: Callable[[str], str]
):
    parking = declare(leveret_url, fresh("parked"), [b"0", b"1"], **{"x-delivery-limit": 1})
    other = declare(leveret_url, fresh("other"))
    for more in ((), ("--dry-run",), ()):
        leveret("redrive", parking, "--to", other, *more, "--where", "header.region=eu", url=leveret_url)
        wait_until_depth(leveret_url, parking, 2)
    counts = [
        (kept.properties.headers or {}).get("x-delivery-count") for kept in take_all(leveret_url, parking)
    ]
    assert counts == [None, None]


def test_a_dry_run_changes_nothing_about_the_messages_on_leveret(
    leveret_url: str, fresh: Callable[[str], str]
):
    bodies_put = [b"%d" % number for number in range(1200)]
    parking = declare(leveret_url, fresh("parked"), bodies_put)
    ran = leveret("redrive", parking, "--to", parking, "--dry-run", "--limit", 7, "--json", url=leveret_url)
    assert ran.result == {"found": 1200, "moved": 7, "kept": 1193, **NOTHING_ODD, "dry_run": True}
    kept = take_all(leveret_url, parking)
    assert [each.body for each in kept] == bodies_put
    assert not any(each.redelivered for each in kept)


def test_all_can_be_sent_to_one_queue(amqp_url: str, parked: tuple[str, str], fresh: Callable[[str], str]):
    parking, home = parked
    other = declare(amqp_url, fresh("other"))
    ran = leveret("redrive", parking, "--to", other, "--rate", 100, url=amqp_url)
    assert (ran.code, depth(amqp_url, other), depth(amqp_url, home)) == (0, 6, 0), ran.err
    assert "6 messages found, 6 moved, 0 kept" in ran.err


def test_what_nobody_knows_the_origin_of_stays_and_is_said(leveret_url: str, fresh: Callable[[str], str]):
    queue = declare(leveret_url, fresh("homeless"), [b"1", b"2"])
    ran = leveret("redrive", queue, "--json", url=leveret_url)
    assert ran.code == 1
    assert ran.result == {"found": 2, "moved": 0, "kept": 2, **NOTHING_ODD, "homeless": 2}
    assert "2 messages kept: unknown origin" in ran.err
    assert bodies(leveret_url, queue) == [b"1", b"2"]


def test_an_origin_that_is_gone_is_an_error_and_loses_nothing(amqp_url: str, fresh: Callable[[str], str]):
    parking = declare(amqp_url, fresh("parked"))
    put(amqp_url, parking, b"1", b"2", headers={"x-original-queue": "gone"})
    ran = leveret("redrive", parking, "--json", url=amqp_url)
    assert (ran.code, ran.result["moved"]) == (1, 0)
    assert "312 NO_ROUTE" in ran.err
    assert bodies(amqp_url, parking) == [b"1", b"2"]


def test_ctrl_c_ends_it_between_two_messages(leveret_url: str, fresh: Callable[[str], str]):
    many = [b"%d" % number for number in range(1000)]
    source, to = declare(leveret_url, fresh("source"), many), declare(leveret_url, fresh("to"))
    process = started("redrive", source, "--to", to, "--rate", 10, "--json", url=leveret_url)
    wait_until_depth(leveret_url, to, 5, at_least=True)
    process.send_signal(signal.SIGINT)
    ran = finished(process)
    assert (ran.code, ran.result["interrupted"]) == (130, True)
    moved = bodies(leveret_url, to)
    assert len(moved) == ran.result["moved"]
    assert moved + bodies(leveret_url, source) == many, "in one of the two, and not in both"


@pytest.mark.real
def test_a_broker_that_goes_away_in_the_middle_is_said_and_nothing_is_lost():
    many = [b"%d" % number for number in range(1000)]
    with Broker() as broker:
        source, to = declare(broker.url, "source", many), declare(broker.url, "to")
        process = started("redrive", source, "--to", to, "--rate", 10, "--json", url=broker.url)
        broker.wait_until(lambda: broker.depth(to) >= 5, "some are moved", timeout_s=LIMIT_S)
        broker.restart()
        ran = finished(process)
        assert (ran.code, "leveret: " in ran.err) == (1, True)
        broker.wait_until(lambda: broker.unacked(source) == 0, "the rest is back")
        assert set(bodies(broker.url, to)) | set(bodies(broker.url, source)) == set(many)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("no-such-queue",), 1),
        ((), 2),
        (("q", "--where", "region=eu"), 2),
        (("q", "--rate", "-1"), 2),
        (("q", "--limit", "0"), 2),
    ],
)
def test_what_makes_no_sense_is_refused(leveret_url: str, words: tuple[str, ...], code: int):
    assert leveret("redrive", *words, url=leveret_url).code == code


def test_a_destination_that_is_not_there_is_noticed_first(leveret_url: str, fresh: Callable[[str], str]):
    source = declare(leveret_url, fresh("source"), [b"1"])
    ran = leveret("redrive", source, "--to", "no-such-queue", url=leveret_url)
    assert (ran.code, ran.err) == (1, "leveret: there is no queue 'no-such-queue'\n")
    assert depth(leveret_url, source) == 1
