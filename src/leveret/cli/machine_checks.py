"""What `leveret doctor` finds out about the machine: disk, limits, clock, memory, ports, certificates.

    findings = [check_python(), check_syncs(directory), check_clock(clock)]

Each check returns findings: a level, one sentence, and what to do. The rule: nothing on the machine is
changed; the disk is measured with a file that has no name and disappears.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

from leveret.cli import preflight
from leveret.cli.preflight import Listener, PortsTaken, StartRefused
from leveret.server.clock import SteadyClock
from leveret.server.descriptors import DESCRIPTORS_MIN
from leveret.server.malloc_settings import machine_bytes
from leveret.server.tls import TlsError, TlsSettings

Level: TypeAlias = Literal["ok", "warning", "fail"]

_SYNCS: Final = 50
_SYNCS_S: Final = 2.0
"""Time after which a slow disk is not measured any longer."""
_PIECE_BYTES: Final = 4096
_SLOW_SYNC_S: Final = 0.02
_UNLIKELY_SYNC_S: Final = 0.000_005
"""No disk is as fast: such a file system keeps nothing."""
_DESCRIPTORS_WANTED: Final = 4096
_MEMORY_WANTED_BYTES: Final = 512 << 20
_DISK_WANTED_BYTES: Final = 1 << 30
_STEP_US: Final = 100_000
_FIRST_YEAR: Final = 2025
_IN_MEMORY: Final = ("tmpfs", "ramfs")
_REMOTE: Final = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs")
_TIME_ERROR: Final = 5
"""What `adjtimex` returns if nothing keeps the clock in step."""
_TIMEX_BYTES: Final = 256


class Finding(NamedTuple):
    """`Finding("warning", "clock", "nothing keeps the clock in step", "run an NTP client")`."""

    level: Level
    about: str
    text: str
    advice: str = ""


def existing(directory: Path) -> Path:
    """Return the directory, or the nearest one above it that exists."""
    return next(path for path in (directory, *directory.absolute().parents) if path.is_dir())


def check_python() -> Finding:
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    python = f"{platform.python_implementation()} {platform.python_version()}"
    text = f"{python} on {platform.system()} {platform.release()}, processors: {processors}"
    if sys.implementation.name != "cpython":
        return Finding("warning", "python", text, "Leveret is tested with CPython only")
    return Finding("ok", "python", text)


def check_file_system(directory: Path) -> Finding:
    """Tell the kind of file system, which may be none for data that must survive."""
    place = existing(directory)
    kind = _file_system_of(place)
    text = f"{directory} is on {kind}"
    if kind in _IN_MEMORY:
        return Finding("fail", "file system", f"{text}: a reboot deletes it", "use a directory on a disk")
    if kind in _REMOTE:
        advice = "use a local disk: locks and syncs of remote file systems may not hold"
        return Finding("warning", "file system", text, advice)
    return Finding("ok", "file system", text)


def _file_system_of(path: Path) -> str:
    """Return the kind of the file system with the longest mount point above the path."""
    kind, longest, real = "an unknown file system", -1, path.resolve()
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return kind
    for line in mounts.splitlines():
        _, mount, name, *_ = line.split(" ")
        point = Path(mount.replace("\\040", " "))
        if real.is_relative_to(point) and len(point.parts) >= longest:
            kind, longest = name, len(point.parts)
    return kind


def check_space(directory: Path, *, free_min_bytes: int) -> Finding:
    """Compare the free space with the limit of the disk alarm."""
    free = shutil.disk_usage(existing(directory)).free
    text = f"{free >> 20:,} MiB free; publishers are held back below {free_min_bytes >> 20:,} MiB"
    if free < free_min_bytes:
        return Finding("fail", "disk space", text, "free some space, or use another disk")
    if free < max(_DISK_WANTED_BYTES, 2 * free_min_bytes):
        return Finding("warning", "disk space", text, "free some space before the queues grow")
    return Finding("ok", "disk space", text)


def check_syncs(directory: Path) -> Finding:
    """Measure how long the disk takes for a sync: a publisher waits as long for a confirm."""
    try:
        times_s = sorted(_sync_times_s(existing(directory)))
    except OSError as error:
        text = f"{existing(directory)} can't be written: {error.strerror}"
        return Finding("fail", "disk sync", text, "check its permissions, or name another with --data-dir")
    median_s = statistics.median(times_s)
    text = (
        f"{median_s * 1000:,.2f} ms (median), {times_s[-1] * 1000:,.2f} ms (slowest of {len(times_s)} syncs "
        f"of {_PIECE_BYTES} bytes)"
    )
    if median_s > _SLOW_SYNC_S:
        advice = "a confirm waits for a sync: use a faster disk, or one that nothing else uses"
        return Finding("warning", "disk sync", text, advice)
    if median_s < _UNLIKELY_SYNC_S:
        advice = "no disk is as fast: check that the file system honours syncs"
        return Finding("warning", "disk sync", text, advice)
    return Finding("ok", "disk sync", text)


def _sync_times_s(directory: Path) -> Iterator[float]:
    """Yield the times of syncs after writes into space that is allocated already, as those of the WAL."""
    piece = b"\x5a" * _PIECE_BYTES
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        file.write(bytes(_SYNCS * _PIECE_BYTES))
        os.fsync(file.fileno())
        ends_s = time.monotonic() + _SYNCS_S
        for number in range(_SYNCS):
            os.pwrite(file.fileno(), piece, number * _PIECE_BYTES)
            began_s = time.perf_counter()
            os.fdatasync(file.fileno())
            yield time.perf_counter() - began_s
            if time.monotonic() > ends_s:
                return


def check_descriptors() -> Finding:
    """Look at the limit to which the broker raises its own at the start."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = sys.maxsize if most == resource.RLIM_INFINITY else most
    text = "no limit" if count == sys.maxsize else f"at most {count:,}"
    advice = "raise the limit (ulimit -n; LimitNOFILE= in systemd): each connection needs one"
    if count < DESCRIPTORS_MIN:
        return Finding("fail", "open files", text, advice)
    if count < _DESCRIPTORS_WANTED:
        return Finding("warning", "open files", text, advice)
    return Finding("ok", "open files", text)


