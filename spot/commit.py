"""The step rule: which positions of a block the target commits next, and to which tokens (design.md §3)."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def choose(logits: Tensor, mask_id: int, temperature: float, gumbel: Tensor | None) -> tuple[Tensor, Tensor]:
    """Token and doubt at every position.

    `logits` [..., V], any float dtype; `gumbel` in the same shape, None at T = 0. Returns tokens [...] int64 and
    doubt [...] of softmax(z)[token], float32 or wider, z = logits / T (logits at T = 0). The mask token is never chosen
    but stays in the normaliser. Ties go to the lowest token.
    """
    z = logits if logits.dtype == torch.float64 else logits.float()
    scores = z
    if gumbel is not None:
        z = z / temperature
        scores = z + gumbel.to(z.dtype)
    token = without(scores, mask_id).argmax(-1, keepdim=True)
    return token.squeeze(-1), doubt(z, token)


def without(scores: Tensor, token: int) -> Tensor:
    """`scores` [..., V] with -inf at one token."""
    copy = scores.clone()
    copy[..., token] = -torch.inf
    return copy


def doubt(z: Tensor, token: Tensor) -> Tensor:
    """The log-odds against softmax(z)[token], log((1 - p) / p), for z [..., V] and token [..., 1].

    It falls as the probability grows, as surprise does, and tells probabilities apart however near one they are: a
    confident target, or a low temperature, takes float32 probabilities to 1.0 and surprises to 0.
    """
    others = z.scatter(-1, token, -torch.inf).logsumexp(-1)
    return others - z.gather(-1, token).squeeze(-1)


def surprise(z: Tensor, token: Tensor) -> Tensor:
    """-log softmax(z)[token] for z [..., V] and token [..., 1], with all its digits for probabilities near one."""
    return F.softplus(doubt(z, token))


def committed(masked: Tensor, doubt: Tensor, threshold: float | None = None) -> Tensor:
    """The positions committed next, [N, M] bool, for `masked` and `doubt` [N, M].

    The masked position of least doubt, the lowest at a tie; with a `threshold` also every masked position whose token
    has a probability above it.
    """
    doubt = doubt.masked_fill(~masked, torch.inf)
    best = torch.zeros_like(masked).scatter_(-1, doubt.argmin(-1, keepdim=True), True)
    return best if threshold is None else best | (doubt < math.log((1 - threshold) / threshold))
