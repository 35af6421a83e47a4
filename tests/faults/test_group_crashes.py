"""Power cuts and kills at any moment of a group's life. See `group_history.py`."""

import pytest

from tests.faults.group_history import GroupHistory


@pytest.mark.histories(sample=8, full=120)
def test_after_any_crash_a_group_is_where_it_was(seed: int, small_steps: None) -> None:
    GroupHistory(seed).run()
