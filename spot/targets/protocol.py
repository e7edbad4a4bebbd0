"""What the decoder needs of a target (design.md §3)."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

LAYOUTS = ("batch", "concat")


@dataclass(frozen=True)
class TargetConfig:
    """What the decoder must know of a target.

    A `block_causal` target's blocks are aligned to absolute index 0 and its prefix cache is exact. Any other sees the
    whole text from everywhere: its blocks count from the prompt's end, and its prefix cache, made anew at each block's
    first pass, is an approximation that no draft may look beyond.
    """

    block_length: int
    mask_id: int
    stop_ids: frozenset[int]
    block_causal: bool = True


class Target(Protocol):
    """`prefill`, then calls and `advance` until the text is done. One call is one pass."""

    @property
    def config(self) -> TargetConfig: ...
    @property
    def device(self) -> torch.device: ...

    def prefill(self, prompt: list[int], layout: str = "batch", cache: bool = True, end: int | None = None) -> int:
        """Forget the last text and begin one with the prompt's whole blocks, or all of it. Returns the passes it took.

        `layout` says how the nodes of a pass are packed: a row each, or one row. Without `cache` nothing is stored and
        every pass computes the whole text anew. A target that is not block-causal sees masked positions from the open
        block to `end`, none for None.
        """
        ...

    def __call__(self, nodes: Tensor, edges: Tensor | None = None, places: Tensor | None = None) -> Tensor:
        """Logits [N + E, M, V] of the open blocks of all nodes, which share the text and are blind to one another.

        nodes [N, B] int64; edges [E, 2B]: a full block and the open one after it, for block-causal targets. `places`
        [M] int64 are the positions of the open block that are asked for, None all of it. The first pass of a block
        whose cache is approximate has one node, or copies of it.
        """
        ...

    def advance(self, block: Tensor) -> None:
        """Append a finished block [B]."""
        ...
