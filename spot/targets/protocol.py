"""What the decoder needs of a target (design.md §3)."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class TargetConfig:
    """What the decoder must know of a target. Blocks are aligned to absolute index 0."""

    block_length: int
    mask_id: int
    stop_ids: frozenset[int]


class Target(Protocol):
    """`prefill`, then calls and `advance` until the text is done. One call is one pass."""

    config: TargetConfig

    @property
    def device(self) -> torch.device: ...

    def prefill(self, prompt: list[int]) -> int:
        """Forget the last text and store the prompt's whole blocks. Returns the passes that took."""
        ...

    def __call__(self, nodes: Tensor) -> Tensor:
        """Logits [N, B, V] of nodes [N, B] int64 that share the stored text and are blind to one another."""
        ...

    def advance(self, block: Tensor) -> None:
        """Append a finished block [B]; the next call stores it on its way."""
        ...
