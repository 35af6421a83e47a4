"""A real Chromium without a network, driven over a pair of pipes.

This module owns the process and its protocol (Chrome DevTools: messages in JSON, each ended by a null byte).
The rule: every wait is bounded, and the process ends with the `with` block.
"""

import base64
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.processes import WAIT_S
from tests.tools import browser

_OPTIONS = (
    "--headless=new",
    "--remote-debugging-pipe",
    # tests may run as root, and open only their own files
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


class Page:
    """`page.open(path, width=390)`, then its `complaints` and `requests`, and `page.ask("1 + 1")`."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._read = b""
        self._number = 0
        self._session: str | None = None
        self._events: list[dict[str, Any]] = []

    def attach(self) -> None:
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def open(self, path: Path, *, width: int, height: int = 900, dark: bool = False) -> None:
        self._events.clear()
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call("Page.navigate", url=path.as_uri())
        self._until(lambda: any(event["method"] == "Page.loadEventFired" for event in self._events))

    def ask(self, expression: str) -> Any:
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    @property
    def complaints(self) -> list[str]:
        kinds = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
        return [str(event["params"]) for event in self._events if event["method"] in kinds]

    @property
    def requests(self) -> list[str]:
        sent = [event["params"] for event in self._events if event["method"] == "Network.requestWillBeSent"]
        return [params["request"]["url"] for params in sent]

    def picture(self, path: Path) -> None:
        """Write a picture of the whole page as a PNG."""
        answer = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def printed(self) -> bytes:
        """Return the page as a PDF."""
        return base64.b64decode(self._call("Page.printToPDF", printBackground=False)["data"])

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        answers: list[dict[str, Any]] = []
        self._until(lambda: bool(answers), answers)
        assert "error" not in answers[0], answers[0]
        return answers[0]["result"]

    def _until(self, happened: Any, answers: list[dict[str, Any]] | None = None) -> None:
        deadline = time.monotonic() + WAIT_S
        while not happened():
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self._from], [], [], max(0.0, left))
            assert ready, f"the browser did not answer within {WAIT_S:.0f} s"
            got = os.read(self._from, 1 << 20)
            assert got, "the browser ended"
            *messages, self._read = (self._read + got).split(b"\0")
            for message in map(json.loads, messages):
                if message.get("id") == self._number and answers is not None:
                    answers.append(message)
                elif "method" in message:
                    self._events.append(message)


@contextmanager
def page(directory: Path) -> Iterator[Page]:
    """Yield the page of a new browser whose profile is below `directory`."""
    chromium = browser()
    assert chromium is not None
    from_us, to_browser = os.pipe()
    from_browser, to_us = os.pipe()
    # the browser reads from its descriptor 3 and writes to 4; a shell can put them there
    start = f'exec "$@" 3</dev/fd/{from_us} 4>/dev/fd/{to_us}'
    command = ["sh", "-c", start, "sh", chromium, *_OPTIONS, f"--user-data-dir={directory / 'profile'}"]
    with open(directory / "browser.log", "wb") as log:
        process = subprocess.Popen(
            command, pass_fds=(from_us, to_us), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    os.close(from_us)
    os.close(to_us)
    try:
        page = Page(to_browser, from_browser)
        page.attach()
        yield page
    finally:
        # the browser ends when this pipe is closed
        os.close(to_browser)
        os.close(from_browser)
        try:
            process.wait(timeout=WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=WAIT_S)
