"""The settings of Spark in tests: small, quiet, nothing listening that need not."""

import sys
from pathlib import Path

ARCHIVE = Path(sys.prefix) / "spark.jsa"
"""Classes as a JVM has them in memory: `archive` makes it, and a JVM that can't use it does without."""
JIT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A JVM that lives for seconds: the second compiler would cost more than it gains."""
JAVA = f"{JIT} -XX:SharedArchiveFile={ARCHIVE} -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off"
SETTINGS = {
    "spark.driver.extraJavaOptions": JAVA,
    "spark.executor.extraJavaOptions": JAVA,
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stopTimeout": "30s",
    "spark.sql.streaming.noDataProgressEventInterval": "100ms",
}
