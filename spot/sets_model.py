"""SPOT-Sets' commit probabilities: a small head on the order model, calibrated for one target.

Under the threshold rule a step commits every position whose token is likelier than τ, so what is to be predicted is a
set. The paper says that SPOT-Sets transfers with a light calibration; here (inferred) the order model stays as it is,
and a head of 8,000 parameters reads its hidden states beside how far the stale surprise is from -log τ, and says how
likely each position is to pass in the next step.
"""

import json
import math
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from spot.order_model import WIDTH, OrderModel, log_surprise

HIDDEN = 64


class SetsModel(nn.Module):
    """log q of the order model, and the logit of passing a threshold, at every position."""

    def __init__(self, order: OrderModel) -> None:
        super().__init__()
        self.order = order
        self.head = nn.Sequential(nn.Linear(WIDTH + 1, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, 1))
        self.slope = nn.Parameter(torch.ones(()))

    def forward(
        self,
        log_probs: Tensor,
        log_confidence: Tensor,
        table_masked: Tensor,
        root_masked: Tensor,
        masked: Tensor,
        threshold: float,
    ) -> tuple[Tensor, Tensor]:
        """(log q, logit of passing `threshold`), both [F, B], -inf where not masked.

        log_confidence [F, B] is that of the token that would be committed, by the stale table; the rest is as in
        `OrderModel.forward`.
        """
        hidden = self.order.encode(log_probs, table_masked, root_masked, masked)
        margin = math.log(-math.log(threshold)) - log_surprise(log_confidence[..., None])
        correction = self.head(torch.cat([hidden, margin[..., None] / 5], -1)).squeeze(-1)
        passing = (self.slope * margin + correction).masked_fill(~masked, -torch.inf)
        return self.order.log_q(hidden, log_probs, masked), passing


def save_sets_model(model: SetsModel, path: Path, provenance: dict) -> None:
    """Write the order model, the head and, in the safetensors header, `provenance` as JSON."""
    save_file(model.state_dict(), path, {"spot": json.dumps(provenance, sort_keys=True)})


def load_sets_model(path: Path, device: str = "cpu") -> SetsModel:
    model = SetsModel(OrderModel())
    model.load_state_dict(load_file(path))
    return model.eval().requires_grad_(False).to(device)
