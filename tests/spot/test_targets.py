"""Checkpoints that are not what they should be, and what identifies them."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from spot import targets
from tests.spot.support import GOLDEN


@pytest.fixture
def checkpoint(tmp_path):
    for name in ("config.json", "model.safetensors"):
        shutil.copy(GOLDEN / name, tmp_path)
    return tmp_path


def load(folder):
    return targets.load("sdar", folder, 8, torch.float32, "cpu")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("model.norm.weight"), "missing tensor 'model.norm.weight'"),
        (lambda w: w.update({"model.extra": torch.zeros(1)}), "unexpected tensor 'model.extra'"),
    ],
)
def test_a_missing_or_unexpected_tensor_is_named(checkpoint, change, message):
    weights = load_file(checkpoint / "model.safetensors")
    change(weights)
    save_file(weights, checkpoint / "model.safetensors")
    with pytest.raises(ValueError, match=message):
        load(checkpoint)


def test_a_revision_is_the_weights_and_configuration_themselves(checkpoint):
    first = targets.resolve("sdar", str(checkpoint), None)
    assert first == targets.resolve("sdar", str(checkpoint), "main")
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"rope_theta": 5}))
    assert targets.resolve("sdar", str(checkpoint), None) != first


@pytest.mark.parametrize(
    ("family", "path", "message"),
    [
        ("sdra", "x", "no family 'sdra'; there are sdar"),
        ("sdar", "/nowhere/at/all", "no folder /nowhere/at/all"),
    ],
)
def test_what_cannot_be_a_target_is_refused_before_anything_is_loaded(family, path, message):
    with pytest.raises(ValueError, match=message):
        targets.resolve(family, path, None)


def test_a_folder_without_weights_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no config\.json with model\*\.safetensors"):
        targets.resolve("sdar", str(tmp_path), None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mask_token_id": 160}, "mask_token_id 160 of a vocab_size 160"),
        ({"mask_token_id": None}, "mask_token_id 151669 of a vocab_size 160"),
        ({"eos_token_id": ...}, "no eos_token_id"),
        ({"rope_theta": ...}, "no rope_theta"),
    ],
)
def test_what_a_configuration_lacks_is_one_line(checkpoint, change, message):
    changed = json.loads((checkpoint / "config.json").read_text()) | change
    (checkpoint / "config.json").write_text(json.dumps({k: v for k, v in changed.items() if v is not ...}))
    with pytest.raises(ValueError, match=f"config.json: {message}$"):
        load(checkpoint)


def test_a_mask_may_be_token_0(checkpoint):
    published = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(published | {"mask_token_id": 0}))
    assert load(checkpoint).config.mask_id == 0
