"""What a decoding is and counts, and how a pass walks through its drafts."""

import pytest
import torch

from spot.decoder import Settings, cut_at_stop, decode, next_states, open_places, usable, walk
from spot.drafters.ssd import Ssd
from spot.noise import Noise
from spot.targets.protocol import TargetConfig
from spot.tree import State
from tests.spot.support import MASK, STOP, golden_target

TARGETS = {8: golden_target(8)}


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


def test_a_prompt_that_holds_the_mask_token_is_refused():
    with pytest.raises(ValueError, match=f"the prompt holds the mask token, {MASK}, at position 2"):
        decode(TARGETS[8], [1, 2, MASK, 3], Settings(16), Noise(0))


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


def never(block: State) -> bool:
    return False


def test_unusable_drafts_are_dropped_and_the_rest_kept_in_order():
    root = (1, MASK, MASK)
    drafts = [(1, 7, MASK), root, (1, 7, 8), (1, MASK, 8), (1, 7, MASK), (1, MASK), ()]
    assert usable(drafts, root, MASK, never) == [(1, 7, MASK), (1, MASK, 8)]


def test_a_draft_across_the_edge_is_a_full_block_the_text_goes_on_after_and_one_that_is_not_full():
    root = (1, MASK)
    good = [(1, 7, MASK, MASK), (1, 7, MASK, 5)]
    bad = [(1, MASK, MASK, MASK), (1, 7, 5, 5), (1, 7, MASK), (1, 7, MASK, MASK, MASK, MASK), (1, STOP, MASK, MASK)]
    assert usable([*good, *bad], root, MASK, lambda full: STOP in full) == good


def follow(state: State) -> State:
    return state if MASK in state or len(state) > 3 else state + (MASK,) * 3


def test_the_walk_finds_states_by_content_whatever_their_order():
    nodes = [(MASK, MASK, MASK), (4, 5, MASK), (4, MASK, MASK)]
    after = {(0, 0): (4, MASK, MASK), (2, 1): (4, 5, MASK), (1, 2): (4, 5, 6)}
    assert walk(nodes, after, 0, lambda state: state) == ([(0, 0), (2, 1), (1, 2)], (4, 5, 6))
    assert walk(nodes, after | {(0, 0): (MASK, 9, MASK)}, 0, follow) == ([(0, 0)], (MASK, 9, MASK))


def test_the_walk_counts_steps_anew_in_the_next_block():
    full = (4, 5, 6)
    nodes = [(4, 5, MASK), (*full, MASK, MASK, MASK), (*full, 7, MASK, MASK)]
    after = {(0, 9): full, (1, 0): (*full, 7, MASK, MASK), (2, 1): (*full, 7, 8, MASK)}
    assert walk(nodes, after, 9, follow) == ([(0, 9), (1, 0), (2, 1)], (*full, 7, 8, MASK))


def test_a_chain_follows_a_commit_of_several_positions_to_the_deepest_equal_state():
    nodes = [(MASK,) * 4, (4, MASK, MASK, MASK), (4, 5, MASK, MASK), (4, 5, 6, MASK)]
    after = {(0, 3): (4, 5, MASK, MASK), (2, 4): (4, 5, 6, 7)}
    assert walk(nodes, after, 3, lambda state: state) == ([(0, 3), (2, 4)], (4, 5, 6, 7))


class InPairs:
    """A target that is sure of two positions at a time, from the left, and says so only when they are next."""

    config = TargetConfig(block_length=6, mask_id=9, stop_ids=frozenset())
    device = torch.device("cpu")

    def prefill(self, prompt, layout="batch", cache=True, end=None) -> int:
        return 0

    def __call__(self, nodes, edges=None, places=None):
        place = torch.arange(6)
        first = 6 - (nodes == 9).sum(-1, keepdim=True)
        sure = torch.where(place < first + 2, 8.0, 2.0 - 0.1 * place)
        return (sure[..., None] * torch.nn.functional.one_hot(place + 1, 10))[:, places]

    def advance(self, block) -> None: ...


def test_a_chain_of_single_commits_is_jumped_along_under_a_threshold():
    asked = Settings(6, threshold=0.9)
    control = decode(InPairs(), [], asked, Noise(0))
    found = decode(InPairs(), [], asked, Noise(0), Ssd(), 8)
    assert control.steps == found.steps == [((0, 1), (1, 2)), ((2, 3), (3, 4)), ((4, 5), (5, 6))]
    # drafted at 4 masks left: one, two and three more commits; the step makes two, and from there the last two
    assert [(p.drafted, p.accepted) for p in found.passes] == [(0, 0), (3, 1)]


def test_a_node_is_stepped_at_every_number_of_steps_a_threshold_may_reach_it_after():
    nodes = [(1, MASK, MASK, MASK), (1, 2, 3, MASK), (1, 2, 3, 4, 5, MASK, MASK, MASK)]
    logits = torch.randn(3, 3, MASK + 3, generator=torch.Generator().manual_seed(0))
    single = next_states(logits, nodes, 0, 6, MASK, Settings(8, 1.0), Noise(0))
    several = next_states(logits, nodes, 0, 6, MASK, Settings(8, 1.0, threshold=0.5), Noise(0))
    assert sorted(single) == [(0, 6), (1, 8), (2, 1)]
    assert sorted(several) == [(0, 6), (1, 7), (1, 8), (2, 1)]


def test_a_pass_gives_every_node_the_step_it_would_take_alone():
    nodes = [(1, MASK, MASK, MASK), (1, 2, MASK, MASK), (1, 2, 3, 4, 5, MASK, MASK, MASK)]
    logits = torch.randn(3, 3, MASK + 3, generator=torch.Generator().manual_seed(0))
    assert open_places(nodes, MASK) == [1, 2, 3]
    for asked in (Settings(8), Settings(8, 1.0), Settings(8, 1.0, threshold=0.5), Settings(8, threshold=0.01)):
        together = next_states(logits, nodes, 12, 6, MASK, asked, Noise(0))
        for (n, step), after in together.items():
            start = 12 + len(nodes[n]) - 4
            opened = nodes[n][-4:]
            rows = [place - 1 for place in open_places([opened], MASK)]
            alone = next_states(logits[n, rows][None], [opened], start, step, MASK, asked, Noise(0))
            assert after == nodes[n][:-4] + alone[0, step]
