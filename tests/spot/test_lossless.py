"""Drafts decide speed alone: the losslessness invariant of design.md §3, at every setting."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spot.decoder import Settings, decode
from spot.noise import Noise
from tests.spot.support import FOLDERS, TOLD, Foresight, every_drafter, golden_target, random_order_model, told

STOPS = frozenset(range(135, 157))
TARGETS = {block: golden_target(block, stop_ids=STOPS) for block in (4, 8, 16)}
FAMILIES = {(family, size): golden_target(size, stop_ids=STOPS, family=family) for family in FOLDERS for size in (4, 8)}
METHODS = [*every_drafter(random_order_model()), *TOLD]


@settings(max_examples=160, deadline=None, derandomize=True)
@given(
    method=st.sampled_from(METHODS),
    budget=st.integers(1, 20),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    threshold=st.sampled_from([None, 0.15, 0.5, 0.9]),
    seed=st.integers(0, 10**6),
    block=st.sampled_from([4, 8, 16]),
    prompt=st.lists(st.integers(0, 149), min_size=1, max_size=20),  # masks alone are one great tie
    stop=st.sampled_from(["eos", "length"]),
    layout=st.sampled_from(["batch", "concat"]),
    cache=st.booleans(),
    pad_pieces=st.sampled_from([0, -1, 5]),
)
def test_any_drafts_leave_text_and_trajectory_as_they_are(
    drafters, method, budget, temperature, threshold, seed, block, prompt, stop, layout, cache, pad_pieces
):
    """And so do the layout, the prefix cache and padding: the control has the defaults."""
    target, noise = TARGETS[block], Noise.keyed(seed, "task", "row")
    control = decode(target, prompt, Settings(12, temperature, stop, threshold), noise)
    asked = Settings(12, temperature, stop, threshold, layout, cache, pad_pieces=pad_pieces)
    found = decode(target, prompt, asked, noise, drafters.get(method) or told(method, control), budget)
    assert found.steps == control.steps
    assert (found.tokens, found.length) == (control.tokens, control.length)
    assert found.nfe + sum(p.accepted for p in found.passes) == len(found.steps) == control.nfe
    assert found.nfe <= control.nfe
    assert all(p.accepted <= p.drafted <= budget for p in found.passes)


@settings(max_examples=160, deadline=None, derandomize=True)
@given(
    family=st.sampled_from(sorted(FOLDERS)),
    method=st.sampled_from(METHODS),
    budget=st.integers(1, 20),
    temperature=st.sampled_from([0.0, 0.7, 1.0, 2.0]),
    threshold=st.sampled_from([None, 0.15, 0.5, 0.9]),
    seed=st.integers(0, 10**6),
    block=st.sampled_from([4, 8]),
    prompt=st.lists(st.integers(0, 149), min_size=1, max_size=20),
    stop=st.sampled_from(["eos", "length"]),
    layout=st.sampled_from(["batch", "concat"]),
    cache=st.booleans(),
    suffix=st.sampled_from(["keep", "skip"]),
    pad_pieces=st.sampled_from([0, -1, 5]),
)
def test_drafts_change_nothing_in_any_family(
    drafters,
    family,
    method,
    budget,
    temperature,
    threshold,
    seed,
    block,
    prompt,
    stop,
    layout,
    cache,
    suffix,
    pad_pieces,
):
    """The control keeps the cache that the drafted decoding has: where it is approximate, it decides the text."""
    target, noise = FAMILIES[family, block], Noise.keyed(seed, "task", "row")
    control = decode(target, prompt, Settings(12, temperature, stop, threshold, "batch", cache, suffix), noise)
    asked = Settings(12, temperature, stop, threshold, layout, cache, suffix, pad_pieces)
    found = decode(target, prompt, asked, noise, drafters.get(method) or told(method, control), budget)
    assert (found.steps, found.tokens, found.length) == (control.steps, control.tokens, control.length)
    assert found.nfe + sum(p.accepted for p in found.passes) == control.nfe


@pytest.mark.parametrize("family", sorted(FOLDERS))
@pytest.mark.parametrize("threshold", [None, 0.5])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_layout_and_budget_gives_one_text(drafters, family, threshold, temperature):
    target, noise, saved = FAMILIES[family, 8], Noise.keyed(3, "task", family), 0
    for prompt in ([7, 11, 13], [(17 * i) % 149 for i in range(21)]):
        control = decode(target, prompt, Settings(16, temperature, "length", threshold), noise)
        for layout in ("batch", "concat"):
            asked = Settings(16, temperature, "length", threshold, layout)
            for budget in (0, 4, 8, 20):
                found = decode(target, prompt, asked, noise, drafters["spot"], budget)
                assert (found.steps, found.tokens) == (control.steps, control.tokens)
                saved += control.nfe - found.nfe
    assert saved > 0


def test_drafts_of_every_method_are_taken_somewhere(drafters):
    """The invariant is not kept by drafting nothing that comes true."""
    taken = dict.fromkeys(METHODS, 0)
    for temperature, threshold in [(0.0, None), (1.0, None), (0.0, 0.9)]:
        asked = Settings(13, temperature, "length", threshold)
        control = decode(TARGETS[8], [1, 2, 3], asked, Noise(5))
        for method in METHODS:
            found = decode(TARGETS[8], [1, 2, 3], asked, Noise(5), drafters.get(method) or told(method, control), 12)
            taken[method] += control.nfe - found.nfe
    assert [method for method, passes in taken.items() if passes == 0] == ["absurd"]


@pytest.mark.parametrize("layout", ["batch", "concat"])
@pytest.mark.parametrize("cache", [True, False])
def test_texts_are_the_same_in_every_layout_with_and_without_the_cache(layout, cache):
    for temperature in (0.0, 1.0):
        plain, asked = Settings(20, temperature), Settings(20, temperature, layout=layout, cache=cache)
        found = decode(TARGETS[8], list(range(11)), asked, Noise(1))
        assert found.steps == decode(TARGETS[8], list(range(11)), plain, Noise(1)).steps


@pytest.mark.parametrize("prompt_length", [0, 5, 8, 21])
@pytest.mark.parametrize("method", [None, "spot", "stale edge", "foresight"])
@pytest.mark.parametrize("cache", [True, False])
def test_nfe_and_cache_passes_are_all_the_forwards_there_are(prompt_length, method, cache, drafters):
    target, prompt, asked = golden_target(), list(range(prompt_length)), Settings(20, cache=cache)
    control, forwards = decode(target, prompt, asked, Noise(0)), []
    target.register_forward_hook(lambda *_: forwards.append(1))
    drafter = told(method, control) if method == "foresight" else drafters.get(method)
    found = decode(target, prompt, asked, Noise(0), drafter, 4)
    assert found.nfe + found.cache_passes == len(forwards)
    assert found.cache_passes == (cache and prompt_length >= 8)


def random_blocks(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 150, (count, 8), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("layout", ["batch", "concat"])
@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("stored", [0, 24])
def test_a_node_has_the_logits_it_has_alone_and_a_next_block_those_it_has_once_the_full_one_is_stored(
    layout, cache, stored
):
    target, nodes, edges = golden_target(8), random_blocks(5), torch.cat([random_blocks(3, 1), random_blocks(3, 2)], 1)
    target.prefill(list(range(stored)), layout, cache)
    together = target(nodes, edges)
    assert together.shape[:2] == (8, 8)
    for node, row in zip(nodes, together, strict=False):
        assert torch.allclose(target(node[None])[0], row, atol=1e-12)
    for edge, row in zip(edges, together[5:], strict=True):
        target.prefill(list(range(stored)), layout, cache)
        target.advance(edge[:8])
        assert torch.allclose(target(edge[None, 8:])[0], row, atol=1e-12)


@pytest.mark.parametrize("pending", [0, 8])
def test_one_row_with_all_nodes_gives_the_logits_of_a_row_each(pending):
    target, logits = golden_target(8), []
    for layout in ("batch", "concat"):
        for cache in (True, False):
            target.prefill(list(range(16)), layout, cache)
            if pending:
                target.advance(torch.arange(pending))
            logits.append(target(random_blocks(4), random_blocks(4, 1).view(2, 16)))
    assert all(torch.allclose(logits[0], other, atol=1e-12) for other in logits[1:])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_reach_across_the_block_edge_and_one_pass_may_fill_two_blocks(temperature):
    asked = Settings(32, temperature, "length")
    control = decode(TARGETS[8], list(range(8)), asked, Noise(0))
    steps = tuple(control.steps)
    inside = decode(TARGETS[8], list(range(8)), asked, Noise(0), Foresight(steps, edge=False), 40)
    across = decode(TARGETS[8], list(range(8)), asked, Noise(0), Foresight(steps), 40)
    assert inside.steps == across.steps == control.steps
    # a block's first pass has no table and commits one; the second ends the block, and across the edge the next one too
    assert [p.accepted + 1 for p in inside.passes] == [1, 7] * 4
    assert [p.accepted + 1 for p in across.passes] == [1, 15] * 2