def check_memory() -> Finding:
    """Tell the memory that the broker goes by: that of the machine, or the limit of its control group."""
    size, whole = machine_bytes(), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    of = f" (limit of the control group; the machine has {whole >> 20:,} MiB)" if size < whole else ""
    text = f"{size >> 20:,} MiB{of}"
    if size < _MEMORY_WANTED_BYTES:
        return Finding("warning", "memory", text, "give the broker 512 MiB at least")
    return Finding("ok", "memory", text)


def check_clock(clock: SteadyClock) -> Finding:
    """Tell whether the clock is kept in step, and whether it was set since `clock` was made."""
    now = time.gmtime()
    text = time.strftime("%Y-%m-%d %H:%M:%S UTC", now)
    if now.tm_year < _FIRST_YEAR:
        advice = "set the clock before the broker starts: messages expire and keep their times by it"
        return Finding("fail", "clock", text, advice)
    if abs(clock.behind_us) > _STEP_US:
        advice = "find out what sets the clock in steps: the broker takes the time at its start"
        return Finding(
            "warning", "clock", f"{text}; it was just set by {clock.behind_us / 1e6:+.1f} s", advice
        )
    state = _clock_state()
    if state is None:
        return Finding("ok", "clock", f"{text}; the system does not tell whether it is kept in step")
    if state == _TIME_ERROR:
        return Finding(
            "warning", "clock", f"{text}; nothing keeps it in step", "run an NTP client, as chrony"
        )
    return Finding("ok", "clock", f"{text}, kept in step")


def _clock_state() -> int | None:
    """Return what Linux says of its clock, None on other systems."""
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else int(state)


def check_ports(host: str, listeners: Sequence[Listener], *, broker_runs: bool) -> Finding:
    """Tell whether the broker could listen now."""
    ports = ", ".join(f"{listener.port} ({listener.protocol})" for listener in listeners if listener.port > 0)
    try:
        preflight.check_ports(host, listeners)
    except PortsTaken as taken:
        if broker_runs:
            return Finding("ok", "ports", "in use, while a broker has the data directory")
        return Finding("warning", "ports", str(taken))
    except StartRefused as refused:
        return Finding("fail", "ports", str(refused))
    return Finding("ok", "ports", f"free on {host}: {ports}")


def check_certificates(tls: TlsSettings | None) -> Iterable[Finding]:
    """Yield what is wrong with the files for TLS, and certificates that end soon."""
    if tls is None:
        return [Finding("ok", "certificates", "TLS is off")]
    try:
        tls.context()
        warnings = tls.warnings(time.time())
    except TlsError as error:
        return [Finding("fail", "certificates", str(error))]
    if warnings:
        return [Finding("warning", "certificates", sentence) for sentence in warnings]
    return [Finding("ok", "certificates", f"{tls.certificate} is valid for 30 days at least")]
