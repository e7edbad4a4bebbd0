"""Checkpoints that are not what they should be, and what identifies them."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from spot import targets
from spot.targets import checkpoint as checkpoints
from tests.spot.support import FOLDERS, GOLDEN, MASK, golden_target

PROJECT = Path(__file__).parents[2]
NORM = {
    "sdar": "model.norm.weight",
    "dream": "model.norm.weight",
    "llada2": "model.norm.weight",
    "llada": "model.transformer.ln_f.weight",
}


@pytest.fixture(params=FOLDERS)
def family(request) -> str:
    return request.param


@pytest.fixture
def checkpoint(tmp_path, family) -> Path:
    for name in ("config.json", "model.safetensors"):
        shutil.copy(FOLDERS[family] / name, tmp_path)
    return tmp_path


@pytest.fixture
def sdar(tmp_path) -> Path:
    for name in ("config.json", "model.safetensors"):
        shutil.copy(GOLDEN / name, tmp_path)
    return tmp_path


def load(folder, family="sdar"):
    return targets.load(family, folder, 8, torch.float32, "cpu", MASK, (150,))


def in_shards(folder: Path) -> list[Path]:
    """The weights of `folder` in three shards under an index, as published ones are."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    shards = [folder / f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
    index = {name: shards[place % 3].name for place, name in enumerate(sorted(weights))}
    for shard in shards:
        save_file({name: weights[name] for name in weights if index[name] == shard.name}, shard)
    (folder / checkpoints.INDEX).write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return shards


def quantise(shard: Path) -> None:
    save_file({name: value.to(torch.int8) for name, value in load_file(shard).items()}, shard)


def change(folder: Path, **values) -> None:
    published = json.loads((folder / "config.json").read_text()) | values
    (folder / "config.json").write_text(json.dumps({k: v for k, v in published.items() if v is not ...}))


def test_shards_under_an_index_are_the_whole(checkpoint, family):
    whole = load(checkpoint, family)
    in_shards(checkpoint)
    for ours, once in zip(load(checkpoint, family).parameters(), whole.parameters(), strict=True):
        assert torch.equal(ours, once)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda w, name: w.pop(name), "missing tensor '{name}'"),
        (lambda w, name: w.update({"model.extra": torch.zeros(1)}), "unexpected tensor 'model.extra'"),
        (lambda w, name: w.update({name: torch.zeros(63)}), "tensor '{name}' is [63]; [64] expected"),
    ],
)
def test_a_tensor_that_is_missing_not_expected_or_of_a_wrong_shape_is_named(checkpoint, family, spoil, message):
    weights = load_file(checkpoint / "model.safetensors")
    spoil(weights, NORM[family])
    save_file(weights, checkpoint / "model.safetensors")
    for refused in (
        lambda: load(checkpoint, family),
        lambda: targets.resolve(family, str(checkpoint), None, MASK, (150,)),
    ):
        with pytest.raises(ValueError) as error:
            refused()
        assert message.format(name=NORM[family]) in str(error.value) and "\n" not in str(error.value)


def test_query_key_and_value_in_one_tensor_have_the_rows_of_three(tmp_path):
    shutil.copytree(FOLDERS["llada2"], tmp_path, dirs_exist_ok=True)
    name = "model.layers.0.attention.query_key_value.weight"
    weights = load_file(tmp_path / "model.safetensors")
    save_file(weights | {name: torch.zeros(120, 64)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"query_key_value.weight' is \[120, 64\]; \[128, 64\] expected"):
        load(tmp_path, "llada2")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda shards: shards[1].write_bytes(shards[1].read_bytes()[:-100]), "00002-of-00003.safetensors: truncated"),
        (lambda shards: shards[1].write_bytes(b"no tensors"), "00002-of-00003.safetensors: truncated or damaged"),
        (lambda shards: shards[1].unlink(), r"no shard model-00002-of-00003.safetensors \(1 of 3 missing\)"),
        (
            lambda shards: shutil.copy(shards[0], shards[1]),
            r"00002-of-00003.safetensors: tensor '.*' is in model-00001",
        ),
        (lambda shards: (shards[0].parent / checkpoints.INDEX).write_text("{"), "index.json: no index of shards"),
        (lambda shards: (shards[1].unlink(), shards[1].symlink_to("nowhere")), r"no shard model-00002-of-00003"),
        (lambda shards: (shards[1].unlink(), shards[1].mkdir()), r"no shard model-00002-of-00003"),
        (lambda shards: quantise(shards[1]), r"is I8; BF16, F16, F32, F64 expected"),
    ],
)
def test_what_is_wrong_with_a_shard_is_said_of_it(sdar, spoil, message):
    spoil(in_shards(sdar))
    for refused in (lambda: load(sdar), lambda: targets.resolve("sdar", str(sdar), None, MASK)):
        with pytest.raises(ValueError, match=message):
            refused()


