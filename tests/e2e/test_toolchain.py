"""What `make setup` puts on a machine does its work: a RabbitMQ, Node, a browser; Spark has tests/spark."""

import subprocess
import sys

import pytest

from tests.tools import browser, node, rabbitmq

WITHOUT_SPARK = """
import sys
for name in ("pyspark", "pyarrow", "numpy", "pandas"):
    sys.modules[name] = None
import time
from leveret.storage.files import OsFiles
from leveret.storage.records import PERSISTENT, Message
from leveret.storage.store import Store
store = Store(OsFiles(sys.argv[1]), clock=lambda: time.time_ns() // 1000, entropy=lambda: 7)
log = store.create_log()
store.append(log, [Message(b"", b"", b"", b"body", PERSISTENT)])
store.sync()
print(log.read([(0, 1)])[0].body.decode())
store.close()
"""


def output_of(*command: str, timeout_s: int = 120) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=True).stdout


def test_the_store_runs_without_spark_and_arrow(tmp_path):
    assert output_of(sys.executable, "-c", WITHOUT_SPARK, str(tmp_path)) == "body\n"


@pytest.mark.needs_rabbitmq
def test_rabbitmq_says_its_version():
    server = rabbitmq()
    assert server is not None
    assert output_of(server.replace("rabbitmq-server", "rabbitmqctl"), "version")[0].isdigit()


@pytest.mark.needs_node
def test_node_runs_javascript():
    found = node()
    assert found is not None
    assert output_of(found, "-e", "console.log(6 * 7)") == "42\n"


@pytest.mark.needs_browser
def test_a_browser_renders_a_page(tmp_path):
    found = browser()
    assert found is not None
    page = "data:text/html,<p id=x></p><script>document.getElementById('x').innerText = 6 * 7</script>"
    flags = (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
    )
    quiet = ("--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path}", "--dump-dom")
    assert ">42</p>" in output_of(found, *flags, *quiet, page)
