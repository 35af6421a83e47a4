"""A directory on any file system that driver and executors reach: local, or whatever pyarrow opens.

Files appear whole: they are written under another name and then renamed, and on a local disk synced before
and after. Names that come from users (vhosts, queues) become path components here, so that none can leave
the directory. The rule: no text shows user info of the location's URI, which may hold keys.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
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
        """Of the whole files in a folder; those that begin with a dot are somebody else's (`.nfs…`)."""
        names = [info.base_name for info in self._listed(folder)]
        return [name for name in names if _UNFINISHED not in name and not name.startswith(".")]

    def _listed(self, folder: str) -> list[fs.FileInfo]:
        selector = fs.FileSelector(self._path(folder), allow_not_found=True)
        try:
            return [info for info in self._files.get_file_info(selector) if info.is_file]
        except OSError as error:
            raise self._failed("read", error) from error

    def read(self, name: str) -> bytes | None:
        try:
            with self._files.open_input_stream(self._path(name)) as source:
                return bytes(source.read())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failed("read", error) from error

    def open(self, name: str) -> pa.NativeFile:
        """For reading at any position; `FileNotFoundError` if it is not there."""
        return self._files.open_input_file(self._path(name))

    def write_bytes(self, name: str, data: bytes) -> None:
        self.write(name, lambda sink: sink.write(data))

    def write(self, name: str, fill: Callable[[pa.NativeFile], object]) -> None:
        """A new file with what `fill` puts into it; it is there when this returns, and whole."""
        path = self._path(name)
        folder, _, base = path.rpartition("/")
        unfinished = f"{folder}/{_UNFINISHED}{uuid.uuid4().hex}-{base}"
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
        except OSError as error:
            with suppress(OSError):
                self._files.delete_file(unfinished)
            raise self._failed("written", error) from error

    def _make(self, folder: str) -> None:
        if folder in self._made:
            return
        self._files.create_dir(folder, recursive=True)
        self._made.add(folder)
        self._sync_above(folder)

    def sync(self, folder: str) -> None:
        """All of a folder that somebody else has written; where it is not local, that was done."""
        if not self._local:
            return
        path = self._path(folder)
        try:
            for directory, _, names in os.walk(path, topdown=False):
                for name in names:
                    _sync(f"{directory}/{name}")
                _sync(directory)
            self._sync_above(path)
        except OSError as error:
            raise self._failed("written", error) from error

    def sync_file(self, name: str) -> None:
        """One that somebody else has written, with the folders above it; if it is there, and local."""
        path = self._path(name)
        if not self._local or not os.path.exists(path):
            return
        try:
            _sync(path)
            self._sync_above(path)
        except OSError as error:
            raise self._failed("written", error) from error

    def _sync_above(self, folder: str) -> None:
        parent = folder.rpartition("/")[0]
        while self._local and parent.startswith(self._root) and parent:
            _sync(parent)
            parent = parent.rpartition("/")[0]

    def sweep(self, folder: str) -> None:
        """Deletes what was begun and never finished."""
        found = self._listed(folder)
        self.delete(f"{folder}/{info.base_name}" for info in found if _UNFINISHED in info.base_name)

    def delete(self, names: Iterable[str]) -> None:
        """Those that are there."""
        for name in names:
            try:
                self._files.delete_file(self._path(name))
            except FileNotFoundError:
                continue
            except OSError as error:
                raise self._failed("cleared", error) from error

    def delete_all(self) -> None:
        """The directory and everything in it."""
        try:
            self._files.delete_dir(self._folder)
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._failed("cleared", error) from error
        self._made.clear()

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def _failed(self, what: str, error: OSError) -> SparkSideError:
        return SparkSideError(
            f"{self._noun} at {self._shown} can't be {what}: {error.strerror or error}",
            hint="check the place, its permissions and its free space",
        )


def opened(location: str) -> tuple[fs.FileSystem, str]:
    """The file system that a place is in, and the path there.

    Of `file:` URLs nothing is decoded, because Hadoop does not: a place is the same for both.

    >>> opened("file:///srv/my%20lake")[1], opened("file:/srv/lake")[1]
    ('/srv/my%20lake', '/srv/lake')
    """
    local = _LOCAL.match(location)
    return fs.FileSystem.from_uri(location) if local is None else (fs.LocalFileSystem(), f"/{local[1]}")


def component(name: str) -> str:
    """
    >>> component("orders/eu"), component("..")
    ('orders%2Feu', '%2E.')
    """
    quoted = quote(name, safe="", errors="surrogateescape").replace("~", "%7E")
    if quoted.startswith("."):
        quoted = f"%2E{quoted[1:]}"
    if len(quoted) > _COMPONENT_MAX:  # no file system takes much more than 255
        full = blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
        quoted = f"{quoted[: _COMPONENT_MAX - 20]}~{full}"
    return quoted


def without_keys(location: str) -> str:
    """What may be shown: a path, or of a URI what follows its last @, since a key may hold a / before it.

    >>> without_keys("s3://AKIA:SEC/RET@bucket/spool?region=eu")
    's3://bucket/spool'
    """
    scheme, separator, rest = location.partition("://")
    if not separator or scheme == "file":
        return location
    before, _, shown = rest.rpartition("@")
    hidden = "?" in before  # it is in a key, or the @ is in the query, which may hold keys too
    return f"{scheme}://{'***' if hidden else shown.partition('?')[0]}"


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
