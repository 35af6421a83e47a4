"""Spark without a word, for commands that speak themselves: no start-up warnings, no bars over theirs.

Errors are still shown. What somebody has configured for the same things is left as it is.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Final

from leveret.spark.interpreter import use_this_python

_LOG: Final = Path(__file__).with_name("quiet.properties")


def settings(master: str) -> dict[str, str]:
    """For the builder of a session; also prepares the process, where Spark is going to run in it."""
    warnings.filterwarnings("ignore", module="pyspark")
    use_this_python(master)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return {
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG.as_uri()}",
    }
