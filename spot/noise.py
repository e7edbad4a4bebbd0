"""Keyed Gumbel noise: a pure function of (seed, task, row, position, step, vocabulary index).

Nothing is streamed, so any draw can be read again, alone, in any order and on any device: that is what lets drafter and
target share noise (paper, section 4.3; design.md §3) and a sample not depend on what ran before it.
"""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

# SplitMix64's increment and multipliers, as the signed integers torch has
_STRIDE = 0x9E3779B97F4A7C15 - (1 << 64)
_MULTIPLY = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))


@dataclass(frozen=True)
class Noise:
    """The noise of one sample; `key` is 64 bits, signed."""

    key: int

    @staticmethod
    def keyed(seed: int, task: str, row: str) -> "Noise":
        digest = hashlib.blake2b(f"{seed}\0{task}\0{row}".encode(), digest_size=8).digest()
        return Noise(int.from_bytes(digest, "big", signed=True))

    def gumbel(self, positions: Tensor, steps: Tensor, indices: Tensor) -> Tensor:
        """G = -log(-log u), float64, in the shape the three int64 tensors broadcast to."""
        stream = _mix(_mix(positions * _STRIDE + self.key) + steps * _STRIDE)
        bits = _shift(_mix(stream + (indices + 1) * _STRIDE), 32)
        # The hash is read as 1 - u: G is large where u is near one, and there 1 - u keeps its digits.
        complement = (bits.double() + 0.5) * 2.0**-32
        return -torch.log(-torch.log1p(-complement))


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _MULTIPLY[0]
    x = (x ^ _shift(x, 27)) * _MULTIPLY[1]
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)
