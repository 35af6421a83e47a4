"""Groups as the API shows them, and waits for what is inside of the broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from leveret.storage.progress import Progress
from tests.fronts.http.conftest import Answer, Api
from tests.fronts.http.membership import group_of

BILLING = "/api/groups/%2F/billing"


def reason(answer: Answer) -> str:
    """Why something was refused."""
    assert answer.json.keys() == {"error", "reason"}
    return str(answer.json["reason"])


def partition(api: Api, name: str = "orders-0", path: str = BILLING, query: str = "") -> Any:
    """A partition of a group, as the API shows it."""
    (group,) = api.get(path + query).json
    (found,) = [each for each in group["partitions"] if each["stream"] == name]
    return found


def wait(
    api: Api,
    holds: Callable[[Progress], bool],
    what: str,
    *,
    subject: str = "orders",
    name: str = "billing",
    stream: str = "orders-0",
) -> None:
    """Until something holds for a partition's progress."""
    found = group_of(api.broker, subject, name).partitions[stream]
    api.broker.wait_until(lambda: holds(found.cursor.progress), what)


def crashed_and_started(api: Api) -> Api:
    """The same broker after `kill -9`, with an API of its own."""
    api.run(api.listener.stop())
    api.broker.crash()
    api.broker.start()
    again = Api(api.broker)
    again.run(again.listener.start())
    return again
