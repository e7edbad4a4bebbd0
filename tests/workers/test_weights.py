"""A target and a drafter on S3: planned without their weights, fetched once a machine, refused when changed."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from workers import weights
from workers.store import open_store
from workers.work import DrafterSpec
from workers.worker import Worker, checkpoint_folder, drafter_file, resolve_drafter, resolve_model, trained_rows

pytest_plugins = ["tests.s3"]
ASSETS = Path(__file__).parents[2] / "assets"
MODEL, DRAFTER = "s3://bucket/models/tiny", "s3://bucket/drafters/tiny-spot.safetensors"
SHARD = "model.safetensors"


@pytest.fixture
def model(s3):
    for file in (ASSETS / "tiny-sdar").iterdir():
        if file.is_file():
            open_store(MODEL).put(file.name, file.read_bytes())
    s3.seen.clear()
    return {"family": "sdar", "path": MODEL, "block_length": 32}


def test_a_target_on_s3_is_planned_by_its_small_files_and_headers_and_its_revision_is_its_contents(s3, model, tmp_path):
    spec = resolve_model("tiny", model)
    (sketch,) = tmp_path.glob(f"cache/weights/{spec.revision}-outline/{SHARD}")
    assert sketch.stat().st_size == (ASSETS / "tiny-sdar" / SHARD).stat().st_size
    assert sketch.stat().st_blocks * 512 < sketch.stat().st_size / 10
    assert resolve_model("tiny", model) == spec
    open_store(MODEL).put("tokenizer_config.json", b"{}")
    assert resolve_model("tiny", model).revision != spec.revision


def test_it_is_fetched_once_by_however_many_actors_and_then_found(s3, model):
    spec = resolve_model("tiny", model)
    s3.seen.clear()
    with ThreadPoolExecutor(4) as actors:
        folders = set(actors.map(lambda _: checkpoint_folder(spec), range(4)))
    assert [path for method, path in s3.seen if method == "GET" and SHARD in path] == [f"/bucket/models/tiny/{SHARD}"]
    (folder,) = folders
    assert (folder / SHARD).read_bytes() == (ASSETS / "tiny-sdar" / SHARD).read_bytes()
    s3.fault = lambda method, path: "503"
    assert Worker(spec).target.config.block_length == 32


def test_a_fetch_that_was_killed_leaves_nothing_that_is_taken_for_a_checkpoint(s3, model, tmp_path):
    spec = resolve_model("tiny", model)
    half = tmp_path / "cache" / "weights" / f"{spec.revision}.partial"
    half.mkdir()
    (half / "config.json").write_text("{")
    s3.fault = lambda method, path: "expired" if method == "GET" and SHARD in path else None
    with pytest.raises(OSError, match=rf"{MODEL}/{SHARD}: .*expired"):
        checkpoint_folder(spec)
    assert not half.exists()
    s3.fault = lambda method, path: None
    assert (checkpoint_folder(spec) / "config.json").read_bytes() == (ASSETS / "tiny-sdar/config.json").read_bytes()


def test_weights_that_changed_after_the_plan_are_refused(model):
    spec = resolve_model("tiny", model)
    open_store(MODEL).put(SHARD, b"other")
    with pytest.raises(ValueError, match=rf"{MODEL} has changed since it was planned \(revision {spec.revision}, now"):
        checkpoint_folder(spec)


def test_what_is_wrong_with_a_target_on_s3_is_one_line_with_its_address(s3, model):
    for path, wrong in ((f"{MODEL}/none", "has no config.json with"), ("s3://nowhere/x", "create the bucket")):
        with pytest.raises(ValueError, match=rf"path: {path}.*{wrong}"):
            resolve_model("tiny", model | {"path": path})
    with pytest.raises(ValueError, match=rf"path: {MODEL}/config.json: model_type 'sdar'; .* expected"):
        resolve_model("tiny", model | {"family": "llada2"})
    open_store(MODEL).put(SHARD, (ASSETS / "tiny-sdar" / SHARD).read_bytes()[:-1])
    with pytest.raises(ValueError, match=rf"path: {MODEL}/{SHARD}: truncated or damaged"):
        resolve_model("tiny", model)


def test_a_drafter_on_s3_is_the_same_drafter_and_is_read_from_this_machine_after_the_plan(s3):
    local = str(ASSETS / "tiny-spot.safetensors")
    open_store("s3://bucket/drafters").put("tiny-spot.safetensors", Path(local).read_bytes())
    here, there = (resolve_drafter("spot", {"method": "spot", "checkpoint": path}) for path in (local, DRAFTER))
    assert replace(there, checkpoint=local) == here
    s3.fault = lambda method, path: "503"
    assert drafter_file(there).read_bytes() == Path(local).read_bytes()
    assert trained_rows(there) == trained_rows(here)


def test_a_drafter_that_changed_or_is_not_there_is_one_line(s3):
    with pytest.raises(ValueError, match=rf"checkpoint: {DRAFTER}: .*Not Found"):
        resolve_drafter("spot", {"method": "spot", "checkpoint": DRAFTER})
    open_store("s3://bucket/drafters").put("tiny-spot.safetensors", b"other")
    with pytest.raises(ValueError, match=rf"{DRAFTER} has changed since it was planned \(sha 0123, now "):
        drafter_file(DrafterSpec("spot", "spot", DRAFTER, "0123"))
    assert weights.fetch_file(DRAFTER).read_bytes() == b"other"
