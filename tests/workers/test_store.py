"""A store is the same thing in a folder and on S3: whole files by name."""

import boto3
import pytest
from moto import mock_aws

from workers.store import PARTIAL, StoreError, open_store

pytest_plugins = ["tests.s3"]


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


def test_folders_are_no_files(store, request):
    store.put("a", b"1")
    deeper = {"folder": lambda: str(request.getfixturevalue("tmp_path") / "deep" / "store" / "x")}
    where = deeper.get(request.node.callspec.params["store"], lambda: "s3://bucket/deep/store/x")()
    open_store(where).put("b", b"2")
    assert (store.names(), store.folders()) == (["a"], ["x"])


def test_more_names_than_one_page_of_s3_are_all_there(store, monkeypatch):
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "3")  # S3's is 1000
    for i in range(7):
        store.put(f"{i}", b"")
    assert store.names() == list("0123456")


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


def test_keys_in_the_endpoints_address_are_not_repeated(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://key:secret@127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(OSError, match=r"s3://b/p/a: .*http://127\.0\.0\.1:1/") as raised:
        open_store("s3://b/p").get("a")
    assert "secret" not in str(raised.value)


def test_without_credentials_too(monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(OSError, match=r"s3://bucket/x/a: .*credentials"):
        open_store("s3://bucket/x").put("a", b"")


@pytest.fixture
def bucket(s3):
    return open_store("s3://bucket/x")


def test_a_file_is_created_once_and_swapped_by_who_read_its_last_content(bucket):
    first = bucket.create("a", b"1")
    assert bucket.create("a", b"2") is None
    second = bucket.swap("a", b"3", first)
    assert bucket.swap("a", b"4", first) is None
    assert bucket.swap("absent", b"5", first) is None
    found = bucket.read("a")
    assert (found.data, found.etag) == (b"3", second)
    assert 0.0 <= found.age < 60.0
    assert bucket.tags() == {"a": (second, 1)}
    assert bucket.names() == ["a"]


@pytest.mark.parametrize("fault", ["500", "503", "torn", "cut", "silence"])
def test_a_request_that_fails_is_made_again(bucket, s3, fault):
    faults = [fault]
    s3.fault = lambda method, path: faults.pop() if faults and (method == "GET") == (fault == "cut") else None
    bucket.put("a", b"whole" * 10_000)
    assert bucket.get("a") == b"whole" * 10_000
    assert faults == []


def test_and_given_up_after_five_attempts(bucket, s3):
    s3.fault = lambda method, path: "503"
    with pytest.raises(StoreError, match=r"s3://bucket/x/a: .*SlowDown.*reduce your request rate"):
        bucket.get("a")
    assert len(s3.seen) == 5
    s3.seen.clear()


def test_a_torn_upload_is_never_seen(bucket, s3):
    bucket.put("a", b"older")
    s3.fault = lambda method, path: "torn" if method == "PUT" else None
    with pytest.raises(StoreError):
        bucket.put("a", b"newer" * 10_000)
    assert bucket.get("a") == b"older"


def test_profile_endpoint_region_and_addressing_style_are_those_of_the_aws_tools(s3, tmp_path, monkeypatch):
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    (tmp_path / "home" / ".aws").mkdir(parents=True)
    (tmp_path / "home" / ".aws" / "config").write_text(
        "[profile lab]\nregion = eu-north-1\naws_access_key_id = lab\naws_secret_access_key = x\n"
        f"endpoint_url = http://localhost:{s3.server_port}\ns3 =\n  addressing_style = path\n"
    )
    monkeypatch.setenv("AWS_PROFILE", "lab")
    open_store("s3://bucket/x").put("a", b"1")
    assert s3.seen == [("PUT", "/bucket/x/a")]  # virtual-hosted style would be /x/a on bucket.localhost
    monkeypatch.setenv("AWS_PROFILE", "none")
    with pytest.raises(StoreError, match=r"s3://bucket/x/a: .*profile \(none\).*; check AWS_PROFILE, or"):
        open_store("s3://bucket/x").put("a", b"1")


def test_credentials_that_are_renewed_are_taken_up_by_the_same_process(bucket, s3):
    before = s3_client()
    s3.fault = lambda method, path: "expired"
    with pytest.raises(StoreError, match="the credentials have expired; renew them"):
        bucket.get("a")
    s3.fault = lambda method, path: None
    bucket.put("a", b"1")
    assert s3_client() is not before


def s3_client():
    return open_store("s3://bucket/x")._client
