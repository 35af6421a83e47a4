"""Clients in other languages take the tour: amqplib, amqp091-go, RabbitMQ's Java client, Spring AMQP.

Each is a program in a folder of its own that prints a line per step, "ok ..." or "FAILED ...", and when it
prints "cut" wants its connections cut: the wire to cut is the proxy that this module puts in between.
Building is left to `builds.py`. It takes downloads and a minute, so it is left to `make test-all`.
"""

import subprocess
import threading
from collections.abc import Iterator

import pytest

from tests.interop.builds import Program, build_go, build_java, build_node, built, java_command
from tests.interop.wire import Proxy

TOUR_TIMEOUT_S = 180

PROGRAMS = [
    Program("node", ("node", "npm"), build_node, lambda folder: ["node", str(folder / "tour.mjs")]),
    Program("go", ("go",), build_go, lambda folder: [str(folder / "tour")]),
    Program("java", ("java", "javac", "mvn"), build_java, java_command("leveret.interop.Tour")),
    Program(
        "spring", ("java", "javac", "mvn"), build_java, java_command("leveret.interop.spring.SpringTour")
    ),
]

pytestmark = pytest.mark.full


@pytest.mark.timeout(900)  # the first time it downloads and compiles
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_every_step_of_the_tour_comes_true(program: Program, amqp_url: str, proxy: Proxy) -> None:
    command = [*program.command(built(program)), amqp_url, proxy.url]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        deadline = threading.Timer(TOUR_TIMEOUT_S, process.kill)
        deadline.start()
        try:
            told = list(played(process, proxy))
        finally:
            deadline.cancel()
            process.kill()
    report = "\n".join(told)
    print(report)
    assert process.returncode == 0, report
    assert any(line.startswith("ok ") for line in told), report
    assert not any(line.startswith("FAILED ") for line in told), report


def played(process: "subprocess.Popen[str]", proxy: Proxy) -> Iterator[str]:
    """What the program prints, line by line, while its wishes for a cut are granted."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == "cut":
            proxy.cut()
        else:
            yield line.rstrip()
    process.wait()
