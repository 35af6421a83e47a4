"""What cells of the soak are played on: a broker, a driver with its queries, kept from one cell to the next.

Starting Spark takes longer than a round, so a scene is used as long as nothing went wrong on it. After a
failure the next cell gets a new one, that a single fault is not reported by all cells behind it.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.soak.brokers import Broker, leveret, rabbitmq
from tests.soak.declared import DECLARED, STEPPED, DeclaredPipeline
from tests.soak.kills import LOCAL, Scene, play
from tests.soak.network import Network
from tests.soak.pipeline import Pipeline

ROUNDS = int(os.environ.get("LEVERET_SOAK_ROUNDS", "20"))
CELL_TIMEOUT_S = 600 + 300 * ROUNDS
"""Nothing waits for so long; it ends what should have ended before."""


class Setting(NamedTuple):
    """`kinds` are the sinks of the queries that run: `pipeline` has them."""

    kinds: tuple[str, ...]
    master: str = LOCAL
    networked: bool = False
    on_rabbitmq: bool = False


class Stage:
    """`stage.play(setting, kind, victim=…, phase=…)` as often as there are rounds."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._open = contextlib.ExitStack()
        self._setting: Setting | None = None
        self._scene: Scene | None = None

    def __enter__(self) -> "Stage":
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def play(self, setting: Setting, kind: str, *, victim: str, phase: str, rounds: int = ROUNDS) -> None:
        shown = self._set(setting)
        try:
            play(shown, kind, victim=victim, phase=phase, rounds=rounds)
        except BaseException:
            self._clear()
            raise

    def _set(self, setting: Setting) -> Scene:
        if self._scene is None or setting != self._setting:
            self._clear()
            self._scene = self._open.enter_context(scene(setting, self._place))
            self._setting = setting
        return self._scene

    def _clear(self) -> None:
        self._scene = None
        self._open.close()


@contextlib.contextmanager
def scene(setting: Setting, place: Path) -> Iterator[Scene]:
    with contextlib.ExitStack() as held:
        fresh = place / str(len(list(place.iterdir())))
        fresh.mkdir()
        broker: Broker = held.enter_context(rabbitmq() if setting.on_rabbitmq else leveret(fresh / "data"))
        network = held.enter_context(Network(broker.ports)) if setting.networked else None
        host = network.host if network else "127.0.0.1"
        pipelines = [
            (DeclaredPipeline if kind in (DECLARED, STEPPED) else Pipeline)(
                fresh, broker, kind=kind, host=host
            )
            for kind in setting.kinds
        ]
        shown = Scene(broker, pipelines, master=setting.master, network=network)
        held.callback(lambda: shown.driver.kill())
        yield shown


def cells(
    victims: dict[str, Setting | None], kinds: dict[str, str], *, on_rabbitmq: bool = False
) -> pytest.MarkDecorator:
    """Every victim at every phase. `kinds` says which sink has the phase.

    A driver that is killed has only the query in question, since it starts again in every round.
    """
    found = [
        pytest.param(
            setting or Setting((kind,), on_rabbitmq=on_rabbitmq), victim, phase, kind, id=f"{victim}-{phase}"
        )
        for victim, setting in victims.items()
        for phase, kind in kinds.items()
    ]
    return pytest.mark.parametrize(("setting", "victim", "phase", "kind"), found)
