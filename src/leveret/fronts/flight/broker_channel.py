"""The Flight process's connection to the broker: sends questions from any thread, and receives the answers.

Messages are defined in `process_protocol`. The rule: a wait for an answer ends with a timeout, or when the
broker has ended.
"""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from pyarrow import flight

from leveret.fronts.flight import process_protocol

_TIMEOUT_S: Final = 120.0


class BrokerChannel:
    """Asks the broker from any thread: `broker.ask(process_protocol.Login(...))`.

    The first message must be the result of the start. Clients may connect earlier: their questions wait for
    it.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._numbers = itertools.count(1)
        self._answers: dict[int, Future[process_protocol.Reply]] = {}
        self._lock = threading.Lock()
        self._started = threading.Event()
        self.retire: Callable[[], None] = lambda: None
        """Called in a thread of its own when another process takes the port."""
        self.permissions_version = 0
        """Version of users and permissions, as last announced by the broker."""

    def send_start_result(self, message: process_protocol.Ready | process_protocol.Failed) -> None:
        """Send the result of the start, and let waiting questions follow."""
        self._send(0, message)
        self._started.set()

    def ask(self, question: process_protocol.Question) -> process_protocol.Reply:
        self._started.wait()
        number = next(self._numbers)
        future: Future[process_protocol.Reply] = Future()
        self._answers[number] = future
        try:
            self._send(number, question)
            return future.result(_TIMEOUT_S)
        except TimeoutError:
            raise flight.FlightTimedOutError(f"the broker did not answer within {_TIMEOUT_S:g} s") from None
        finally:
            self._answers.pop(number, None)

    def _send(self, number: int, question: process_protocol.Question) -> None:
        try:
            with self._lock:
                self._socket.sendall(process_protocol.frame(number, question))
        except OSError:
            raise flight.FlightUnavailableError("the broker has ended: try again") from None

    def listen(self) -> None:
        """Receive answers until the broker has ended or has sent an unreadable message."""
        with self._socket.makefile("rb") as stream:
            try:
                while len(head := stream.read(process_protocol.LENGTH.size)) == process_protocol.LENGTH.size:
                    size_bytes = process_protocol.body_bytes(
                        head, most_bytes=process_protocol.FRAME_BYTES_MAX
                    )
                    body = stream.read(size_bytes)
                    if len(body) < size_bytes:
                        return
                    self._receive(*process_protocol.read_reply(body))
            except process_protocol.WireError as error:
                self.log(f"answers of the broker can't be read any more: {error}")

    def _receive(self, number: int, reply: process_protocol.Reply) -> None:
        if isinstance(reply, process_protocol.PermissionsChanged):
            self.permissions_version = reply.version
        elif isinstance(reply, process_protocol.Retire):
            threading.Thread(target=self.retire, name="leveret-retire").start()
        elif (future := self._answers.get(number)) is not None:
            future.set_result(reply)

    def log(self, text: str) -> None:
        """Write a sentence into the broker's log."""
        self._started.wait()
        self._send(0, process_protocol.Noted(text))
