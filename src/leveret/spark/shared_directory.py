"""A directory on any file system that driver and executors reach: local, or any that pyarrow opens.

A file appears whole: it is written under a temporary name and renamed, and on a local disk synced before and
after. Names that come from users (vhosts, queues) become path components that can't leave the directory. The
rule: no text shows user info of the location's URI, which may hold keys.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from typing import Final
from urllib.parse import quote

import pyarrow as pa
from pyarrow import fs

from leveret.spark.errors import BadOption, SparkSideError

_COMPONENT_MAX: Final = 180
_LOCAL: Final = re.compile(r"file:(?:///|/(?!/))(.*)", re.DOTALL)
_UNFINISHED: Final = ".unfinished-"


class Place:
    """`Place.at("file:///shared/spool", "vhost/queue/cursor")`."""

    def __init__(
        self, files: fs.FileSystem, root: str, folder: str, *, shown: str, noun: str = "the spool"
    ) -> None:
        self._files = files
        self._noun = noun
        self._root = root.rstrip("/")
        self._folder = f"{self._root}/{folder}".rstrip("/")
        self._shown = shown
        self._local = isinstance(files, fs.LocalFileSystem)
        self._made: set[str] = set()

    @classmethod
    def at(
        cls, location: str, folder: str, *, option: str = "option spoolLocation", noun: str = "the spool"
    ) -> Place:
        shown = without_keys(location)
        try:
            files, path = opened(location)
        except (pa.ArrowException, OSError, ValueError):
            raise BadOption(
                f"{option} '{shown}' is no place for files",
                hint="an absolute path, or a URI like file:///shared/spool, that driver and executors reach",
            ) from None
        return cls(files, path, folder, shown=f"{shown.rstrip('/')}/{folder}".rstrip("/"), noun=noun)

    def __str__(self) -> str:
        return self._shown

    def names(self, folder: str) -> list[str]:
        """Return the names of the whole files in a folder; names with a dot first are not ours (`.nfs…`)."""
        names = [info.base_name for info in self._listed(folder)]
        return [name for name in names if _UNFINISHED not in name and not name.startswith(".")]

    def _listed(self, folder: str) -> list[fs.FileInfo]:
        selector = fs.FileSelector(self._path(folder), allow_not_found=True)
        with self._explained("read"):
            return [info for info in self._files.get_file_info(selector) if info.is_file]

    def read(self, name: str) -> bytes | None:
        with (
            self._explained("read"),
            suppress(FileNotFoundError),
            self._files.open_input_stream(self._path(name)) as source,
        ):
            return bytes(source.read())
        return None

    def open(self, name: str) -> pa.NativeFile:
        """Open a file for reading at any position; raise `FileNotFoundError` if it does not exist."""
        return self._files.open_input_file(self._path(name))

    def write_bytes(self, name: str, data: bytes) -> None:
        self.write(name, lambda sink: sink.write(data))

    def write(self, name: str, fill: Callable[[pa.NativeFile], object]) -> None:
        """Write a new file with what `fill` puts into it; it is whole and durable when this returns."""
        path = self._path(name)
        folder, _, base = path.rpartition("/")
        unfinished = f"{folder}/{_UNFINISHED}{uuid.uuid4().hex}-{base}"
        with self._explained("written"):
            try:
                self._make(folder)
                with self._files.open_output_stream(unfinished) as sink:
                    fill(sink)
                if self._local:
                    _sync(unfinished)
                    os.replace(unfinished, path)
                    _sync(folder)
                else:
                    self._files.move(unfinished, path)
            except OSError:
                with suppress(OSError):
                    self._files.delete_file(unfinished)
                raise

    def _make(self, folder: str) -> None:
        if folder in self._made:
            return
        self._files.create_dir(folder, recursive=True)
        self._made.add(folder)
        self._sync_above(folder)

    def sync(self, folder: str) -> None:
        """Sync all files of a folder that another process wrote; do nothing off local disks."""
        if not self._local:
            return
        path = self._path(folder)
        with self._explained("written"):
            for directory, _, names in os.walk(path, topdown=False):
                for name in names:
                    _sync(f"{directory}/{name}")
                _sync(directory)
            self._sync_above(path)

    def sync_file(self, name: str) -> None:
        """Sync a file that another process wrote, and the folders above it, if it exists on a local disk."""
        path = self._path(name)
        if self._local and os.path.exists(path):
            with self._explained("written"):
                _sync(path)
                self._sync_above(path)

    def _sync_above(self, folder: str) -> None:
        parent = folder.rpartition("/")[0]
        while self._local and parent.startswith(self._root) and parent:
            _sync(parent)
            parent = parent.rpartition("/")[0]

    def sweep(self, folder: str) -> None:
        """Delete files that were begun and never finished."""
        names = (info.base_name for info in self._listed(folder))
        self.delete(f"{folder}/{name}" for name in names if _UNFINISHED in name)

    def delete(self, names: Iterable[str]) -> None:
        """Delete files; missing ones are no error."""
        for name in names:
            with self._explained("cleared"), suppress(FileNotFoundError):
                self._files.delete_file(self._path(name))

    def delete_all(self) -> None:
        """Delete the directory and everything in it."""
        with self._explained("cleared"), suppress(FileNotFoundError):
            self._files.delete_dir(self._folder)
        self._made.clear()

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    @contextmanager
    def _explained(self, action: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SparkSideError(
                f"{self._noun} at {self._shown} can't be {action}: {error.strerror or error}",
                hint="check the place, its permissions and its free space",
            ) from error


def opened(location: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a location, and the path in it.

    `file:` URLs are not percent-decoded, because Hadoop does not decode them either.

    >>> opened("file:///srv/my%20lake")[1], opened("file:/srv/lake")[1]
    ('/srv/my%20lake', '/srv/lake')
    """
    local = _LOCAL.match(location)
    return fs.FileSystem.from_uri(location) if local is None else (fs.LocalFileSystem(), f"/{local[1]}")


def component(name: str) -> str:
    """Return a name as one component of a path.

    >>> component("orders/eu"), component("..")
    ('orders%2Feu', '%2E.')
    """
    quoted = quote(name, safe="", errors="surrogateescape").replace("~", "%7E")
    if quoted.startswith("."):
        quoted = f"%2E{quoted[1:]}"
    # File systems take 255 bytes or little more.
    if len(quoted) > _COMPONENT_MAX:
        full = blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
        quoted = f"{quoted[: _COMPONENT_MAX - 20]}~{full}"
    return quoted


def without_keys(location: str) -> str:
    """Return a location as it may be shown: a path, or a URI without keys.

    Of a URI only the part behind the last @ is shown, because a key before it may hold a slash.

    >>> without_keys("s3://AKIA:SEC/RET@bucket/spool?region=eu")
    's3://bucket/spool'
    """
    scheme, separator, rest = location.partition("://")
    if not separator or scheme == "file":
        return location
    before, _, shown = rest.rpartition("@")
    # A question mark before the last @ is in a key or begins the query, which may hold keys too.
    hidden = "?" in before
    return f"{scheme}://{'***' if hidden else shown.partition('?')[0]}"


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
