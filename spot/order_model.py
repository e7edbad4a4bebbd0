"""The commit-order model: where the target commits next, from its stale distributions alone (paper, section 4.2).

Three layers, d_model 128, eight heads, 0.62M parameters. It sees no token ids, so one checkpoint serves any tokenizer
and target.
"""

import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, LAYERS, HEADS, LONGEST_BLOCK = 128, 3, 8, 64
REACH = 4  # how far to either side a position is told of its neighbours
FEATURES = 32 + 2 + 4 + 5 * (2 * REACH + 1)


class OrderModel(nn.Module):
    """log q(position | branch): the stale-confidence order, corrected by a transformer over the block's positions.

    `temperature` softens q; it is fitted on held-out traces, since growth needs true masses.
    """

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.embed = nn.Linear(FEATURES, WIDTH)
        self.place = nn.Parameter(torch.randn(LONGEST_BLOCK, WIDTH) * 0.02)
        self.layers = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.head = nn.Sequential(nn.Linear(WIDTH, WIDTH // 2), nn.GELU(), nn.Linear(WIDTH // 2, 1))
        self.stale = nn.Parameter(torch.ones(()))
        self.register_buffer("temperature", torch.ones(()))

    def forward(self, log_probs: Tensor, table_masked: Tensor, root_masked: Tensor, masked: Tensor) -> Tensor:
        """log q [F, B], -inf at positions that are not masked.

        log_probs [F, B, 32] is the stale table; table_masked, root_masked and masked ([F, B] bool, or what expands to
        it) say where the block was masked when the table was read, is masked now, and is masked on this branch.
        """
        return self.log_q(self.encode(log_probs, table_masked, root_masked, masked), log_probs, masked)

    def encode(self, log_probs: Tensor, table_masked: Tensor, root_masked: Tensor, masked: Tensor) -> Tensor:
        """What the model makes of every position, [F, B, 128]."""
        hidden = self.embed(features(log_probs, table_masked, root_masked, masked))
        return self.layers(hidden + self.place[: hidden.shape[1]])

    def log_q(self, hidden: Tensor, log_probs: Tensor, masked: Tensor) -> Tensor:
        """log q [F, B] of encoded positions."""
        scores = self.head(hidden).squeeze(-1) - self.stale * log_surprise(log_probs)
        return (scores / self.temperature).masked_fill(~masked, -torch.inf).log_softmax(-1)


def log_surprise(log_probs: Tensor) -> Tensor:
    """[..., B]: the logarithm of the best token's surprise, of log_probs [..., B, 32]."""
    return (-log_probs[..., 0]).clamp(min=1e-12).log()


def features(log_probs: Tensor, table_masked: Tensor, root_masked: Tensor, masked: Tensor) -> Tensor:
    """[F, B, 83] float32: log-probabilities, the logarithm of the best token's surprise, its rank, flags, neighbours.

    On a confident target all that decides the order sits in the last decimals of probabilities near one, hence the
    logarithm; a plain log-probability hides it. A commit makes its neighbours surer: each position is told the flags
    and the surprise of those REACH to either side, which attention would be long in finding (zero beyond the block).
    """
    table_masked, root_masked = table_masked.expand_as(masked), root_masked.expand_as(masked)
    doubt = log_surprise(log_probs)
    rank = doubt.masked_fill(~masked, torch.inf).argsort(-1).argsort(-1)
    flags = torch.stack([~table_masked, table_masked & ~root_masked, root_masked & ~masked, masked], -1)
    numbers = torch.stack([doubt / 5 * table_masked, rank / 16 * masked], -1)
    around = torch.cat([flags, (doubt / 5 * masked)[..., None]], -1).float()
    neighbours = F.pad(around, (0, 0, REACH, REACH)).unfold(1, 2 * REACH + 1, 1).flatten(2)
    return torch.cat([log_probs.clamp(min=-24) / 8, numbers, flags, neighbours], -1).float()


def save_order_model(model: OrderModel, path: Path, provenance: dict) -> None:
    """Write weights and, in the safetensors header, `provenance` as JSON."""
    save_file(model.state_dict(), path, {"spot": json.dumps(provenance, sort_keys=True)})


def load_order_model(path: Path, device: str = "cpu") -> OrderModel:
    model = OrderModel()
    model.load_state_dict(load_file(path))
    return model.eval().requires_grad_(False).to(device)


def provenance(path: Path) -> dict:
    """What `save_order_model` wrote in the header: how the model was trained and how well it does."""
    with safe_open(path, "pt") as file:
        return json.loads(file.metadata()["spot"])
