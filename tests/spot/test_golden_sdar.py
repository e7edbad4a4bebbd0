"""The SDAR target against logits and trajectories from the authors' own code (tests/golden/sdar)."""

import json

import pytest
import torch
from safetensors.torch import load_file

from spot.decoder import Settings, decode
from spot.noise import Noise
from tests.spot.support import GOLDEN, golden_target

FORWARD = load_file(GOLDEN / "golden_forward.safetensors")
RUNS = [
    run
    for run in json.loads((GOLDEN / "golden_decode.json").read_text())["runs"]
    if run["params"]["strategy"] == "static" and run["params"]["denoising_steps"] == run["params"]["block_length"]
]


@pytest.mark.parametrize("block_length", [4, 8])
def test_cached_logits_are_the_authors(block_length):
    target = golden_target(block_length, torch.float32)
    blocks = FORWARD["input_ids"][0].split(block_length)
    target.prefill([])
    for index, block in enumerate(blocks):
        logits = target(block[None])
        target.advance(block)
        if (golden := FORWARD.get(f"logits_cached_b{block_length}_block{index}")) is not None:
            assert torch.allclose(logits, golden, atol=1e-4)


@pytest.mark.parametrize("block_length", [4, 8])
def test_prefilling_the_prompt_is_decoding_it_block_by_block(block_length):
    ids = FORWARD["input_ids"][0]
    target = golden_target(block_length, torch.float32)
    assert target.prefill(ids[:-block_length].tolist()) == 1
    last = target(ids[None, -block_length:])
    assert torch.allclose(last, FORWARD[f"logits_full_b{block_length}"][:, -block_length:], atol=1e-4)


@pytest.mark.parametrize("run", RUNS, ids=[run["name"] for run in RUNS])
@pytest.mark.parametrize("method", ["draft-free", "stale", "spot", "absurd"])
def test_every_method_commits_what_the_authors_code_commits_in_the_same_order(run, method, drafters):
    settings = run["params"]
    target = golden_target(settings["block_length"], torch.float32, frozenset(settings["stop_ids"]))
    golden = [(position, token) for step in run["forwards"] for position, token, _ in step["commit"]]
    found = decode(target, run["prompt_ids"], Settings(settings["gen_length"]), Noise(0), drafters.get(method), 6)
    assert found.commits == golden
    if method == "draft-free":
        assert found.nfe == sum(bool(step["commit"]) for step in run["forwards"])
