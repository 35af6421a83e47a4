"""The Flight process's end of the line to the broker: questions from any thread, and their answers.

What is said is `wire`'s. The rule: nobody waits for an answer longer than a time limit, or than the broker
lives.
"""

from __future__ import annotations

import itertools
import socket
import threading
from concurrent.futures import Future
from typing import Final

from pyarrow import flight

from leveret.fronts.flight import process_protocol

_TIMEOUT_S: Final = 120.0


class BrokerLine:
    """Questions to the broker, from any thread: `line.ask(process_protocol.Login(...))`.

    The broker wants to hear how the start went before anything else; clients may be there sooner.
    """

    def __init__(self, line: socket.socket) -> None:
        self._socket = line
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[process_protocol.Reply]] = {}
        self._lock = threading.Lock()
        self._told = threading.Event()
        self.rights_version = 0
        """Changes when the broker says that users or rights have changed."""

    def tell(self, message: process_protocol.Ready | process_protocol.Failed) -> None:
        """How the start went; what was asked before follows."""
        self._send(0, message)
        self._told.set()

    def ask(self, question: process_protocol.Question) -> process_protocol.Reply:
        self._told.wait()
        number = next(self._numbers)
        future: Future[process_protocol.Reply] = Future()
        self._waiting[number] = future
        try:
            self._send(number, question)
            return future.result(_TIMEOUT_S)
        except TimeoutError:
            raise flight.FlightTimedOutError("the broker does not answer") from None
        finally:
            self._waiting.pop(number, None)

    def _send(self, number: int, question: process_protocol.Question) -> None:
        try:
            with self._lock:
                self._socket.sendall(process_protocol.frame(number, question))
        except OSError:
            raise flight.FlightUnavailableError("the broker is gone") from None

    def listen(self) -> None:
        """Until the broker is gone, or says what can't be read: then nothing that follows can be."""
        try:
            self._listen()
        except process_protocol.WireError as error:
            self.note(f"the broker has sent {error}")

    def _listen(self) -> None:
        with self._socket.makefile("rb") as stream:
            while len(head := stream.read(process_protocol.LENGTH.size)) == process_protocol.LENGTH.size:
                size_bytes = process_protocol.body_bytes(head, most_bytes=process_protocol.FRAME_BYTES_MAX)
                body = stream.read(size_bytes)
                if len(body) < size_bytes:
                    return
                number, reply = process_protocol.read_reply(body)
                if isinstance(reply, process_protocol.RightsChanged):
                    self.rights_version = reply.version
                    continue
                future = self._waiting.get(number)
                if future is not None:
                    future.set_result(reply)

    def note(self, text: str) -> None:
        """Have the broker write a sentence into its log."""
        self._told.wait()
        self._send(0, process_protocol.Noted(text))
