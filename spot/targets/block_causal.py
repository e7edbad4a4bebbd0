"""Targets whose blocks see no later block (SDAR, LLaDA2): blocks aligned to index 0, an exact prefix cache."""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from spot.targets.packed import KeyValues, Layers, Segment, in_one_row
from spot.targets.protocol import TargetConfig


class BlockCausal(nn.Module):
    """A target: `prefill`, then `self(nodes)` and `advance(block)` until the text is done. One call is one pass.

    Holds the keys and values of all stored blocks. A finished block is *pending* until the next call stores it on its
    way, so that storing costs no pass of its own. Without the prefix cache, all text stays pending.
    """

    def __init__(self, model: PreTrainedModel, config: TargetConfig) -> None:
        super().__init__()
        self.model = model.eval().requires_grad_(False)
        self.config = config
        self._layers = Layers(model)
        self.prefill([])

    @property
    def device(self) -> torch.device:
        return self.model.device

    def prefill(self, prompt: list[int], layout: str = "batch", cache: bool = True, end: int | None = None) -> int:
        """Forget the last text and store the prompt's whole blocks. Returns the passes that took: 0 or 1."""
        whole = len(prompt) // self.config.block_length * self.config.block_length
        self._pending = torch.tensor(prompt[:whole], dtype=torch.long, device=self.device)
        self._held = KeyValues(self.model)
        self._layout, self._cached = layout, cache
        if whole == 0 or not cache:
            return 0
        self(torch.empty(0, self.config.block_length, dtype=torch.long, device=self.device))
        return 1

    def advance(self, block: Tensor) -> None:
        """Append a finished block [B] to the text; the next call stores it."""
        self._pending = torch.cat([self._pending, block])

    @torch.inference_mode()
    def forward(self, nodes: Tensor, edges: Tensor | None = None, places: Tensor | None = None) -> Tensor:
        """Logits [N + E, M, V] of nodes [N, B] and edges [E, 2B], each seeing the text and itself."""
        size, pending = self.config.block_length, len(self._pending)
        rows = [nodes, *([] if edges is None else [edges])]
        base = self._held.length + pending
        own = [base + torch.arange(r.shape[1], device=self.device).repeat(len(r)) for r in rows]
        positions = torch.cat([torch.arange(self._held.length, base, device=self.device), *own])
        tokens = torch.cat([self._pending, *(r.flatten() for r in rows)])
        text = Segment(1, pending, self._causal(pending))
        end = base + max(r.shape[1] for r in rows)
        asked = torch.arange(size, device=self.device) if places is None else places
        wanted = pending + self._opened(rows)[:, None] + asked
        hidden = self._layers.run(tokens, positions, self._held, text, self._segments(rows), end, wanted.flatten())
        if self._cached:
            self._held.length = base
            self._pending = self._pending[:0]
        return self._layers.logits(hidden.view(*wanted.shape, hidden.shape[-1]))

    def _opened(self, rows: list[Tensor]) -> Tensor:
        """Where the open blocks of all nodes begin in their packed row, [N + E]."""
        lengths = torch.tensor([r.shape[1] for r in rows for _ in range(len(r))], dtype=torch.long, device=self.device)
        return lengths.cumsum(0) - self.config.block_length

    def _segments(self, rows: list[Tensor]) -> list[Segment]:
        """How the nodes' tokens are attended: alike rows together, or all in one row under one mask."""
        shapes = [(len(r), r.shape[1], self._causal(r.shape[1])) for r in rows if len(r)]
        return [Segment(*shape) for shape in shapes] if self._layout == "batch" else in_one_row(shapes, self.device)

    def _causal(self, length: int) -> Tensor | None:
        """[length, length] bool: a position sees its own block and those before it. None for a block alone."""
        if length <= self.config.block_length:
            return None
        block = torch.arange(length, device=self.device) // self.config.block_length
        return block[:, None] >= block[None, :]
