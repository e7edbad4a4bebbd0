"""What the decoder needs of a target (design.md §3)."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

LAYOUTS = ("batch", "concat")


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

    def prefill(self, prompt: list[int], layout: str = "batch", cache: bool = True) -> int:
        """Forget the last text and store the prompt's whole blocks. Returns the passes that took.

        `layout` says how the nodes of a pass are packed: a row each, or one row. Without `cache` nothing is stored and
        every pass computes the whole text anew.
        """
        ...

    def __call__(self, nodes: Tensor, edges: Tensor | None = None) -> Tensor:
        """Logits [N + E, B, V] of the open blocks of all nodes, which share the text and are blind to one another.

        nodes [N, B] int64; edges [E, 2B]: a full block and the open one after it.
        """
        ...

    def advance(self, block: Tensor) -> None:
        """Append a finished block [B]; the next call stores it on its way."""
        ...
