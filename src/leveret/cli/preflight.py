"""What a broker needs, looked at before it starts: a data directory, a certificate, ports.

Each thing that is missing is one sentence with its value and the option that helps. Starting is left to
`broker_process`. The rule: nothing is started, and nothing is written but the data directory itself.
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
    """One sentence, for the operator."""


class PortsTaken(StartRefused):
    """Somebody else listens there."""


class Listener(NamedTuple):
    """A port that the broker is going to listen on."""

    protocol: str
    option: str
    port: int


def check(
    host: str, listeners: Sequence[Listener], flight: Listener, data_dir: Path, tls: TlsSettings | None
) -> None:
    """Raise `StartRefused` if the broker can't start.

    A Flight port that alone is taken is no reason: the process of a broker that was killed just now may have
    it a little longer, and the endpoint waits for that.
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
    """Make the data directory if it is missing; raise `StartRefused` if it can't be used."""
    hint = "name another with --data-dir"
    if path.exists() and not path.is_dir():
        raise StartRefused(f"the data directory {path} is a file ({hint})")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartRefused(f"the data directory {path} can't be made: {error.strerror} ({hint})") from error
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        what = f"the data directory {path} is on a file system that is mounted read-only"
        raise StartRefused(f"{what} (mount it for writing, or {hint})")
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise StartRefused(f"the data directory {path} can't be written (change its permissions, or {hint})")


def check_descriptors() -> None:
    """Raise the limit of open files as far as it goes; raise `StartRefused` if that is not enough."""
    raise_limit()
    most = descriptors_max()
    if most < DESCRIPTORS_MIN:
        raise StartRefused(
            f"at most {most} files and sockets may be open, and the broker needs {DESCRIPTORS_MIN} "
            "(raise the limit with ulimit -n)"
        )


def check_certificate(tls: TlsSettings | None) -> None:
    """Raise `StartRefused` if certificate or key can't be read, or do not fit together."""
    if tls is None:
        return
    for path, option in ((tls.certificate, "--tls-cert"), (tls.key, "--tls-key")):
        try:
            Path(path).read_bytes()
        except OSError as error:
            raise StartRefused(f"{path} can't be read: {error.strerror} (is {option} right?)") from error
    try:
        tls.context()
    except OSError as error:
        raise StartRefused(str(error)) from error


def check_ports(host: str, listeners: Sequence[Listener]) -> None:
    """Raise `StartRefused` with all ports that can't be listened on."""
    wanted = [each for each in listeners if each.port not in (OFF, 0)]
    taken = []
    with ExitStack() as held:
        for each in wanted or [Listener("AMQP", "--port", 0)]:
            try:
                for bound in bind(host, each.port):
                    held.enter_context(bound)
            except socket.gaierror as error:
                what = f"host {host!r} is not known: {error.strerror}"
                raise StartRefused(f"{what} ({_UNKNOWN_HOST})") from error
            except OSError as error:
                if error.errno == errno.EADDRNOTAVAIL:
                    raise StartRefused(f"{host} is no address of this machine ({_UNKNOWN_HOST})") from error
                if error.errno != errno.EADDRINUSE:
                    raise StartRefused(_not_allowed(host, each, error)) from error
                taken.append(each)
    if taken:
        raise PortsTaken(_taken(host, taken))


def _not_allowed(host: str, listener: Listener, error: OSError) -> str:
    what = f"port {listener.port} for {listener.protocol} on {host} can't be listened on: {error.strerror}"
    return f"{what} (choose another with {listener.option})"


def _taken(host: str, taken: Sequence[Listener]) -> str:
    """
    >>> _taken("::1", [Listener("AMQP", "--port", 5672)])
    'port 5672 (AMQP) on ::1 is taken (stop what has it, or choose another with --port; 0 is a free one)'
    """
    ports = " and ".join(f"{each.port} ({each.protocol})" for each in taken)
    options = " and ".join(each.option for each in taken)
    noun, verb, other = ("port", "is", "another") if len(taken) == 1 else ("ports", "are", "others")
    what = f"{noun} {ports} on {host} {verb} taken"
    has = "has it" if len(taken) == 1 else "has them"
    return f"{what} (stop what {has}, or choose {other} with {options}; 0 is a free one)"
