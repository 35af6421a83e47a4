"""Seeds of the tests that play random histories, and the command that replays one of them.

A test that plays one history for a seed says how many there are:

    @pytest.mark.histories(sample=40, full=2000)
    def test_after_any_crash_the_store_holds_what_it_promised(seed: int) -> None: ...

- `make test` plays `sample` histories, with the seeds 0, 1, 2 and so on: the same ones every time.
- `make test-all` plays `full` histories from another first seed each time, so that runs add up. The first
  seed is printed at the top of the run.
- `always` names further seeds that are played in both, because they once found a fault.
- `--seed` and `--histories` choose other seeds. A failure prints the command that replays its history.
"""

import pytest


def add_options(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, metavar="N", help="the first seed of random histories (default: 0)")
    parser.addoption("--histories", type=int, metavar="N", help="how many seeds each of these tests plays")


def header(config: pytest.Config) -> str:
    return f"random histories: seeds from {first_seed(config)} on"


def first_seed(config: pytest.Config) -> int:
    return config.getoption("seed") or 0


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Give a test with the mark `histories` its seeds, one for each call."""
    mark = metafunc.definition.get_closest_marker("histories")
    if mark is not None:
        metafunc.parametrize("seed", seeds(metafunc.config, **mark.kwargs))


def seeds(config: pytest.Config, *, sample: int, full: int, always: tuple[int, ...] = ()) -> list[int]:
    """Return the seeds of a test in this run, without repetition.

    >>> seeds(config_of_make_test, sample=3, full=1000, always=(250,))
    [0, 1, 2, 250]
    """
    count, first = config.getoption("histories"), first_seed(config)
    if count is not None:
        return list(range(first, first + count))
    count = full if config.getoption("full") else sample
    return list(dict.fromkeys((*range(first, first + count), *always)))


def add_replay_command(item: pytest.Item, report: pytest.TestReport) -> None:
    """Append the command that plays the same history again to the report of a failed test."""
    if report.failed and isinstance(item, pytest.Function) and item.get_closest_marker("histories"):
        seed = item.callspec.params["seed"]
        test = item.nodeid.partition("[")[0]
        command = f".venv/bin/pytest '{test}' --seed {seed} --histories 1"
        report.sections.append((f"replay of seed {seed}", command))
