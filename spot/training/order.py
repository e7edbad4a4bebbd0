"""Trains the order model: cross-entropy on the next committed position after k further commits (paper, section 4.2).

    python launch.py train-drafter --model tiny-sdar --task arith --out assets/tiny-spot.safetensors

Traces and questions stay in the CPU's memory; a batch at a time goes to the model's device.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from spot.options import check_training
from spot.order_model import OrderModel, save_order_model
from spot.training.traces import Trace

DEEPEST = 12
HELD_OUT = 10  # one prompt in ten
CHUNK = 2048  # questions scored at once
DEPTH_DECAY = 0.85  # deeper branches are visited less
FRESH = 0.08  # the share of questions asked of a table that nothing was committed since


@dataclass(frozen=True)
class OrderSettings:
    """What decides the trained weights, beside the traces; ValueError, `key: what is wrong`, for what cannot."""

    steps: int = 4000
    batch_size: int = 192
    rate: float = 2e-3
    warmup: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        check_training(self)


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

    def to(self, device: torch.device | str) -> "Examples":
        return Examples(*(values.to(device) for values in vars(self).values()))

    def chunks(self, size: int = CHUNK) -> Iterator["Examples"]:
        parts = zip(*(values.split(size) for values in vars(self).values()), strict=True)
        return (Examples(*part) for part in parts)


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


def make_order_model(
    traces: list[Trace],
    settings: OrderSettings,
    out: Path,
    made_of: dict[str, Any],
    device: str = "cpu",
    report: Callable[[str], None] = print,
) -> "Accuracy":
    """Train on nine tenths of the prompts, calibrate and measure on the others, and write the checkpoint `out`.

    Its header has `made_of`, the settings and the held-out accuracy, which is returned. Raises ValueError where no
    block took two steps, which leaves no questions.
    """
    held_out, training = hold_out(traces)
    for part in (training, held_out):
        if all(trace.steps < 2 for trace in part):
            raise ValueError(f"all {len(part)} blocks to learn from, or held out, are filled in one step")
    report(f"{len(training)} blocks to train on, {len(held_out)} held out")
    model = train_order_model(training, settings, report, device)
    calibrate(model, held_out)
    found = accuracy(model, held_out)
    partial = out.with_name(f"{out.name}.partial")
    save_order_model(model.cpu(), partial, {**made_of, "settings": asdict(settings), "held_out_accuracy": found})
    partial.replace(out)
    return found


def hold_out(traces: list[Trace]) -> tuple[list[Trace], list[Trace]]:
    """(the traces of the first tenth of the prompts, at least one; the others'). A prompt's blocks count from 0."""
    prompt = list(accumulate(int(trace.block == 0) for trace in traces))
    held_out = max(1, prompt[-1] // HELD_OUT)
    first = sum(number <= held_out for number in prompt)
    return traces[:first], traces[first:]


def train_order_model(
    traces: list[Trace], settings: OrderSettings, report: Callable[[str], None] = print, device: str = "cpu"
) -> OrderModel:
    """An order model fitted to `traces`. Deterministic in traces and settings on one machine."""
    torch.manual_seed(settings.seed)
    generator = torch.Generator().manual_seed(settings.seed)
    data, model = TraceSet(traces), OrderModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.rate, weight_decay=0.01)
    running = None
    for step in range(settings.steps):
        warm = min(1.0, (step + 1) / settings.warmup)
        optimizer.param_groups[0]["lr"] = settings.rate * warm * 0.5 * (1 + math.cos(math.pi * step / settings.steps))
        batch = data.sample(settings.batch_size, generator).to(device)
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
    batch = data.sample(4096, torch.Generator().manual_seed(1)).to(model.temperature.device)
    scores = batch.scores(model)
    temperatures = torch.linspace(0.5, 3.0, 101)
    losses = [F.nll_loss((scores / t).log_softmax(-1), batch.label) for t in temperatures]
    model.temperature.copy_(temperatures[torch.stack(losses).argmin()])


Accuracy = dict[str, dict[str, list[float | None]]]


@torch.inference_mode()
def accuracy(model: OrderModel, held_out: list[Trace]) -> Accuracy:
    """Shares of next commits foretold, by the "order_model" and by the "stale_confidence" order.

    "by_depth" has them by number of hypothetical commits, "by_block" by the block's index in the answer, with no
    hypothetical commit. None where nothing was asked.
    """
    data = TraceSet(held_out)
    right = [_right(model, data.every(depth)) for depth in range(DEEPEST)]
    block = data.block[data.left > 0]  # of the questions at depth 0
    blocks = range(int(block.max()) + 1)
    return {
        "by_depth": {who: [_share(hits[who]) for hits in right] for who in right[0]},
        "by_block": {who: [_share(hits[block == b]) for b in blocks] for who, hits in right[0].items()},
    }


def accuracy_tables(found: Accuracy) -> Iterator[str]:
    """The lines of two tables, in percent."""
    titles = {
        "by_depth": "held-out next-commit accuracy, % by number of hypothetical commits",
        "by_block": "the same with none, % by the block's index in the answer",
    }
    for name, title in titles.items():
        yield title
        yield f"{'':18}" + "".join(f"{index:6}" for index in range(len(found[name]["order_model"])))
        for who, shares in found[name].items():
            yield f"{who:18}" + "".join(f"{'–':>6}" if share is None else f"{100 * share:6.1f}" for share in shares)


def _right(model: OrderModel, asked: Examples) -> dict[str, Tensor]:
    """Which of N questions each order answers rightly, [N] bool."""
    device = model.temperature.device
    foretold = torch.cat([chunk.to(device).scores(model).argmax(-1).cpu() for chunk in asked.chunks()])
    stale = asked.log_probs[..., 0].masked_fill(~asked.masked, -torch.inf).argmax(-1)
    return {"order_model": foretold == asked.label, "stale_confidence": stale == asked.label}


def _share(hits: Tensor) -> float | None:
    return round(hits.double().mean().item(), 4) if len(hits) else None
