"""The spool's files: what exists when, who may write, what is remembered and for how long."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs

from leveret.spark.deliveries import SCHEMA
from leveret.spark.errors import BadOption, SparkSideError
from leveret.spark.seen_ids import digest, found_in, ids_of, in_order, pack, unpack
from leveret.spark.shared_directory import Place, component
from leveret.spark.spool import NEW, SETTLED, Extent, Spool, TakenOver, folder_of, read_chunks

WINDOW_S = 3600.0


class Clock:
    now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


def place_in(directory: Path) -> Place:
    return Place.at(str(directory), folder_of(vhost="/", queue="orders", cursor="to-lake"))


def opened(
    directory: Path, *, clock: Clock | None = None, cursor: str = "to-lake", cluster: str = ""
) -> Spool:
    spool = Spool(
        place_in(directory),
        vhost="/",
        queue="orders",
        cursor=cursor,
        window_s=WINDOW_S,
        clock=clock or Clock(),
    )
    spool.open(cluster)
    return spool


def chunk(*bodies: bytes) -> pa.RecordBatch:
    columns = {name: pa.nulls(len(bodies), SCHEMA.field(name).type) for name in SCHEMA.names}
    columns["body"] = pa.array(bodies, pa.binary())
    return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def ids(*names: str):
    return ids_of([digest(name, b"") for name in names])


def files(directory: Path, pattern: str = "*") -> list[str]:
    return sorted(path.name for path in directory.rglob(pattern) if path.is_file())


def test_a_run_that_is_refused_claims_no_spool(tmp_path):
    opened(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    spool = Spool(place_in(tmp_path), vhost="/", queue="orders", cursor="to-lake", window_s=WINDOW_S)

    def refuse(_: Extent) -> None:
        raise SparkSideError("no")

    with pytest.raises(SparkSideError, match="no"):
        spool.open("another", refuse)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_files_that_are_not_the_spools_are_left_alone(tmp_path):
    opened(tmp_path).write([chunk(b"a")], ids("a"))
    for folder in ("batches", "settled", "epochs"):
        strange = next(tmp_path.rglob("spool.json")).parent / folder / ".nfs0000.json"
        strange.parent.mkdir(exist_ok=True)
        strange.write_bytes(b"?")
    spool = opened(tmp_path)
    assert spool.settle(1) == [1]
    assert len(files(tmp_path, ".nfs*")) == 3


def test_a_batch_that_was_written_is_there_for_the_next_run(tmp_path):
    number = opened(tmp_path).write([chunk(b"a", b"b"), chunk(b"c")], ids("a", "b"))
    later = opened(tmp_path)
    manifest = later.manifest(number)
    assert (number, later.last, later.settled, later.next_offset) == (1, 1, 0, 3)
    assert [messages for messages, _ in manifest.chunks] == [2, 1]
    found = list(read_chunks(place_in(tmp_path), manifest.file, 0, 2))
    assert [batch.column("body").to_pylist() for batch in found] == [[b"a", b"b"], [b"c"]]
    assert later.find(ids("b", "x")).tolist() == [number, NEW]


def test_a_batch_without_a_manifest_does_not_exist(tmp_path):
    opened(tmp_path).write([chunk(b"a")], ids("a"))
    (manifest,) = tmp_path.rglob("batches/*.json")
    manifest.unlink()
    later = opened(tmp_path)
    assert later.after(0) is None
    assert later.find(ids("a")).tolist() == [NEW]
    later.write([chunk(b"a")], ids("a"))
    assert len(files(tmp_path, "*.arrow")) == 2
    later.settle(1)
    assert files(tmp_path, "*.arrow") == []
    assert len(files(tmp_path, "*.ids")) == 1


def test_settling_deletes_messages_and_keeps_ids_for_a_while(tmp_path):
    clock = Clock()
    spool = opened(tmp_path, clock=clock)
    spool.write([chunk(b"a")], ids("a"))
    spool.write([chunk(b"b")], ids("b"))
    assert spool.settle(1) == [1]
    assert len(files(tmp_path, "*.arrow")) == 1
    assert spool.find(ids("a", "b")).tolist() == [SETTLED, 2]
    later = opened(tmp_path, clock=clock)
    assert (later.settled, later.last, later.next_offset) == (1, 2, 2)
    assert later.find(ids("a", "b")).tolist() == [SETTLED, 2]
    clock.now_s += WINDOW_S
    later.settle(2)
    assert later.find(ids("a", "b")).tolist() == [NEW, SETTLED]
    assert files(tmp_path, "*.arrow") == []
    assert len(files(tmp_path, "*.ids")) == 1


def test_ids_are_forgotten_after_the_window_though_nothing_more_is_settled(tmp_path):
    clock = Clock()
    spool = opened(tmp_path, clock=clock)
    spool.write([chunk(b"daily")], ids("daily"))
    spool.settle(1)
    clock.now_s += WINDOW_S - 1
    assert spool.find(ids("daily")).tolist() == [SETTLED]
    clock.now_s += 1
    assert spool.find(ids("daily")).tolist() == [NEW]
    assert opened(tmp_path, clock=clock).find(ids("daily")).tolist() == [NEW]


def test_ids_whose_window_is_over_are_deleted_though_nothing_more_is_settled(tmp_path):
    clock = Clock()
    spool = opened(tmp_path, clock=clock)
    for number in (1, 2):
        spool.write([chunk(b"a")], ids(f"m{number}"))
        spool.settle(number)
        clock.now_s += WINDOW_S / 2
    for left in (1, 0):
        assert spool.settle(2) == []
        assert len(files(tmp_path, "*.ids")) == left
        assert len(files(tmp_path, "settled/*")) == 1
        clock.now_s += WINDOW_S / 2
    later = opened(tmp_path, clock=clock)
    assert (later.settled, later.next_offset) == (2, 2)


def test_settling_what_is_settled_writes_nothing(tmp_path):
    spool = opened(tmp_path)
    spool.write([chunk(b"a")], ids("a"))
    spool.settle(1)
    before = files(tmp_path)
    assert spool.settle(1) == []
    assert spool.settle(0) == []
    assert files(tmp_path) == before


def test_numbers_go_on_where_they_were_when_everything_is_settled(tmp_path):
    spool = opened(tmp_path)
    spool.write([chunk(b"a", b"b")], ids("a", "b"))
    spool.settle(1)
    assert opened(tmp_path).write([chunk(b"c")], ids("c")) == 2
    assert opened(tmp_path).next_offset == 3


def test_of_two_runs_the_later_one_writes_and_the_earlier_one_is_told(tmp_path):
    earlier = opened(tmp_path)
    earlier.write([chunk(b"a")], ids("a"))
    later = opened(tmp_path)
    with pytest.raises(TakenOver, match="another run of the query with cursor 'to-lake'"):
        earlier.check()
    with pytest.raises(TakenOver):
        earlier.write([chunk(b"b")], ids("b"))
    with pytest.raises(TakenOver):
        earlier.settle(1)
    assert len(files(tmp_path, "batches/*.json")) == 1
    later.check()
    assert later.write([chunk(b"c")], ids("c")) == 2


def test_a_run_that_settles_too_late_takes_nothing_of_the_later_one_away(tmp_path):
    """It was stopped for a while between its look at who it is and its word on what is settled."""
    clock = Clock()
    earlier = opened(tmp_path, clock=clock)
    for name in "ab":
        earlier.write([chunk(name.encode())], ids(name))
    write = earlier._place.write_bytes

    def write_late(name: str, data: bytes) -> None:
        later = opened(tmp_path, clock=clock)
        later.settle(2)
        later.write([chunk(b"c")], ids("c"))
        later.settle(3)
        write(name, data)

    earlier._place.write_bytes = write_late
    with pytest.raises(TakenOver):
        earlier.settle(1)
    last = opened(tmp_path, clock=clock)
    assert (last.settled, last.last) == (3, 3)
    assert last.find(ids("a", "b", "c", "d")).tolist() == [SETTLED, SETTLED, SETTLED, NEW]


def test_what_a_run_that_is_over_has_settled_too_late_is_not_taken_for_the_last_word(tmp_path, monkeypatch):
    """Though its number is higher: it had another checkpoint."""
    clock = Clock()
    earlier = opened(tmp_path, clock=clock)
    for name in "abc":
        earlier.write([chunk(name.encode())], ids(name))
    later = opened(tmp_path, clock=clock)
    with monkeypatch.context() as patched:
        patched.setattr(earlier, "check", lambda: None)  # it looked a moment too early
        patched.setattr(earlier, "_sweep", lambda *_: None)
        earlier.settle(3)
    later.settle(1)
    last = opened(tmp_path, clock=clock)
    assert (last.settled, last.last) == (1, 3)
    assert last.find(ids("a", "b", "c")).tolist() == [SETTLED, 2, 3]


def test_a_run_that_opens_too_slowly_takes_nothing_of_the_later_one_away(tmp_path, monkeypatch):
    """Not even what that has put together of the ids it knows."""
    monkeypatch.setattr(Spool, "check", lambda _: None)  # it looked a moment too early
    clock = Clock()
    slow = opened(tmp_path, clock=clock)
    later = opened(tmp_path, clock=clock)
    for number in range(40):
        later.settle(later.write([chunk(b"x")], ids(f"{number}")))
    known = files(tmp_path, "known/*")
    assert known
    slow._sweep_leftovers()
    slow._sweep(0, [], "")
    assert files(tmp_path, "known/*") == known


def test_ids_that_a_late_word_on_what_is_settled_names_are_there_for_whoever_opens_next(tmp_path):
    """The run that took over has settled nothing before it ended."""
    clock, wrote = Clock(), []
    earlier = opened(tmp_path, clock=clock)
    write = earlier._place.write_bytes

    def write_late(name: str, data: bytes) -> None:
        wrote.append(name)
        if name.startswith("settled/") and any(each.startswith("known/") for each in wrote):
            opened(tmp_path, clock=clock)
        write(name, data)

    earlier._place.write_bytes = write_late

    def settle_until_taken_over() -> None:
        for number in range(40):
            earlier.settle(earlier.write([chunk(b"x")], ids(f"{number}")))

    with pytest.raises(TakenOver):
        settle_until_taken_over()
    last = opened(tmp_path, clock=clock)
    assert last.find(ids(*map(str, range(last.settled)))).tolist() == [SETTLED] * last.settled
    last.settle(last.write([chunk(b"y")], ids("y")))
    named = {run.file.rpartition("/")[2] for run in last._runs}
    assert set(files(tmp_path, "known/*")) <= named
    assert len(files(tmp_path, "settled/*")) == 1


def test_of_two_batches_with_one_number_the_one_of_the_later_run_counts(tmp_path):
    earlier = opened(tmp_path)
    later = opened(tmp_path)
    later.write([chunk(b"later")], ids("later"))
    earlier.check = lambda: None  # it looked a moment too early
    earlier.write([chunk(b"earlier")], ids("earlier"))
    last = opened(tmp_path)
    assert last.find(ids("earlier", "later")).tolist() == [NEW, 1]
    (found,) = read_chunks(place_in(tmp_path), last.manifest(1).file, 0, 1)
    assert found.column("body").to_pylist() == [b"later"]
    last.settle(1)
    assert files(tmp_path, "*.arrow") == []


def test_ids_of_many_batches_are_few_files_and_none_is_forgotten(tmp_path):
    spool = opened(tmp_path)
    names = [f"m{number}" for number in range(70)]
    for number, name in enumerate(names, start=1):
        spool.write([chunk(b"")], ids(name))
        spool.settle(number)
    assert spool.find(ids(*names, "other")).tolist() == [SETTLED] * 70 + [NEW]
    assert len(files(tmp_path, "*.ids")) < 10
    assert opened(tmp_path).find(ids(*names, "other")).tolist() == [SETTLED] * 70 + [NEW]


def test_ids_are_not_remembered_much_longer_because_others_came_later(tmp_path):
    clock = Clock()
    spool = opened(tmp_path, clock=clock)
    for number in range(1, 41):
        spool.write([chunk(b"")], ids(f"m{number}"))
        spool.settle(number)
        clock.now_s += WINDOW_S / 40
    assert spool.find(ids("m1", "m2")).tolist() == [NEW, SETTLED]
    clock.now_s += WINDOW_S / 2
    assert spool.find(ids("m2", "m10", "m40")).tolist() == [NEW, NEW, SETTLED]


def test_ids_of_a_burst_are_few_files_though_an_old_one_is_among_them(tmp_path):
    clock = Clock()
    spool = opened(tmp_path, clock=clock)
    for number in range(1, 101):
        spool.write([chunk(b"")], ids(f"m{number}"))
        spool.settle(number)
        clock.now_s += WINDOW_S / 2 if number == 1 else 1
    assert len(files(tmp_path, "*.ids")) < 10
    assert spool.find(ids("m1", "m2", "m100")).tolist() == [SETTLED] * 3


def test_what_was_never_finished_is_swept(tmp_path):
    opened(tmp_path).write([chunk(b"a")], ids("a"))
    (folder,) = tmp_path.rglob("batches")
    (folder / ".unfinished-1234-x.arrow").write_bytes(b"half")
    opened(tmp_path)
    assert not list(folder.glob(".unfinished*"))


def test_a_spool_of_another_queue_is_refused(tmp_path):
    opened(tmp_path)
    (owner,) = tmp_path.rglob("spool.json")
    owner.write_text(json.dumps(json.loads(owner.read_text()) | {"queue": "payments"}))
    with pytest.raises(
        SparkSideError, match="is of queue 'payments', cursor 'to-lake', not of queue 'orders'"
    ):
        opened(tmp_path)


def test_a_spool_of_a_later_format_is_refused(tmp_path):
    opened(tmp_path)
    (owner,) = tmp_path.rglob("spool.json")
    owner.write_text(json.dumps(json.loads(owner.read_text()) | {"format": 9}))
    with pytest.raises(SparkSideError, match="has format 9"):
        opened(tmp_path)


def test_a_spool_of_another_broker_is_refused_and_its_run_goes_on(tmp_path):
    mine = opened(tmp_path, cluster="rabbit@a")
    with pytest.raises(SparkSideError, match=r"is of a queue of broker 'rabbit@a', not of 'rabbit@b'"):
        opened(tmp_path, cluster="rabbit@b")
    mine.check()
    opened(tmp_path, cluster="rabbit@a")


def test_a_broker_without_a_name_is_not_checked(tmp_path):
    opened(tmp_path, cluster="rabbit@a")
    opened(tmp_path)
    with pytest.raises(SparkSideError, match="rabbit@a"):
        opened(tmp_path, cluster="rabbit@b")


def test_a_spool_that_names_no_broker_is_of_the_first_that_comes(tmp_path):
    spool = opened(tmp_path)
    spool.write([chunk(b"a")], ids("a"))
    spool.claim("rabbit@a")
    spool.claim("rabbit@a")
    with pytest.raises(SparkSideError, match="rabbit@a"):
        spool.claim("rabbit@b")
    with pytest.raises(SparkSideError, match="rabbit@a"):
        opened(tmp_path, cluster="rabbit@b")
    assert opened(tmp_path, cluster="rabbit@a").after(0) == 1


def test_missing_ids_of_an_open_batch_are_damage_and_not_overlooked(tmp_path):
    opened(tmp_path).write([chunk(b"a")], ids("a"))
    (lost,) = tmp_path.rglob("*.ids")
    lost.unlink()
    with pytest.raises(SparkSideError, match="damaged"):
        opened(tmp_path)


def test_a_full_or_forbidden_place_is_one_sentence(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SparkSideError, match=r"the spool at .*/file/%2F/orders/to-lake can't be"):
        opened(tmp_path / "file")


@pytest.mark.parametrize("location", ["relative/spool", "nothing://host/x", ""])
def test_a_location_that_is_none_is_refused(location):
    with pytest.raises(BadOption, match="spoolLocation"):
        Place.at(location, "x")


def test_keys_in_a_location_are_not_shown():
    with pytest.raises(BadOption) as caught:
        Place.at("nothing://key:secret@bucket/spool?token=secret", "x")
    assert "secret" not in str(caught.value)
    assert "nothing://bucket/spool" in str(caught.value)


def test_a_location_may_be_a_path_or_a_uri(tmp_path):
    Place.at(f"file://{tmp_path}/", "x").write_bytes("a/b", b"1")
    assert Place.at(str(tmp_path), "x").read("a/b") == b"1"
    assert Place.at(str(tmp_path), "x").read("a/c") is None


def test_a_file_system_that_is_not_local_will_do(tmp_path):
    elsewhere = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())

    def spool_there() -> Spool:
        place = Place(elsewhere, "bucket", "x", shown="elsewhere://bucket/x")
        spool = Spool(place, vhost="/", queue="orders", cursor="to-lake", window_s=WINDOW_S)
        spool.open()
        return spool

    spool = spool_there()
    for name in "abc":
        spool.write([chunk(name.encode())], ids(name))
    spool.settle(2)
    assert spool_there().find(ids("b", "c", "d")).tolist() == [SETTLED, 3, NEW]
    assert len(files(tmp_path, "*.arrow")) == 1


@given(st.text(), st.text())
def test_every_name_is_a_component_of_its_own(one, other):
    first, second = component(one), component(other)
    assert (first == second) == (one == other)
    for name in (first, second):
        assert "/" not in name
        assert not name.startswith(".")
        assert len(name) < 200


def test_long_names_that_begin_alike_stay_apart():
    assert component("q" * 254 + "1") != component("q" * 254 + "2")


@given(st.lists(st.binary(min_size=16, max_size=16)), st.lists(st.binary(min_size=16, max_size=16)))
def test_ids_are_found_exactly(known, asked):
    run = in_order(ids_of(known))
    asked = asked + known[:3]
    assert found_in(run, ids_of(asked)).tolist() == [each in known for each in asked]
    assert np.array_equal(unpack(pack(run)), run)


def test_ids_that_share_their_first_half_are_told_apart():
    one, two, three = (b"samehalf" + tail for tail in (b"11111111", b"22222222", b"33333333"))
    run = in_order(ids_of([two, one]))
    assert found_in(run, ids_of([one, two, three])).tolist() == [True, True, False]


def test_an_id_used_twice_for_different_bodies_stands_for_two_messages():
    assert digest("1", b"a") != digest("1", b"b")
    assert digest("1", b"2a") != digest("12", b"a")
