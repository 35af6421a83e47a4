"""A closed store is read whole, and what is damaged is reported; nothing is changed."""

from leveret.storage.store_check import check_store
from tests.storage.builders import messages


def _checked(disk):
    before = {path: disk.read_bytes(path) for path in disk.paths()}
    damage = []
    checked = check_store(disk, damage.append)
    assert {path: disk.read_bytes(path) for path in disk.paths()} == before
    return checked, damage


def test_an_undamaged_store_is_read_whole(store, disk, log):
    store.append(log, messages(5))
    store.checkpoint()
    store.append(log, messages(4))
    store.sync()
    checked, damage = _checked(disk)
    assert (checked.logs, checked.records, checked.clean, damage) == (1, 9, False, [])
    store.close()
    checked, damage = _checked(disk)
    assert (checked.records, checked.clean, damage) == (9, True, [])
    assert checked.bytes > 0


def test_a_flipped_byte_in_a_segment_is_reported_with_its_file(store, disk, log):
    store.append(log, messages(5))
    store.close()
    path = next(path for path in disk.paths() if "/msgs." in path)
    with disk.open(path) as file:
        last = file.size() - 1
        file.write(bytes([file.read(1, last)[0] ^ 1]), last)
    checked, damage = _checked(disk)
    assert checked.records == 4
    assert [(each.file, each.offset) for each in damage] == [(path, 4)]


def test_a_missing_segment_is_reported(store, disk, log):
    store.append(log, messages(5))
    store.close()
    path = next(path for path in disk.paths() if "/msgs." in path)
    disk.unlink(path)
    damage = []
    check_store(disk, damage.append)
    assert path in {each.file for each in damage}
