"""Why two decodings that must agree do not: rounding, or a bug (design.md §3, losslessness invariant)."""

from collections.abc import Callable

import torch
from torch import Tensor

from spot.decoder import Decoding, Watch
from spot.tree import State

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""How far rounding may move a logit between batch shapes, as a share of the largest logit of the block."""


def explain_difference(
    control: Decoding, method: Decoding, again: Callable[[Watch], Decoding], method_again: Callable[[Watch], Decoding]
) -> str:
    """ "numeric" where the first commit to differ follows from logits within the dtype's tolerance, else "bug".

    `again` and `method_again` repeat the two decodings with a watch, since logits are not kept while decoding.
    """
    pairs = zip(control.commits, method.commits, strict=False)
    first = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if first is None:
        return "bug"  # one trajectory is a prefix of the other: the same states ended differently
    state, logits = _visit(again, control, first)
    method_state, method_logits = _visit(method_again, method, first)
    if state is None or state != method_state:
        return "bug"
    scale = logits.abs().max().clamp(min=1.0)
    close = (logits - method_logits).abs().max() <= TOLERANCE[logits.dtype] * scale
    return "numeric" if close else "bug"


def _visit(decode_again: Callable[[Watch], Decoding], expected: Decoding, index: int) -> tuple[State | None, Tensor]:
    """State and logits of the `index`-th commit; no state if the decoding does not repeat itself up to there."""
    visits: list[tuple[State, Tensor]] = []

    def watch(start: int, state: State, logits: Tensor) -> None:
        visits.append((state, logits.clone() if len(visits) == index else logits[:0]))

    repeated = decode_again(watch)
    state, logits = visits[index]
    return (state if repeated.commits[: index + 1] == expected.commits[: index + 1] else None), logits
