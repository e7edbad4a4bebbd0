"""A store is the same thing in a folder and on S3: whole files by name."""

import boto3
import pytest
from moto import mock_aws

from workers.store import PARTIAL, open_store


@pytest.fixture(params=["folder", "s3"])
def store(request, tmp_path, monkeypatch):
    if request.param == "folder":
        yield open_store(str(tmp_path / "deep" / "store"))
        return
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="bucket")
        yield open_store("s3://bucket/deep/store/")


def test_what_is_put_is_got_and_the_last_one_counts(store):
    assert store.names() == []
    store.put("b", b"1")
    store.put("a", b"2")
    store.put("b", b"3")
    assert store.names() == ["a", "b"]
    assert (store.get("a"), store.get("b")) == (b"2", b"3")


def test_a_name_that_is_absent_is_a_missing_file(store):
    with pytest.raises(FileNotFoundError, match="nothing"):
        store.get("nothing")


def test_clear_leaves_nothing_and_minds_no_empty_store(store):
    store.clear()
    store.put("a", b"1")
    store.clear()
    assert store.names() == []


def test_more_names_than_one_page_of_s3_are_all_there(store):
    for i in range(1001):
        store.put(f"{i:04}", b"")
    assert len(store.names()) == 1001


def test_a_file_that_is_half_written_is_not_there(tmp_path):
    (tmp_path / f"a.0{PARTIAL}").write_bytes(b"half")
    (tmp_path / "folder").mkdir()
    assert open_store(str(tmp_path)).names() == []


def test_a_write_that_fails_leaves_the_older_file_and_no_rest(tmp_path):
    store = open_store(str(tmp_path))
    store.put("a", b"whole")
    with pytest.raises(TypeError):
        store.put("a", None)
    assert store.get("a") == b"whole"
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("where", ["s3://", "s3:///prefix", "gs://bucket/prefix"])
def test_an_address_that_is_none_is_one_line(where):
    with pytest.raises(ValueError, match="a folder or s3://bucket/prefix expected"):
        open_store(where)


def test_what_s3_refuses_is_one_line_that_names_the_place(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    with mock_aws(), pytest.raises(OSError, match=r"s3://nowhere/x/a: .*NoSuchBucket") as raised:
        open_store("s3://nowhere/x").put("a", b"")
    assert "\n" not in str(raised.value)


def test_without_credentials_too(monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(OSError, match=r"s3://bucket/x/a: .*credentials"):
        open_store("s3://bucket/x").put("a", b"")
