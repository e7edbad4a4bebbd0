"""Targets that see the whole text from everywhere (LLaDA, Dream): blocks from the prompt's end, an approximate cache.

The prefix cache is Fast-dLLM's: a block's first pass computes the whole text and keeps the keys and values of what
comes before the block; they are held, stale, until the block is full (design.md §3).
"""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from spot.targets.packed import KeyValues, Layers, Segment, in_one_row
from spot.targets.protocol import TargetConfig


class Bidirectional(nn.Module):
    """A target: `prefill`, then `self(nodes)` and `advance(block)` until the text is done. One call is one pass.

    Where logits are `shifted`, those of a position are read from the hidden state before it (position 0 reads its own).
    A block's first position is read from the text before the block, hence from the pass that made the cache.
    """

    def __init__(self, model: PreTrainedModel, config: TargetConfig, shifted: bool = False) -> None:
        super().__init__()
        self.model = model.eval().requires_grad_(False)
        self.config = config
        self._shift, self._layers = int(shifted), Layers(model)
        self.prefill([])

    @property
    def device(self) -> torch.device:
        return self.model.device

    def prefill(self, prompt: list[int], layout: str = "batch", cache: bool = True, end: int | None = None) -> int:
        """Forget the last text and begin with all of `prompt`. Takes no pass: the first block's first one stores it."""
        self._text = torch.tensor(prompt, dtype=torch.long, device=self.device)
        self._layout, self._cached, self._end = layout, cache, end or 0
        self._held, self._before = KeyValues(self.model), None
        return 0

    def advance(self, block: Tensor) -> None:
        """Append a finished block [B]; the next call makes the cache anew."""
        self._text = torch.cat([self._text, block])
        self._before = None

    @torch.inference_mode()
    def forward(self, nodes: Tensor, edges: Tensor | None = None, places: Tensor | None = None) -> Tensor:
        """Logits [N, M, V] of nodes [N, B]; a text that is not cached yet is computed with the first of them."""
        if edges is not None:
            raise ValueError("no draft crosses the edge of a block whose prefix cache is not exact")
        stored = not self._cached or self._before is not None
        opened = self._opened(nodes) if stored else self._refresh(nodes[:1])
        found = self._layers.logits(opened if places is None else opened[:, places])
        return found.expand(len(nodes), -1, -1)

    def _opened(self, nodes: Tensor) -> Tensor:
        """The states [N, B, H] that the open block is read from."""
        rows = self._rows(nodes, self._text[:0] if self._cached else self._text)
        shape = (*rows.shape, None)
        segments = [Segment(*shape)] if self._layout == "batch" else in_one_row([shape], self.device)
        positions = self._positions(rows).repeat(len(rows))
        first = torch.arange(len(nodes), device=self.device)[:, None] * rows.shape[1]
        wanted = first + self._read_from(rows.shape[1])
        hidden = self._layers.run(
            rows.flatten(), positions, self._held, Segment(1, 0), segments, self._last, wanted.flatten()
        )
        hidden = hidden.view(*wanted.shape, hidden.shape[-1])
        if self._before is None or not self._shift:
            return hidden
        return torch.cat([self._before.expand(len(nodes), -1, -1), hidden[:, 1:]], 1)

    def _refresh(self, node: Tensor) -> Tensor:
        """The same, [1, B, H], of the only node [1, B] of a block's first pass, which stores what comes before it."""
        rows, start = self._rows(node, self._text), len(self._text)
        whole = Segment(1, rows.shape[1])
        self._held.length = 0
        wanted = self._read_from(rows.shape[1])
        hidden = self._layers.run(rows[0], self._positions(rows), self._held, whole, [], self._last, wanted)[None]
        self._held.length, self._before = start, hidden[:, :1]
        return hidden

    def _rows(self, nodes: Tensor, text: Tensor) -> Tensor:
        """`text`, a node and the masks up to the end, [N, T]."""
        masks = max(0, self._end - len(self._text) - nodes.shape[1])
        suffix = nodes.new_full((len(nodes), masks), self.config.mask_id)
        return torch.cat([text.expand(len(nodes), -1), nodes, suffix], 1)

    def _positions(self, rows: Tensor) -> Tensor:
        """[T] of rows [N, T], which begin with the text or with the open block."""
        return torch.arange(self._last - rows.shape[1], self._last, device=self.device)

    @property
    def _last(self) -> int:
        """Where the rows end."""
        return max(self._end, len(self._text) + self.config.block_length)

    def _read_from(self, length: int) -> Tensor:
        """Where in rows of `length` the states [B] stand that the open block is read from."""
        start = len(self._text) - (self._last - length)
        places = torch.arange(start, start + self.config.block_length, device=self.device) - self._shift
        return places.clamp(min=0)
