"""What the stale table and the rankings are worth, on a target that is worked out by hand and on a random one."""

from dataclasses import replace

import pytest
import torch

from spot.analysis import MEASURES, NOISE_AWARE, ORDER_MODEL, STALE, TOKENS, guess, measure, watch
from spot.decoder import Settings
from spot.noise import Noise
from spot.targets.protocol import TargetConfig
from spot.training.order import DEEPEST
from tests.spot.support import golden_target, random_order_model

B, MASK, VOCABULARY = 4, 9, 10
SETTINGS = Settings(gen_length=2 * B, stop="length")


class Toy:
    """Writes `tokens`, at the positions of every block in `order`. `fickle` names another token until the last moment.

    Its confidences follow `order` throughout, unless `hides` them: then only the next position looks likely.
    """

    device = torch.device("cpu")

    def __init__(self, order=(2, 0, 3, 1), tokens=(5, 6, 7, 8), fickle=False, hides=False):
        self.config = TargetConfig(B, MASK, frozenset())
        self.order, self.tokens, self.fickle, self.hides = order, tokens, fickle, hides

    def prefill(self, prompt, layout="batch", cache=True, end=None):
        return 0

    def advance(self, block):
        pass

    def __call__(self, nodes, edges=None, places=None):
        return torch.stack([self._logits(node) for node in nodes.tolist()])[:, places]

    def _logits(self, block):
        logits = torch.zeros(B, VOCABULARY)
        coming = [position for position in self.order if block[position] == MASK]
        for rank, position in enumerate(coming):
            right = self.tokens[position]
            late = rank > 0
            token = (right + 1) % 5 if self.fickle and late else right
            height = (rank if self.hides and late else -rank) + 20.0 - 10 * (self.hides and late)
            logits[position, token] = height
        return logits


def shares(found, names):
    return {name: found.by_depth(name)[: B - 1] for name in names}


def test_a_target_that_shows_its_order_and_its_tokens_is_foretold_wholly():
    found = measure(Toy(), [([], Noise(0))], SETTINGS)
    assert shares(found, found.hits) == {name: [1.0] * 3 for name in (TOKENS, STALE, NOISE_AWARE)}
    assert found.by_block(STALE) == [1.0, 1.0]


def test_questions_are_counted_by_depth_and_block():
    found = measure(Toy(), [([], Noise(0)), ([1, 2], Noise(1))], SETTINGS)
    # Two blocks of four commits, the first without a table: 3 + 3; a prompt of two leaves two positions in block 0.
    assert found.asked[:4].tolist() == [[3 + 1, 3 + 3, 3], [2, 2 + 2, 2], [1, 1 + 1, 1], [0, 0, 0]]
    assert found.by_depth(TOKENS)[3:] == [None] * (DEEPEST - 3)


def test_a_token_that_changes_before_it_is_committed_is_not_named():
    found = measure(Toy(fickle=True), [([], Noise(0))], SETTINGS)
    assert shares(found, [TOKENS, STALE]) == {TOKENS: [0.0] * 3, STALE: [1.0] * 3}


def test_an_order_that_confidence_turns_around_is_right_only_where_one_position_is_left():
    found = measure(Toy(hides=True), [([], Noise(0))], SETTINGS)
    # Behind the next one the likeliest is the last: with two masked left it is wrong, with one there is no other.
    assert found.by_depth(STALE)[:3] == [1 / 3, 1 / 2, 1.0]
    assert found.by_depth(TOKENS)[:3] == [1.0] * 3


def test_without_an_order_model_its_line_is_absent():
    assert ORDER_MODEL not in measure(Toy(), [([], Noise(0))], SETTINGS).hits


def test_the_threshold_rule_is_refused():
    with pytest.raises(ValueError, match="threshold: a step commits one position"):
        measure(Toy(), [([], Noise(0))], replace(SETTINGS, threshold=0.9))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_on_a_random_target_the_measures_agree_with_a_plain_reading_of_their_definitions(temperature):
    target, order, noise = golden_target(), random_order_model(), Noise(3)
    settings = Settings(24, temperature, "length")
    seen = watch(target, [3, 1, 4], settings, noise)
    answers = guess(seen, noise, settings, order)
    expected = [
        [depth, int(seen.block[table]), *plainly(seen, table, depth, temperature, noise, order)]
        for depth in range(DEEPEST)
        for table in range(len(seen.step))
        if seen.left[table] > depth
    ]
    assert answers.tolist() == expected and len(MEASURES) == len(expected[0]) - 2


def plainly(seen, table, depth, temperature, noise, order):
    """Token, order model, stale confidence, noise-aware: a position at a time."""
    ahead = table + 1 + depth
    masked = [i for i in range(8) if seen.masked[ahead, i]]
    named, aware = {}, {}
    for i in masked:
        stale, index = seen.log_probs[table, i].double(), seen.indices[table, i]
        gumbel = noise.gumbel(seen.start[ahead] + i, seen.step[ahead], index)
        rank = (stale / temperature + gumbel if temperature else stale).argmax()
        named[i] = int(index[rank])
        aware[i] = float((stale / (temperature or 1.0)).log_softmax(-1)[rank])
    where = int(seen.position[ahead])
    masks = [seen.masked[row][None] for row in (table, table + 1, ahead)]
    with torch.inference_mode():
        guessed = order(seen.log_probs[table][None], *masks).argmax()
    stale_best = max(masked, key=lambda i: float(seen.log_probs[table, i, 0]))
    aware_best = max(masked, key=aware.__getitem__)
    return [named[where] == int(seen.token[ahead]), int(guessed) == where, stale_best == where, aware_best == where]
