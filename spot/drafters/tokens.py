"""Which tokens a hypothetical commit may take, read from the stale table and the shared noise."""

import torch
from torch import Tensor

from spot.drafters.protocol import Context


def token_candidates(context: Context, depths: Tensor, gate: float) -> tuple[Tensor, Tensor]:
    """The two best tokens a position: log p and token id, [F, B, 2], for commits `depths` [F] steps ahead.

    At T > 0 tokens are ranked by stale / T + G with the noise of that future step, and p is the softmax of these scores
    over the table's 32 entries (inferred: the paper does not say). The second candidate is -inf where the first has
    probability `gate` or more (the published tokgate).
    """
    table = context.table
    log_p, token = table.log_probs[None, :, :2], table.indices[None, :, :2]
    if context.temperature > 0:
        positions = torch.arange(len(table.masked), device=depths.device)[None, :, None] + context.start
        gumbel = context.noise.gumbel(positions, context.step + depths[:, None, None], table.indices[None])
        scores = (table.log_probs / context.temperature + gumbel).log_softmax(-1).float()
        log_p, rank = scores.topk(2)
        token = table.indices.expand_as(scores).gather(-1, rank)
    second = log_p[..., 1].masked_fill(log_p[..., 0].exp() >= gate, -torch.inf)
    log_p = torch.stack([log_p[..., 0], second], -1)
    return log_p.expand(len(depths), -1, -1), token.expand(len(depths), -1, -1)
