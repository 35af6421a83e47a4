"""A table's file system, watched: a test looks, dies or goes on somewhere else before each change to it."""

import threading
from collections.abc import Callable
from itertools import count

from pyarrow import fs

from leveret.spark.pipelines.tables import Table
from tests.processes import WAIT_S


class Died(BaseException):
    """As by kill -9: nothing is tidied up."""


class Watched(fs.FileSystemHandler):
    """A local file system that tells of each change before it is made."""

    def __init__(self, before: Callable[[str], None], *, looking: bool = False) -> None:
        self._files = fs.LocalFileSystem()
        self._before = before
        self._looking = looking

    def get_type_name(self):
        return "watched"

    def normalize_path(self, path):
        return self._files.normalize_path(path)

    def get_file_info(self, paths):
        return self._look(lambda: self._files.get_file_info(paths))

    def get_file_info_selector(self, selector):
        return self._look(lambda: self._files.get_file_info(selector))

    def open_input_stream(self, path):
        return self._look(lambda: self._files.open_input_stream(path))

    def open_input_file(self, path):
        return self._look(lambda: self._files.open_input_file(path))

    def _look(self, look):
        if self._looking:
            self._before("look")
        return look()

    def create_dir(self, path, recursive):
        self._files.create_dir(path, recursive=recursive)

    def open_output_stream(self, path, metadata):
        self._before("write")
        return self._files.open_output_stream(path, metadata=metadata)

    def move(self, old, new):
        self._before("move")
        self._files.move(old, new)

    def delete_file(self, path):
        self._before("delete")
        self._files.delete_file(path)

    def delete_dir(self, path):
        """In two changes: a batch without its rows looks whole for a moment, as it can on any file system."""
        self._before("delete")
        for info in self._files.get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True)):
            if info.is_file and info.base_name.startswith("part-"):
                self._files.delete_file(info.path)
        self._before("delete")
        self._files.delete_dir(path)

    def copy_file(self, old, new):
        raise NotImplementedError

    delete_dir_contents = delete_root_dir_contents = open_append_stream = copy_file


def watched(path: str, before: Callable[[str], None], *, looking: bool = False) -> Table:
    files = fs.PyFileSystem(Watched(before, looking=looking))
    return Table(files, path, path=path, shown=path)


def failing(after: int, error: type[BaseException] = Died) -> Callable[[str], None]:
    """After so many changes; who has died makes none any more."""
    changes = count()

    def before(_: str) -> None:
        made = next(changes)
        if made == after or (made > after and error is Died):
            raise error

    return before


class Alternating:
    """Work in a thread that makes a change when it is told to, and waits otherwise."""

    def __init__(self, work: Callable[[Callable[[str], None]], None]) -> None:
        self._may = threading.Semaphore(0)
        self._waits = threading.Semaphore(0)
        self._ended = False
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)

    def _run(self, work):
        try:
            work(self._wait)
        finally:
            self._ended = True
            self._waits.release()

    def _wait(self, _: str) -> None:
        self._waits.release()
        assert self._may.acquire(timeout=WAIT_S)

    def __enter__(self) -> "Alternating":
        self._thread.start()
        assert self._waits.acquire(timeout=WAIT_S)
        return self

    def advance(self, changes: int) -> None:
        for _ in range(changes):
            if not self._ended:
                self._may.release()
                assert self._waits.acquire(timeout=WAIT_S)

    def __exit__(self, *_: object) -> None:
        while not self._ended:
            self.advance(1)
        self._thread.join(WAIT_S)
