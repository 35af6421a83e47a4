"""Power cuts, kills and full disks at any moment of a broker's life. See `broker_history.py`."""

import pytest

from tests.faults.broker_history import BrokerHistory


@pytest.mark.histories(sample=40, full=600)
def test_after_any_crash_the_broker_holds_what_it_promised(seed: int, small_steps: None) -> None:
    BrokerHistory(seed).run()
