"""The oracles: what drafting would save if part of the answer were known."""

import math

import pytest

from spot.decoder import Settings, decode
from spot.drafters.oracle import KNOWS, Oracle, load
from spot.noise import Noise
from tests.spot.support import golden_target

TARGET, PROMPT = golden_target(8, stop_ids=frozenset()), list(range(11))


def passes_by_block(steps, budget: int) -> int:
    """A block's first pass has no table and makes one step; each later one makes the drafted ones and one more."""
    blocks = {}
    for step in steps:
        blocks[step[0][0] // 8] = blocks.get(step[0][0] // 8, 0) + 1
    return sum(1 + math.ceil((count - 1) / (budget + 1)) for count in blocks.values())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("budget", [1, 3, 10])
def test_an_oracle_of_both_needs_the_passes_that_counting_says(temperature, budget):
    asked = Settings(21, temperature, "length")
    control = decode(TARGET, PROMPT, asked, Noise(0))
    found = decode(TARGET, PROMPT, asked, Noise(0), Oracle("both").of(control), budget)
    assert found.steps == control.steps
    masks = [5, 8, 8]
    assert found.nfe == sum(1 + math.ceil((m - 1) / (budget + 1)) for m in masks)
    assert found.nfe == passes_by_block(control.steps, budget)


@pytest.mark.parametrize("threshold", [0.02, 0.3])
@pytest.mark.parametrize("budget", [1, 3, 10])
def test_under_a_threshold_it_counts_steps_instead_of_masks(threshold, budget):
    asked = Settings(21, 0.0, "length", threshold)
    control = decode(TARGET, PROMPT, asked, Noise(0))
    found = decode(TARGET, PROMPT, asked, Noise(0), Oracle("both").of(control), budget)
    assert any(len(step) > 1 for step in control.steps)
    assert found.nfe == passes_by_block(control.steps, budget)


@pytest.mark.parametrize("threshold", [None, 0.9])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_knowing_part_of_the_answer_is_never_better_than_knowing_all(temperature, threshold):
    asked = Settings(21, temperature, "length", threshold)
    control = decode(TARGET, PROMPT, asked, Noise(0))
    nfe = {knows: decode(TARGET, PROMPT, asked, Noise(0), Oracle(knows).of(control), 6).nfe for knows in KNOWS}
    assert nfe["both"] == min(nfe.values()) and max(nfe.values()) <= control.nfe


def test_an_oracle_that_knows_something_else_is_refused():
    with pytest.raises(ValueError, match="knows: 'nothing'; one of positions, tokens, both expected"):
        load(None, "cpu", knows="nothing")
