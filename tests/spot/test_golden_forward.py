"""Logits of every family against those of the authors' own code (tests/golden), cached and not."""

import pytest
import torch
from safetensors.torch import load_file

from spot.targets.packed import KeyValues, Layers, Segment
from tests.spot.support import FOLDERS, golden_target

FORWARD = {family: load_file(folder / "golden_forward.safetensors") for family, folder in FOLDERS.items()}
CAUSAL, BIDIRECTIONAL = ["sdar", "llada2"], ["llada", "dream"]
START = 16  # where the golden stale caches end


def close(ours: torch.Tensor, golden: torch.Tensor) -> bool:
    return torch.allclose(ours, golden, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", CAUSAL)
@pytest.mark.parametrize("block_length", [4, 8])
@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("layout", ["batch", "concat"])
def test_block_by_block_logits_are_the_authors(family, block_length, cache, layout):
    target, ids = golden_target(block_length, torch.float32, family=family), FORWARD[family]["input_ids"][0]
    golden = FORWARD[family][f"logits_full_b{block_length}"][0].split(block_length)
    target.prefill([], layout, cache)
    for index, block in enumerate(ids.split(block_length)):
        ours = target(torch.stack([block, block.flip(0)]))[0]
        target.advance(block)
        assert close(ours, golden[index])
        stored = FORWARD[family].get(f"logits_cached_b{block_length}_block{index}")
        assert stored is None or close(ours, stored[0])


@pytest.mark.parametrize("family", CAUSAL)
@pytest.mark.parametrize("block_length", [4, 8])
def test_prefilling_the_prompt_is_decoding_it_block_by_block(family, block_length):
    ids = FORWARD[family]["input_ids"][0]
    target = golden_target(block_length, torch.float32, family=family)
    assert target.prefill(ids[:-block_length].tolist()) == 1
    golden = FORWARD[family][f"logits_full_b{block_length}"][0]
    assert close(target(ids[None, -block_length:])[0], golden[-block_length:])


@pytest.mark.parametrize("family", CAUSAL)
def test_what_is_stored_are_the_authors_keys_and_values(family):
    target, golden = golden_target(8, torch.float32, family=family), FORWARD[family]
    target.prefill(golden["input_ids"][0].tolist())
    for layer in range(3):
        key, value = target._held.layer(layer)
        assert close(key, golden[f"cache_b8_32.key.{layer}"][0])
        assert close(value, golden[f"cache_b8_32.value.{layer}"][0])


@pytest.mark.parametrize("layer", [1, 2])
def test_tokens_go_to_the_experts_that_the_authors_router_names(layer):
    golden = FORWARD["llada2"]
    target = golden_target(8, torch.float32, family="llada2")
    routed = []
    gate = target.model.model.layers[layer].mlp.gate
    gate.register_forward_hook(lambda module, given, found: routed.append((found[0][-8:], found[2][-8:])))
    target.prefill([])
    for block in golden["input_ids"][0].split(8):
        target(block[None])
        target.advance(block)
    logits, experts = (torch.cat(parts) for parts in zip(*routed, strict=True))
    assert close(logits, golden[f"router_logits_b8.layer{layer}"][0])
    assert torch.equal(experts.sort(-1)[0], golden[f"router_topk_b8.layer{layer}"][0].sort(-1)[0])


def test_a_layer_of_experts_is_the_authors():
    moe, golden = golden_target(8, torch.float32, family="llada2").model.model.layers[1].mlp, FORWARD["llada2"]
    with torch.inference_mode():
        assert close(moe(golden["moe_in"]), golden["moe_out_layer1"])


def shifted(raw: torch.Tensor, family: str) -> torch.Tensor:
    """Dream's golden logits are raw; a position's are those of the position before."""
    return torch.cat([raw[:, :1], raw[:, :-1]], 1) if family == "dream" else raw


def golden_full(family: str, changed: bool = False) -> torch.Tensor:
    name = ("logits_raw" if family == "dream" else "logits_full") + ("_changed" if changed else "")
    return shifted(FORWARD[family][name], family)[0]


@pytest.mark.parametrize("family", BIDIRECTIONAL)
@pytest.mark.parametrize("start", [0, 8, 16, 24])
@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("layout", ["batch", "concat"])
def test_a_block_is_computed_with_the_whole_text_in_its_first_pass_and_always_without_the_cache(
    family, start, cache, layout
):
    """The golden text goes on with other tokens than masks, so that the open block is all of the rest."""
    ids = FORWARD[family]["input_ids"][0]
    target = golden_target(32 - start, torch.float32, family=family)
    target.prefill(ids[:start].tolist(), layout, cache)
    nodes = ids[None, start:].expand(2, -1)
    assert close(target(nodes)[1], golden_full(family)[start:])
    assert close(target(nodes)[0], golden_full(family)[start:])


@pytest.mark.parametrize("family", BIDIRECTIONAL)
@pytest.mark.parametrize("layout", ["batch", "concat"])
def test_without_the_cache_nothing_is_stale(family, layout):
    same, changed = FORWARD[family]["input_ids"][0], FORWARD[family]["input_ids_changed"][0]
    target = golden_target(32 - START, torch.float32, family=family)
    target.prefill(same[:START].tolist(), layout, False)
    ours = target(torch.stack([same[START:], changed[START:]]))
    assert close(ours[0], golden_full(family)[START:]) and close(ours[1], golden_full(family, changed=True)[START:])


@pytest.mark.parametrize("family", BIDIRECTIONAL)
@pytest.mark.parametrize("layout", ["batch", "concat"])
def test_a_stale_prefix_cache_gives_the_authors_stale_logits(family, layout):
    """The golden cache was made before four tokens of the rest were replaced."""
    golden, prefix = FORWARD[family], "logits_raw" if family == "dream" else "logits"
    same, changed = golden["input_ids"][0], golden["input_ids_changed"][0]
    target = golden_target(32 - START, torch.float32, family=family)
    target.prefill(same[:START].tolist(), layout)
    first = target(same[None, START:])
    ours = target(torch.stack([same[START:], changed[START:]]))
    row = 1 if family == "dream" else 0  # Dream's first row is kept from the first pass
    for index, name in enumerate(("same", "changed")):
        stale = golden[f"{prefix}_prefix_cached_{name}"][0]
        assert close(ours[index, row:], stale[: len(stale) - row])
    assert torch.equal(ours[:, :row], first[:, :row].expand(2, -1, -1))
    assert not close(ours[1, row:], golden_full(family, changed=True)[START + row :])


@pytest.mark.parametrize("family", BIDIRECTIONAL)
@pytest.mark.parametrize("changed", [False, True])
def test_over_a_dual_cache_our_layers_give_the_authors_logits(family, changed):
    """Fast-dLLM's dual cache: keys and values of all but the block are held. No target of ours decodes so."""
    golden, prefix = FORWARD[family], "logits_raw" if family == "dream" else "logits"
    model, ids = golden_target(8, torch.float32, family=family).model, golden["input_ids"][0]
    block = slice(START, START + 8)
    tokens = golden["input_ids_changed" if changed else "input_ids"][0, block]
    ours = over_dual_cache(model, ids, block, tokens)
    assert close(ours, golden[f"{prefix}_dual_cached_{'changed' if changed else 'same'}"][0])


@torch.inference_mode()
def over_dual_cache(model, ids: torch.Tensor, block: slice, tokens: torch.Tensor) -> torch.Tensor:
    """Raw logits [B, V] of `tokens` in place of `block` of `ids`, whose other keys and values are used as they are."""
    rest = torch.tensor([i for i in range(len(ids)) if not block.start <= i < block.stop])
    layers, whole, held = Layers(model), KeyValues(model), KeyValues(model)
    layers.run(ids, torch.arange(len(ids)), whole, Segment(1, len(ids)), [], len(ids), rest[:0])
    for layer in range(model.config.num_hidden_layers):
        key, value = whole.layer(layer, len(ids))
        held.write(layer, key[:, rest], value[:, rest])
    held.length = len(rest)
    nodes, positions = [Segment(1, len(tokens))], torch.arange(block.start, block.stop)
    every = torch.arange(len(tokens))
    return layers.logits(layers.run(tokens, positions, held, Segment(1, 0), nodes, block.stop, every))
