"""Directories on any file system: what is shown of where they are."""

import pytest

from leveret.spark.errors import BadOption, SparkSideError
from leveret.spark.shared_directory import Place, without_keys


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("/shared/me@home/spool", "/shared/me@home/spool"),
        ("file:///shared/me@home/spool", "file:///shared/me@home/spool"),
        ("s3://bucket/x", "s3://bucket/x"),
        ("s3://AKIA:SECRET@bucket/x?region=eu", "s3://bucket/x"),
        ("s3://AKIA:SEC/RET@bucket/x", "s3://bucket/x"),
        ("s3://AKIA:SEC@RET@bucket/x", "s3://bucket/x"),
        ("s3://AKIA:SEC?RET@bucket/x", "s3://***"),
        ("s3://bucket/x?secret_key=SEC@RET", "s3://***"),
    ],
)
def test_a_location_is_shown_without_its_keys(location, shown):
    assert without_keys(location) == shown


@pytest.mark.parametrize("location", ["s3://AKIA:SEC/RET@bucket/x", "nowhere://AKIA:SECRET@bucket/x"])
def test_a_location_that_is_wrong_does_not_give_its_keys_away(location):
    with pytest.raises(BadOption, match="://bucket/x' is no place for files") as raised:
        Place.at(location, "folder")
    assert not any(key in str(raised.value) for key in ("AKIA", "SEC", "RET"))


def test_a_file_that_could_not_be_written_whole_leaves_nothing(tmp_path):
    def fill(sink):
        sink.write(b"a part of it")
        raise OSError("no space left")

    place = Place.at(str(tmp_path), "folder")
    with pytest.raises(SparkSideError, match="no space left"):
        place.write("status", fill)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
