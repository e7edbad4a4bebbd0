"""Why two decodings that must agree do not: rounding, or a bug (design.md §3, losslessness invariant)."""

from collections.abc import Callable
from dataclasses import replace

import torch

from spot.decoder import Commit, Decoding, Visit, Watch

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""How far rounding may move a logit between batch shapes, as a share of the largest logit of the block."""


def explain_difference(
    control: Decoding,
    method: Decoding,
    again: Callable[[Watch], Decoding],
    method_again: Callable[[Watch], Decoding],
    step_rule: Callable[[Visit], tuple[Commit, ...]],
) -> str:
    """ "numeric" or "bug", judged at the first step in which `method` differs from `control`.

    "numeric" asks that both were in the same state, that each step follows from its own logits by `step_rule` (which
    gives a step's commits), and that these logits agree within the dtype's tolerance. `again`
    and `method_again` repeat the two decodings with a watch, since logits are not kept while decoding.
    """
    pairs = zip(control.steps, method.steps, strict=False)
    first = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if first is None:
        return "bug"  # one trajectory is a prefix of the other: the same states ended differently
    visit, method_visit = _visit(again, control, first), _visit(method_again, method, first)
    if visit is None or method_visit is None or (visit.start, visit.state) != (method_visit.start, method_visit.state):
        return "bug"
    if (step_rule(visit), step_rule(method_visit)) != (control.steps[first], method.steps[first]):
        return "bug"
    scale = visit.logits.abs().max().clamp(min=1.0)
    close = (visit.logits - method_visit.logits).abs().max() <= TOLERANCE[visit.logits.dtype] * scale
    return "numeric" if close else "bug"


def _visit(decode_again: Callable[[Watch], Decoding], expected: Decoding, index: int) -> Visit | None:
    """The visit of the `index`-th step; None if the decoding does not repeat itself up to there."""
    visits: list[Visit] = []

    def watch(visit: Visit) -> None:
        visits.append(visit if len(visits) == index else replace(visit, logits=visit.logits[:0]))

    repeated = decode_again(watch)
    return visits[index] if repeated.steps[: index + 1] == expected.steps[: index + 1] else None
