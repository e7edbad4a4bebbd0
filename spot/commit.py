"""The step rule: which positions of a block the target commits next, and to which tokens (design.md §3)."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def choose(logits: Tensor, mask_id: int, temperature: float, gumbel: Tensor | None) -> tuple[Tensor, Tensor]:
    """Token and surprise at every position.

    `logits` [..., V], any float dtype; `gumbel` in the same shape, None at T = 0. Returns tokens [...] int64 and
    surprise [...] = -log softmax(z)[token], float32 or wider, z = logits / T (logits at T = 0). The mask token is never
    chosen but stays in the normaliser. Ties go to the lowest token.
    """
    z = logits if logits.dtype == torch.float64 else logits.float()
    scores = z
    if gumbel is not None:
        z = z / temperature
        scores = z + gumbel.to(z.dtype)
    token = without(scores, mask_id).argmax(-1, keepdim=True)
    return token.squeeze(-1), surprise(z, token)


def without(scores: Tensor, token: int) -> Tensor:
    """`scores` [..., V] with -inf at one token."""
    copy = scores.clone()
    copy[..., token] = -torch.inf
    return copy


def surprise(z: Tensor, token: Tensor) -> Tensor:
    """-log softmax(z)[token] for z [..., V] and token [..., 1], with all its digits where the probability is near one.

    A confident target saturates float32 probabilities at 1.0; the order of commits is then decided here alone.
    """
    others = z.scatter(-1, token, -torch.inf).logsumexp(-1)
    return F.softplus(others - z.gather(-1, token).squeeze(-1))


def committed(masked: Tensor, surprise: Tensor, threshold: float | None = None) -> Tensor:
    """The positions committed next, [N, M] bool, for `masked` and `surprise` [N, M].

    The masked position of least surprise, the lowest at a tie; with a `threshold` also every masked position whose
    token has a probability above it.
    """
    surprise = surprise.masked_fill(~masked, torch.inf)
    best = torch.zeros_like(masked).scatter_(-1, surprise.argmin(-1, keepdim=True), True)
    return best if threshold is None else best | (surprise < -math.log(threshold))