@pytest.mark.parametrize("free", [0, 100_000])
def test_too_little_memory_is_said_before_anything_is_loaded(sdar, free, monkeypatch):
    monkeypatch.setattr(checkpoints, "free_bytes", lambda device: free)
    with pytest.raises(ValueError, match=r"0\.0 GB of weights in torch.float32, and cpu has 0\.0 GB free"):
        load(sdar)


def test_the_memory_that_is_left_is_known():
    free = checkpoints.free_bytes("cpu")
    assert free is None or 10**7 < free < 10**14


PEAK = """
import re, sys, torch
from pathlib import Path
from spot import targets
def resident(): return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
small, large = map(Path, sys.argv[1:])
targets.load("sdar", small, 8, torch.float32, "cpu", 157, (150,))  # what the libraries take
before = resident()
targets.load("sdar", large, 8, torch.float32, "cpu", 157, (150,))
print(resident() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell a process's peak memory")
def test_host_memory_never_holds_more_than_the_checkpoint_and_one_shard(sdar, tmp_path_factory):
    large = tmp_path_factory.mktemp("large")
    change(sdar)
    shutil.copy(sdar / "config.json", large)
    change(large, vocab_size=200_000, hidden_size=64)
    weights = load_file(sdar / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = torch.ones(200_000, 64)
    save_file(weights, large / "model.safetensors")
    shards = in_shards(large)
    whole, largest = sum(s.stat().st_size for s in shards), max(s.stat().st_size for s in shards)
    ran = subprocess.run(
        [sys.executable, "-c", PEAK, sdar, large], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert 0.9 * whole < int(ran.stdout) < whole + largest + 2**23


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_are_loaded_in_the_dtype_that_is_asked_for(checkpoint, family, dtype):
    target = targets.load(family, checkpoint, 8, dtype, "cpu", MASK, (150,))
    router = torch.promote_types(dtype, torch.float32)
    for name, tensor in target.model.state_dict().items():
        assert tensor.dtype == (router if ".gate." in name else dtype)
    target.prefill([1, 2, 3] * 4)
    assert target(torch.full((2, 8), MASK)).isfinite().all()


def test_a_revision_is_the_weights_and_configuration_themselves(sdar):
    found = [targets.resolve("sdar", str(sdar), None, MASK)]
    assert found[0] == targets.resolve("sdar", str(sdar), "main", MASK)
    change(sdar, rope_theta=5)
    found.append(targets.resolve("sdar", str(sdar), None, MASK))
    for name in ("tokenizer.json", "chat_template.jinja"):
        (sdar / name).write_text("{}")
        found.append(targets.resolve("sdar", str(sdar), None, MASK))
    assert len(set(found)) == 4


@pytest.mark.parametrize(
    ("family", "path", "message"),
    [
        ("sdra", "x", "no family 'sdra'; there are dream, llada, llada2, sdar"),
        ("sdar", "/nowhere/at/all", "no folder /nowhere/at/all"),
    ],
)
def test_what_cannot_be_a_target_is_refused_before_anything_is_loaded(family, path, message):
    with pytest.raises(ValueError, match=message):
        targets.resolve(family, path, None)


def test_a_folder_without_weights_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no config\.json with model\*\.safetensors"):
        targets.resolve("sdar", str(tmp_path), None)


def test_a_checkpoint_of_another_architecture_is_refused(checkpoint, family):
    change(checkpoint, model_type="qwen3")
    with pytest.raises(ValueError, match=r"config\.json: model_type 'qwen3'; '\w+' expected$"):
        load(checkpoint, family)
    (checkpoint / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json: not JSON$"):
        load(checkpoint, family)


@pytest.mark.parametrize(
    ("family", "values", "message"),
    [
        ("sdar", {"rope_theta": ...}, "no rope_theta"),
        ("sdar", {"rope_scaling": {"factor": 2}}, r"rope_scaling {'factor': 2}; only None is known"),
        ("dream", {"use_sliding_window": True}, "use_sliding_window True; only False is known"),
        ("llada", {"block_type": "sequential"}, "block_type 'sequential'; only 'llama' is known"),
        ("llada", {"n_heads": ...}, "no n_heads"),
        ("llada2", {"score_function": "softmax"}, "score_function 'softmax'; only 'sigmoid' is known"),
        ("llada2", {"num_experts": ...}, "no num_experts"),
        ("sdar", {"hidden_act": "nope"}, "hidden_act 'nope'; only 'silu' is known"),
        ("sdar", {"head_dim": None}, ".*head_dim.*"),
        ("sdar", {"rope_theta": None}, ".+"),
        ("llada", {"n_heads": 0}, ".+"),
    ],
)
def test_what_a_configuration_lacks_or_asks_for_is_one_line(tmp_path, family, values, message):
    shutil.copytree(FOLDERS[family], tmp_path, dirs_exist_ok=True)
    change(tmp_path, **values)
    with pytest.raises(ValueError, match=f"config.json: {message}$"):
        load(tmp_path, family)


@pytest.mark.parametrize(
    ("values", "asked", "message"),
    [
        ({"mask_token_id": 160}, (None, None), "config.json: mask_token_id: 160 is no token of a vocab_size 160"),
        ({"mask_token_id": None}, (None, None), "config.json: mask id: 151669 is no token of a vocab_size 160"),
        ({"mask_token_id": 1.5}, (None, None), "config.json: mask_token_id: 1.5 is no token of a vocab_size 160"),
        ({}, (160, None), "mask_id: 160 is no token of a vocab_size 160"),
        ({}, (157, (150, 161)), "stop_ids: 161 is no token of a vocab_size 160"),
        ({"eos_token_id": "x"}, (157, None), "config.json: eos_token_id: 'x' is no token of a vocab_size 160"),
        ({"eos_token_id": ...}, (157, None), "config.json: no eos_token_id; stop_ids of the model's entry must say it"),
        ({"eos_token_id": []}, (157, None), "config.json: no eos_token_id; stop_ids of the model's entry must say it"),
    ],
)
def test_mask_and_stop_ids_are_tokens(sdar, values, asked, message):
    change(sdar, **values)
    with pytest.raises(ValueError, match=f"{message}$"):
        targets.load("sdar", sdar, 8, torch.float32, "cpu", *asked)
    with pytest.raises(ValueError, match=f"^(path: .*)?{message}$"):
        targets.resolve("sdar", str(sdar), None, *asked)


@pytest.mark.parametrize(
    ("published", "asked", "found"),
    [
        ({"mask_token_id": 0}, (None, None), (0, {150})),
        ({"mask_token_id": 5, "eos_token_id": [3, 4]}, (None, None), (5, {3, 4})),
        ({"mask_token_id": 5}, (6, (7, 8)), (6, {7, 8})),
    ],
)
def test_the_model_entrys_ids_go_before_the_checkpoints(sdar, published, asked, found):
    change(sdar, **published)
    config = targets.load("sdar", sdar, 8, torch.float32, "cpu", *asked).config
    assert (config.mask_id, config.stop_ids) == found


def test_biases_of_a_checkpoint_are_not_forgotten(sdar):
    """SDAR has none of its own; its configuration may ask for them."""
    weights = load_file(sdar / "model.safetensors")
    for name in [name for name in weights if name.endswith("_proj.weight") and "self_attn" in name]:
        weights[name.replace("weight", "bias")] = torch.linspace(-1, 1, len(weights[name]))
    change(sdar, attention_bias=True)
    save_file(weights, sdar / "model.safetensors")
    target, ids = load(sdar), torch.arange(8)[None]
    stock = target.model(ids, attention_mask=torch.zeros(1, 1, 8, 8)).logits
    assert torch.allclose(target(ids), stock, atol=1e-4)


@pytest.mark.parametrize("family", FOLDERS)
def test_an_attention_kernel_may_lay_its_result_out_as_it_likes(family, monkeypatch):
    """That of CUDA in float32 gives positions before heads."""
    torchs = torch.nn.functional.scaled_dot_product_attention

    def positions_first(*tensors):
        return torchs(*tensors).transpose(1, 2).contiguous().transpose(1, 2)

    target, node = golden_target(8, family=family), torch.full((1, 8), MASK)
    target.prefill([1, 2, 3])
    target(node)
    once = target(node)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", positions_first)
    assert torch.allclose(target(node), once)


def test_what_a_family_is():
    assert {family: targets.exact(family) for family in targets.FAMILIES} == {
        "dream": False,
        "llada": False,
        "llada2": True,
        "sdar": True,
    }


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_no_draft_crosses_the_edge_of_a_block_whose_cache_is_approximate(family):
    target = golden_target(8, family=family)
    target.prefill([1, 2, 3])
    with pytest.raises(ValueError, match="not exact"):
        target(torch.full((1, 8), MASK), torch.full((1, 16), MASK))
