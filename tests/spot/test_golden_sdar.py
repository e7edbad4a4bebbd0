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
    if run["params"]["strategy"] in ("static", "dynamic")
    and run["params"]["denoising_steps"] == run["params"]["block_length"]
]
METHODS = ["draft-free", "stale", "stale edge", "spot", "spot edge", "ssd", "blockspec", "spiffy", "absurd"]


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
@pytest.mark.parametrize("method", METHODS)
def test_every_method_commits_what_the_authors_code_commits_in_the_same_steps(run, method, drafters):
    """One position a step ("static"), or all over the threshold ("dynamic")."""
    given = run["params"]
    target = golden_target(given["block_length"], torch.float32, frozenset(given["stop_ids"]))
    golden = [tuple(sorted((p, token) for p, token, _ in step["commit"])) for step in run["forwards"] if step["commit"]]
    asked = Settings(given["gen_length"], threshold=given["confidence_threshold"])
    found = decode(target, run["prompt_ids"], asked, Noise(0), drafters.get(method), 6)
    assert found.steps == golden
    if method == "draft-free":
        assert found.nfe == len(golden)
