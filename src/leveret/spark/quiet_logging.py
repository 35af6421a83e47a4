"""Settings of Spark for commands with output of their own: no start-up warnings, no progress bars.

Errors are still shown. Environment variables that are already set are not changed.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Final

from leveret.spark.interpreter import use_this_python

_LOG: Final = Path(__file__).with_name("quiet.properties")


def settings(master: str) -> dict[str, str]:
    """Return settings for the builder of a session, and prepare this process for a local Spark."""
    warnings.filterwarnings("ignore", module="pyspark")
    use_this_python(master)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return {
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG.as_uri()}",
    }
