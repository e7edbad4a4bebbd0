"""Spiffy's calibration: what is counted on a trace, and which formulas make the graph."""

import torch

from spot.drafters.spiffy import Formula
from spot.training.spiffy import calibrate
from spot.training.traces import Trace

NEVER = -20.0


def trace(steps: list[list[int]], confidence: list[float], ranks: dict[int, int] | None = None) -> Trace:
    """A block of as many positions as `confidence` has, the same table before each step; position p's token is p + 10.

    `ranks` says at which place of its table row a position's own token stands, 0 if it is not named.
    """
    size = len(confidence)
    masked = [torch.ones(size, dtype=torch.bool)]
    for positions in steps:
        masked.append(masked[-1].clone())
        masked[-1][positions] = False
    indices = torch.zeros(len(steps), size, 32, dtype=torch.int32)
    log_probs = torch.full((len(steps), size, 32), NEVER)
    for position, log_p in enumerate(confidence):
        indices[:, position, (ranks or {}).get(position, 0)] = position + 10
        log_probs[:, position, 0] = log_p
    return Trace(log_probs, indices, torch.stack(masked), torch.arange(size, dtype=torch.int32) + 10, 0)


def test_a_formula_names_positions_by_confidence_among_those_masked_after_the_last_commit():
    formulas = calibrate([trace([[0], [2], [1], [3]], [-1.0, -3.0, -2.0, -4.0])], 10)
    assert Formula(((0, 0, 0),), 3) in formulas  # after 0 it is 2 that is the surest, after 2 it is 1
    assert Formula(((0, 0, 0), (1, 0, 1)), 2) in formulas


def test_a_token_is_named_by_its_rank_and_unnameable_ones_end_the_path():
    second = calibrate([trace([[0], [1], [2]], [-1.0, -2.0, -3.0], {1: 1})], 10)
    assert Formula(((0, 1, 0),), 1) in second
    beyond = calibrate([trace([[0], [1], [2]], [-1.0, -2.0, -3.0], {1: 9})], 10)
    assert [f.fills for f in beyond] == [((0, 0, 0),)]  # only the path that starts after 1


def test_a_threshold_step_fills_several_positions_at_one_depth():
    formulas = calibrate([trace([[0], [1, 2], [3]], [-1.0, -2.0, -3.0, -4.0])], 10)
    assert Formula(((0, 0, 0), (1, 0, 0)), 1) in formulas
    assert Formula(((0, 0, 0), (1, 0, 0), (2, 0, 1)), 1) in formulas


def test_formulas_are_chosen_by_their_count_and_their_parents_and_hang_together():
    often, seldom = (
        trace([[0], [1], [2], [3]], [-1.0, -2.0, -3.0, -4.0]),
        trace([[0], [3], [2], [1]], [-1.0, -2, -3, -4]),
    )
    formulas = calibrate([often] * 5 + [seldom], 100)
    assert [formula.fills for formula in formulas[:2]] == [((0, 0, 0),), ((0, 0, 0), (1, 0, 1))]
    known = [frozenset()]
    for formula in formulas:
        assert any(parent < formula.ranks and len(formula.ranks - parent) == 1 for parent in known)
        known.append(formula.ranks)


def test_a_smaller_graph_is_the_beginning_of_a_larger_one():
    traces = [
        trace([[0], [3], [1], [2]], [-1.0, -2.0, -3.0, -4.0]),
        trace([[2], [1], [0], [3]], [-1.0, -2.5, -2.0, -4.0]),
    ]
    assert calibrate(traces, 3) == calibrate(traces, 6)[:3]
