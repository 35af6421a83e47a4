"""`leveret pipeline run` with gates in it, started again when it fails: what a service manager does with it.

    python -m tests.soak.declared_driver '{"master": "local[2,8]", "queries": [{"file": …, "gates": …}]}'

The command and everything under it is what users get; it only stops at each phase of a batch when a test
wants it to. It ends with all it has started when its standard input does.
"""

import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from leveret.cli.main import app
from leveret.spark.pipelines import batches, recorded_rejects, rejects, running, sinks
from tests.soak.declared import BEGUN, JUDGED, MASTER, PUBLISHED, REJECTED
from tests.soak.driver import end_with_whoever_started_this
from tests.soak.gated import WRITTEN, GatedDataSource
from tests.soak.gates import Gates

GATES = "LEVERET_SOAK_GATES"
AGAIN_S = 0.2


class Gated(GatedDataSource):
    """In the place of `leveret`, also in Spark's own processes."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__({**options, "gates": os.environ[GATES]})

    @classmethod
    def name(cls) -> str:
        return "leveret"


def install(gates: Gates) -> None:
    def before(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def held(*given: Any) -> Any:
            gates.hold(phase)
            return function(*given)

        return held

    def after(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def held(*given: Any) -> Any:
            found = function(*given)
            gates.hold(phase)
            return found

        return held

    def register(spark: SparkSession) -> None:
        spark.dataSource.register(Gated)

    running.register = register
    batches.Batches.__call__ = before(BEGUN, batches.Batches.__call__)
    sinks.write = after(WRITTEN, sinks.write)
    recorded_rejects.write = after(JUDGED, recorded_rejects.write)
    rejects.publish = after(PUBLISHED, rejects.publish)
    rejects.settle = after(REJECTED, rejects.settle)


def main(job: dict[str, Any]) -> None:
    threading.Thread(target=end_with_whoever_started_this, daemon=True).start()
    (query,) = job["queries"]
    os.environ[MASTER], os.environ[GATES] = job["master"], query["gates"]
    install(Gates(Path(query["gates"])))
    while True:
        print("declared started", flush=True)
        try:
            app(["pipeline", "run", query["file"]], standalone_mode=False)
        except Exception as error:  # noqa: BLE001  # whatever it is, the pipeline is started again
            print(f"declared failed: {type(error).__name__} {error}", flush=True)
        else:
            print("declared failed: it has ended; why is said above", flush=True)
        threading.Event().wait(AGAIN_S)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
