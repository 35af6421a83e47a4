import errno
import pickle

import pytest

from leveret.storage.errors import (
    BadName,
    BadRequest,
    Damage,
    DirectoryLocked,
    NotInFlight,
    OffsetOutOfRange,
    StorageError,
    StorageFull,
    StorePoisoned,
    UnknownCursor,
    UnknownFormat,
    UnknownLog,
    WriteFailed,
    write_failed,
)

FULL = OSError(errno.ENOSPC, "No space left on device")
BROKEN = OSError(errno.EIO, "Input/output error")

EXAMPLES = [
    OffsetOutOfRange("offset 9 is beyond the end of log 1, which is 7"),
    NotInFlight("offset 3 of log 1 is not in flight"),
    BadName("a cursor's name has no '/'"),
    UnknownLog("there is no log 1"),
    UnknownCursor("log 1 has no cursor 'spark'"),
    DirectoryLocked("/data/lock", 17),
    DirectoryLocked("/data/lock", None),
    UnknownFormat("wal/1", 9, supported=1),
    UnknownFormat("wal/1", None, supported=1),
    WriteFailed("wal/1", BROKEN),
    StorageFull("wal/1", FULL),
    StorePoisoned("wal/1", BROKEN),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_every_error_says_what_happened_and_then_what_to_do(error):
    assert error.hint
    assert str(error) == f"{error.message}. {error.hint}"


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_every_error_survives_the_way_to_another_process(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.args == error.args
    assert again.__dict__.keys() == error.__dict__.keys()


def test_a_hint_can_be_given_where_the_error_is_raised():
    assert str(BadName("'a/b' has a slash", hint="Use a dash.")) == "'a/b' has a slash. Use a dash."


def test_an_error_without_a_hint_is_its_message():
    assert str(StorageError("something happened")) == "something happened"


@pytest.mark.parametrize("kind", [OffsetOutOfRange, NotInFlight, BadName, UnknownLog, UnknownCursor])
def test_a_mistake_of_the_caller_is_a_bad_request(kind):
    assert issubclass(kind, BadRequest)


@pytest.mark.parametrize("kind", [BadRequest, DirectoryLocked, UnknownFormat, WriteFailed, StorePoisoned])
def test_each_branch_grows_from_the_root(kind):
    assert kind.__bases__ == (StorageError,)


def test_a_locked_directory_names_its_holder():
    assert DirectoryLocked("/data/lock", 17).pid == 17
    assert "process 17" in str(DirectoryLocked("/data/lock", 17))
    assert "just starting" in str(DirectoryLocked("/data/lock", None))


def test_an_unknown_format_tells_a_newer_file_from_one_that_is_not_ours():
    newer = UnknownFormat("wal/1", 9, supported=1)
    assert (newer.file, newer.found, newer.supported) == ("wal/1", 9, 1)
    assert "version 9" in str(newer)
    assert "not a file of this store" in str(UnknownFormat("wal/1", None, supported=1))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_write_without_space_left_is_storage_full(number):
    reason = OSError(number, "no space")
    error = write_failed(reason, "wal/1")
    assert type(error) is StorageFull
    assert (error.path, error.error) == ("wal/1", reason)


def test_any_other_failed_write_is_only_that():
    error = write_failed(BROKEN, "wal/1")
    assert type(error) is WriteFailed
    assert "cannot write wal/1: Input/output error" in str(error)


def test_an_os_error_without_words_is_named_by_itself():
    assert "odd" in str(write_failed(OSError("odd"), "wal/1"))
    assert "odd" in str(StorePoisoned("wal/1", OSError("odd")))


def test_damage_is_a_value_and_no_exception():
    damage = Damage("logs/1/msgs.0", 4096, 7, "The checksum of the record is wrong.")
    assert damage == Damage("logs/1/msgs.0", 4096, 7, "The checksum of the record is wrong.")
    assert not isinstance(damage, BaseException)
    with pytest.raises(AttributeError):
        damage.position = 0
