"""Drafts decide speed alone: the losslessness invariant of design.md §3, and what a decoding counts."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spot.decoder import Settings, cut_at_stop, decode, usable, walk
from spot.noise import Noise
from tests.spot.support import MASK, STOP, golden_target

TARGETS = {block: golden_target(block) for block in (4, 8, 16)}


@settings(max_examples=40, deadline=None)
@given(
    method=st.sampled_from(["stale", "spot", "absurd"]),
    budget=st.integers(1, 20),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    seed=st.integers(0, 10**6),
    block=st.sampled_from([4, 8, 16]),
    prompt=st.lists(st.integers(0, 149), max_size=20),
    stop=st.sampled_from(["eos", "length"]),
)
def test_any_drafts_leave_text_and_trajectory_as_they_are(
    drafters, method, budget, temperature, seed, block, prompt, stop
):
    asked, noise = Settings(16, temperature, stop), Noise.keyed(seed, "task", "row")
    control = decode(TARGETS[block], prompt, asked, noise)
    found = decode(TARGETS[block], prompt, asked, noise, drafters[method], budget)
    assert found.commits == control.commits
    assert (found.tokens, found.length) == (control.tokens, control.length)
    assert found.nfe <= control.nfe
    assert found.nfe + sum(p.accepted for p in found.passes) == control.nfe == len(control.commits)


def test_a_sample_does_not_depend_on_what_was_decoded_before_it():
    target, noise = golden_target(), Noise.keyed(3, "task", "row")
    alone = decode(target, [1, 2, 3], Settings(24, 1.0), noise)
    decode(target, list(range(40)), Settings(16, 1.0), Noise.keyed(4, "task", "other"))
    assert decode(target, [1, 2, 3], Settings(24, 1.0), noise).commits == alone.commits


def test_other_seeds_rows_and_tasks_draw_other_noise():
    texts = {
        tuple(decode(TARGETS[8], [1, 2, 3], Settings(16, 1.5, "length"), Noise.keyed(*key)).tokens)
        for key in [(0, "a", "r"), (1, "a", "r"), (0, "b", "r"), (0, "a", "s")]
    }
    assert len(texts) == 4


@pytest.mark.parametrize("prompt_length", [0, 5, 8, 21])
@pytest.mark.parametrize("method", [None, "spot", "stale"])
def test_nfe_and_cache_passes_are_all_the_forwards_there_are(prompt_length, method, drafters):
    target, forwards = golden_target(), []
    target.register_forward_hook(lambda *_: forwards.append(1))
    found = decode(target, list(range(prompt_length)), Settings(20), Noise(0), drafters.get(method), 4)
    assert found.nfe + found.cache_passes == len(forwards)
    assert found.cache_passes == (prompt_length >= 8)


def test_a_perfect_drafter_needs_one_pass_to_start_a_block_and_as_few_more_as_the_budget_allows():
    target, noise = golden_target(8), Noise(0)
    control = decode(target, list(range(8)), Settings(16, stop="length"), noise)

    class Perfect:
        def draft(self, context, budget):
            done = sum(p < context.start for p, _ in control.commits) + context.step
            state, states = list(context.block), []
            for position, token in control.commits[done : done + budget]:
                state[position - context.start] = token
                states.append(tuple(state))
            return states

    # the first pass of a block commits 1; with budget 3 a later pass moves 3 drafts on and commits a 4th: 1 + 4 + 3
    assert decode(target, list(range(8)), Settings(16, stop="length"), noise, Perfect(), 3).nfe == 2 * 3


def test_decoding_ends_after_the_block_with_a_stop_id_unless_told_to_go_on():
    free = golden_target(8, stop_ids=frozenset())
    commits = decode(free, [1, 2, 3], Settings(32), Noise(0)).commits
    stop_id = next(token for position, token in commits if 8 <= position < 16)
    end = min(position for position, token in commits if token == stop_id) // 8 * 8 + 8
    target = golden_target(8, stop_ids=frozenset({stop_id}))
    ended = decode(target, [1, 2, 3], Settings(32), Noise(0))
    assert ended.commits == [c for c in commits if c[0] < end] != commits
    assert stop_id not in ended.tokens and ended.length == len(ended.tokens) + 1
    assert decode(target, [1, 2, 3], Settings(32, stop="length"), Noise(0)).commits == commits


def test_a_stop_id_in_the_prompt_does_not_stop():
    target = golden_target(8, stop_ids=frozenset({STOP}))
    assert decode(target, [STOP] * 11, Settings(16), Noise(0)).nfe > 5


def test_text_is_cut_at_gen_length_though_the_last_block_is_decoded_whole():
    found = decode(golden_target(8, stop_ids=frozenset()), [1, 2, 3], Settings(9), Noise(0))
    assert len(found.commits) == 13 and len(found.tokens) == found.length == 9


def test_cut_at_stop_keeps_what_stands_before_the_first_stop_id():
    assert cut_at_stop([4, 5, STOP, 6, STOP], frozenset({STOP})) == [4, 5]
    assert cut_at_stop([4, 5], frozenset({STOP})) == [4, 5]


def test_unusable_drafts_are_dropped_and_the_rest_kept_in_order():
    root = (1, MASK, MASK)
    drafts = [(1, 7, MASK), root, (1, 7, 8), (1, MASK, 8), (1, 7, MASK)]
    assert usable(drafts, root, MASK) == [(1, 7, MASK), (1, MASK, 8)]


def test_the_walk_finds_states_by_content_whatever_their_order():
    nodes = [(MASK, MASK, MASK), (4, 5, MASK), (4, MASK, MASK)]
    assert walk(nodes, [0, 2, 1], [4, 6, 5]) == ([0, 2, 1], (4, 5, 6))
    assert walk(nodes, [1, 2, 1], [9, 6, 5]) == ([0], (MASK, 9, MASK))


def test_a_pass_with_many_nodes_gives_each_node_the_logits_it_has_alone():
    target = golden_target(8)
    nodes = torch.randint(0, 150, (5, 8), generator=torch.Generator().manual_seed(0))
    target.prefill(list(range(24)))
    together = target(nodes)
    assert all(
        torch.allclose(target(node[None])[0], row, atol=1e-12) for node, row in zip(nodes, together, strict=True)
    )
