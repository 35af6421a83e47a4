"""Checks before a broker starts: data directory, certificate, ports, limit of open files.

Each problem is one sentence with its value and the option that helps. `broker_process` starts the broker.
The rule: nothing is started, and nothing is written except the data directory itself.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from leveret.server.descriptors import DESCRIPTORS_MIN, descriptors_max, raise_limit
from leveret.server.listening_sockets import bind
from leveret.server.tls import OFF, TlsSettings

_UNKNOWN_HOST = "give --host an address of this machine: 127.0.0.1, or 0.0.0.0 for all of them"


class StartRefused(Exception):
    """The broker can't start; the text is one sentence for the operator."""


class PortsTaken(StartRefused):
    """Another process listens on a port that the broker needs."""


class Listener(NamedTuple):
    """A port that the broker will listen on."""

    protocol: str
    option: str
    port: int


def check(
    host: str, listeners: Sequence[Listener], flight: Listener, data_dir: Path, tls: TlsSettings | None
) -> None:
    """Raise `StartRefused` if the broker can't start.

    A taken Flight port is no reason on its own: the Flight process of a broker that was just killed may hold
    the port a little longer, and the endpoint waits for it.
    """
    check_descriptors()
    check_certificate(tls)
    check_data_directory(data_dir)
    try:
        check_ports(host, listeners)
    except PortsTaken:
        check_ports(host, [*listeners, flight])
        raise


def explained(error: Exception, host: str, listeners: Sequence[Listener]) -> str:
    """Return why the broker did not start: the ports that are taken, or what the error says."""
    try:
        if isinstance(error, OSError):
            check_ports(host, listeners)
    except StartRefused as refused:
        return str(refused)
    return str(error)


def check_data_directory(path: Path) -> None:
    """Create the data directory if it is missing; raise `StartRefused` if it can't be used."""
    hint = "name another with --data-dir"
    if path.exists() and not path.is_dir():
        raise StartRefused(f"the data directory {path} is a file ({hint})")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"the data directory {path} can't be created: {error.strerror}"
        raise StartRefused(f"{problem} ({hint})") from error
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        problem = f"the data directory {path} is on a file system that is mounted read-only"
        raise StartRefused(f"{problem} (mount it for writing, or {hint})")
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise StartRefused(f"the data directory {path} can't be written (change its permissions, or {hint})")


def check_descriptors() -> None:
    """Raise the limit of open files to its maximum; raise `StartRefused` if that is too low."""
    raise_limit()
    limit = descriptors_max()
    if limit < DESCRIPTORS_MIN:
        raise StartRefused(
            f"at most {limit} files and sockets may be open, and the broker needs {DESCRIPTORS_MIN} "
            "(raise the limit with ulimit -n)"
        )


def check_certificate(tls: TlsSettings | None) -> None:
    """Raise `StartRefused` if certificate, key or what clients are checked with can't be used."""
    if tls is None:
        return
    try:
        tls.context()
    except OSError as error:
        raise StartRefused(str(error)) from error


def check_ports(host: str, listeners: Sequence[Listener]) -> None:
    """Raise `StartRefused` with all ports that are taken."""
    wanted = [listener for listener in listeners if listener.port not in (OFF, 0)]
    taken = []
    with ExitStack() as open_sockets:
        for listener in wanted or [Listener("AMQP", "--port", 0)]:
            try:
                for bound_socket in bind(host, listener.port):
                    open_sockets.enter_context(bound_socket)
            except socket.gaierror as error:
                problem = f"host {host!r} is not known: {error.strerror}"
                raise StartRefused(f"{problem} ({_UNKNOWN_HOST})") from error
            except OSError as error:
                if error.errno == errno.EADDRNOTAVAIL:
                    raise StartRefused(f"{host} is no address of this machine ({_UNKNOWN_HOST})") from error
                if error.errno != errno.EADDRINUSE:
                    raise StartRefused(_bind_error(host, listener, error)) from error
                taken.append(listener)
    if taken:
        raise PortsTaken(_taken(host, taken))


def _bind_error(host: str, listener: Listener, error: OSError) -> str:
    problem = f"port {listener.port} for {listener.protocol} on {host} can't be opened: {error.strerror}"
    return f"{problem} (choose another with {listener.option})"


def _taken(host: str, taken: Sequence[Listener]) -> str:
    """
    >>> _taken("::1", [Listener("AMQP", "--port", 5672)])
    'port 5672 (AMQP) on ::1 is taken (stop what uses it, or choose another with --port; 0 picks a free one)'
    """
    ports = " and ".join(f"{listener.port} ({listener.protocol})" for listener in taken)
    options = " and ".join(listener.option for listener in taken)
    one = ("port", "is", "it", "another")
    noun, verb, them, other = one if len(taken) == 1 else ("ports", "are", "them", "others")
    hint = f"stop what uses {them}, or choose {other} with {options}; 0 picks a free one"
    return f"{noun} {ports} on {host} {verb} taken ({hint})"
