"""How many examples a test with Hypothesis tries in which run.

`make test` tries a quarter, always the same ones. `make test-all` tries all of them, other ones each time.
`--hypothesis-profile explore` tries at least 2,000.
"""

from typing import Any

from hypothesis import settings

EXPLORED = 2_000
SHARE_OF_MAKE_TEST = 4


def examples(count: int, **more: Any) -> settings:
    """Return the settings of a test that tries so many examples in `make test-all`."""
    profile = settings.get_current_profile_name()
    if profile == "explore":
        count = max(count, EXPLORED)
    elif profile == "same":
        count = count // SHARE_OF_MAKE_TEST
    return settings(max_examples=count, **more)
