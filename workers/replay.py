"""A decoding pass by pass, as plain values: what `launch.py decode` prints and the report page replays.

Small enough for a record (some kilobytes), and whole: tokens are text, so that a reader needs no tokenizer.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from spot.decoder import Commit, Decoding, Pass
from spot.targets.protocol import TargetConfig

Replay = dict[str, Any]


def replay(
    decoding: Decoding, prompt: str, prompt_length: int, config: TargetConfig, text: Callable[[int], str]
) -> Replay:
    """The passes of `decoding`, which kept their states. `text` gives a token's.

    `prompt`; `block`, its length; `start`, where the first one starts; `pieces`, the texts that tokens are; `passes`,
    each [steps, drafts, accepted]. A step is [position, piece, position, piece, ...]: what it committed. A draft is
    [parent, position, piece, ...]: the draft that it extends, from 1, or 0 for the block as it stood, and what by.
    `accepted` are the numbers of the drafts that the walk moved into. Positions count from the prompt's end.
    """
    pieces: dict[str, int] = {}

    def flat(commits: tuple[Commit, ...] | list[Commit]) -> list[int]:
        placed = ((at - prompt_length, pieces.setdefault(text(token), len(pieces))) for at, token in commits)
        return [number for pair in placed for number in pair]

    steps = iter(decoding.steps)
    passes = [
        [
            [flat(next(steps)) for _ in range(1 + one.accepted)],
            [[parent, *flat(commits)] for parent, commits in _drafts(one, config.mask_id)],
            list(one.path[1:]),
        ]
        for one in decoding.passes
    ]
    start = min((one.start for one in decoding.passes), default=prompt_length) - prompt_length
    return {"prompt": prompt, "block": config.block_length, "start": start, "pieces": list(pieces), "passes": passes}


def _drafts(one: Pass, mask_id: int) -> list[tuple[int, list[Commit]]]:
    """For each draft of a pass the state that it extends and the commits between.

    That is the one the walk came from, or else the fullest, the first of several. A draft that contradicts the block,
    as no drafter of ours makes one, is taken to extend it.
    """
    came_from = {to: number for number, to in pairwise(one.path)}
    filled = [frozenset((at, token) for at, token in enumerate(node, one.start) if token != mask_id)
              for node in one.nodes]  # fmt: skip
    drafts = []
    for number, state in enumerate(filled[1:], start=1):
        smaller = (other for other, its in enumerate(filled) if its < state)
        fullest = max(smaller, key=lambda other: len(filled[other]), default=0)
        parent = came_from.get(number, fullest)
        drafts.append((parent, sorted(state - filled[parent])))
    return drafts
