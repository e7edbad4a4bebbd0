"""Trains the order model: cross-entropy on the next committed position after k further commits (paper, section 4.2).

python launch.py train-drafter --model tiny-sdar --task arith --out assets/tiny-spot.safetensors
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from spot.order_model import OrderModel
from spot.training.traces import Trace

DEEPEST = 12
DEPTH_DECAY = 0.85  # deeper branches are visited less
FRESH = 0.08  # the share of questions asked of a table that nothing was committed since


@dataclass(frozen=True)
class OrderSettings:
    """What decides the trained weights, beside the traces."""

    steps: int = 2500
    batch_size: int = 192
    rate: float = 2e-3
    warmup: int = 100
    seed: int = 0


@dataclass(frozen=True)
class Examples:
    """N questions "where next?": log_probs [N, B, 32]; the masks [N, B] at table, root and branch; label, depth [N]."""

    log_probs: Tensor
    table_masked: Tensor
    root_masked: Tensor
    masked: Tensor
    label: Tensor
    depth: Tensor

    def scores(self, model: OrderModel) -> Tensor:
        return model(self.log_probs, self.table_masked, self.root_masked, self.masked)


class TraceSet:
    """Traces end to end: `tables` [S, B, 32]; `masks` [S + 1, B] a trace; `order` [S] the position each step commits.

    `left` [S] counts the steps that follow in the block, `block` [S] is the block's index in the answer. The traces are
    of the single rule: one position a step.
    """

    def __init__(self, traces: list[Trace]) -> None:
        self.tables = torch.cat([trace.log_probs for trace in traces])
        self.masks = torch.cat([trace.masked for trace in traces])
        self.order = torch.cat([(t.masked[:-1] & ~t.masked[1:]).int().argmax(-1) for t in traces])
        self.left = torch.cat([torch.arange(trace.steps - 1, -1, -1) for trace in traces])
        steps = torch.tensor([trace.steps for trace in traces])
        self.block = torch.tensor([trace.block for trace in traces]).repeat_interleave(steps)
        self._row = torch.arange(len(self.left)) + torch.arange(len(traces)).repeat_interleave(steps)  # in masks

    def examples(self, table: Tensor, depth: Tensor, behind: Tensor | int = 1) -> Examples:
        """The questions asked of tables `table` [N] after `behind` commits and `depth` [N] hypothetical ones.

        A drafter's table is one commit behind, that of a block not yet begun none.
        """
        row = self._row[table]
        return Examples(
            self.tables[table],
            self.masks[row],
            self.masks[row + behind],
            self.masks[row + behind + depth],
            self.order[table + behind + depth],
            depth,
        )

    def sample(self, size: int, generator: torch.Generator) -> Examples:
        weights = DEPTH_DECAY ** torch.arange(DEEPEST)
        depth = torch.multinomial(weights, size, replacement=True, generator=generator)
        table = torch.randint(len(self.left), (size,), generator=generator)
        behind = (torch.rand(size, generator=generator) >= FRESH).long()
        enough = self.left[table] >= depth + behind
        return self.examples(table[enough], depth[enough], behind[enough])

    def every(self, depth: int) -> Examples:
        table = (self.left > depth).nonzero().squeeze(-1)
        return self.examples(table, torch.full_like(table, depth))


def train_order_model(
    traces: list[Trace], settings: OrderSettings, report: Callable[[str], None] = print
) -> OrderModel:
    """An order model fitted to `traces`. Deterministic in traces and settings on one machine."""
    torch.manual_seed(settings.seed)
    generator = torch.Generator().manual_seed(settings.seed)
    data, model = TraceSet(traces), OrderModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.rate, weight_decay=0.01)
    running = None
    for step in range(settings.steps):
        warm = min(1.0, (step + 1) / settings.warmup)
        optimizer.param_groups[0]["lr"] = settings.rate * warm * 0.5 * (1 + math.cos(math.pi * step / settings.steps))
        batch = data.sample(settings.batch_size, generator)
        loss = F.nll_loss(batch.scores(model), batch.label)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        running = loss.item() if running is None else 0.98 * running + 0.02 * loss.item()
        if (step + 1) % 50 == 0:
            report(f"step {step + 1}/{settings.steps}  loss {running:.4f}")
    return model.eval().requires_grad_(False)


@torch.inference_mode()
def calibrate(model: OrderModel, held_out: list[Trace]) -> None:
    """Set the temperature that makes q most likely on held-out traces: growth by mass needs true probabilities."""
    data = TraceSet(held_out)
    batch = data.sample(4096, torch.Generator().manual_seed(1))
    scores = batch.scores(model)
    temperatures = torch.linspace(0.5, 3.0, 101)
    losses = [F.nll_loss((scores / t).log_softmax(-1), batch.label) for t in temperatures]
    model.temperature.copy_(temperatures[torch.stack(losses).argmin()])


@torch.inference_mode()
def accuracy(model: OrderModel, held_out: list[Trace]) -> dict[str, list[float]]:
    """Next-commit accuracy by number of hypothetical commits, of the order model and of the stale-confidence order."""
    data = TraceSet(held_out)
    result: dict[str, list[float]] = {"order_model": [], "stale_confidence": []}
    for depth in range(DEEPEST):
        batch = data.every(depth)
        chunks = [batch.scores(model).argmax(-1)] if len(batch.label) < 4096 else _chunked(batch, model)
        stale = batch.log_probs[..., 0].masked_fill(~batch.masked, -torch.inf).argmax(-1)
        result["order_model"].append(_share(torch.cat(chunks), batch.label))
        result["stale_confidence"].append(_share(stale, batch.label))
    return result


def _chunked(batch: Examples, model: OrderModel, size: int = 2048) -> list[Tensor]:
    parts = zip(*(x.split(size) for x in vars(batch).values()), strict=True)
    return [Examples(*part).scores(model).argmax(-1) for part in parts]


def _share(predicted: Tensor, label: Tensor) -> float:
    return round((predicted == label).double().mean().item(), 4)
