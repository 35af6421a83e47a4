"""How a plan becomes tasks: as many as asked for, of about equal size, each of one partition."""

import pytest

from leveret.flight import actions
from leveret.flight.tickets import pack_ranges
from leveret.spark import read_tasks
from leveret.spark.read_tasks import Planned, divided


def sizes(messages: list[int], at_least: int) -> list[list[int]]:
    """How large the tasks are, by partition."""
    planned = [
        Planned(f"p{number}", 1, actions.Portion(pack_ranges([(0, count)] if count else []), count), number)
        for number, count in enumerate(messages)
    ]
    found = divided(planned, "grpc+tcp://here:1", at_least=at_least)
    return [[task.messages for task in found if task.number == number] for number in range(len(messages))]


@pytest.mark.parametrize(
    ("messages", "at_least", "expected"),
    [
        ([30, 30, 30], 3, [[30], [30], [30]]),
        ([30, 30, 30], 1, [[30], [30], [30]]),
        ([30, 30, 30], 4, [[15, 15]] * 3),
        ([40, 10], 5, [[10] * 4, [10]]),
        ([9, 1], 2, [[4, 5], [1]]),
        ([0, 10], 2, [[], [5, 5]]),
        ([2, 1], 7, [[1, 1], [1]]),
        ([0, 0], 2, [[], []]),
        ([], 2, []),
    ],
)
def test_there_are_as_many_tasks_as_asked_for_if_there_are_so_many_messages(messages, at_least, expected):
    assert sizes(messages, at_least) == expected


def test_whatever_the_partitions_are_there_are_tasks_enough_and_none_is_large(monkeypatch):
    monkeypatch.setattr(read_tasks, "TASK_MESSAGES_MAX", 7)
    for messages in ([5, 5, 5], [1, 20, 3], [13, 1, 0], [7, 8, 9], [1, 1, 1], [100, 7, 14]):
        for at_least in range(1, 40):
            found = sizes(messages, at_least)
            assert sum(map(len, found)) >= min(at_least, sum(messages))
            assert [sum(each) for each in found] == messages
            assert all(1 <= size <= 7 for each in found for size in each)
