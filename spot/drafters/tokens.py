"""Which tokens a hypothetical commit may take, read from the stale table and the shared noise."""

import torch
from torch import Tensor

from spot.drafters.growth import Branches
from spot.drafters.protocol import Context, StaleTable
from spot.noise import Noise


def token_candidates(context: Context, found: Branches, gate: float) -> tuple[Tensor, Tensor]:
    """The two best tokens a position: log p and token id, [F, B, 2].

    The second candidate is -inf where the first has probability `gate` or more (the published tokgate).
    """
    scores = coupled_scores(context, found.table, found.start, found.steps)
    log_p, rank = scores.topk(2)
    token = found.table.indices.expand_as(scores).gather(-1, rank)
    return gated(log_p, log_p[..., 0].exp() >= gate), token


def gated(log_p: Tensor, sure: Tensor) -> Tensor:
    """log p [F, B, 2] without its second candidate where `sure` [F, B]."""
    return torch.stack([log_p[..., 0], log_p[..., 1].masked_fill(sure, -torch.inf)], -1)


def coupled_scores(context: Context, table: StaleTable, start: int, steps: Tensor) -> Tensor:
    """log p of the table's 32 tokens, [F, B, 32] float32, at `steps` [F] of the block at `start`."""
    positions = torch.arange(len(table.masked), device=steps.device)[None, :, None] + start
    log_probs = table.log_probs.expand(len(steps), -1, -1)
    return coupled(log_probs, table.indices, positions, steps[:, None, None], context.temperature, context.noise)


def coupled(
    log_probs: Tensor, indices: Tensor, positions: Tensor, steps: Tensor, temperature: float, noise: Noise
) -> Tensor:
    """log p of stale tokens at absolute `positions` and `steps`: what broadcasts to `log_probs` [F, B, 32], float32.

    Stale at T = 0. At T > 0 the softmax of stale / T + G over the 32 entries, with the noise of that future step
    (inferred: the paper does not say).
    """
    if temperature == 0:
        return log_probs
    return (log_probs / temperature + noise.gumbel(positions, steps, indices)).log_softmax(-1).float()
