"""What travels between the driver and a worker: a sample or trace task going out, records coming back.

Everything here is a frozen dataclass of plain values, so that it pickles small, hashes, and prints. design.md §5.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

SEMANTICS = 2  # raised by hand when the same cell would decode to something else; part of every cell key

Chat = tuple[tuple[str, str | int | float], ...] | Literal[False] | None


UNRESOLVED = "unresolved"  # the revision, or hash, of what is planned by name alone


class Absent(ValueError):
    """What an entry names may be right, but this machine has not got it: a run refuses, a plan takes the `stand_in`."""

    def __init__(self, wrong: str, stand_in: Any) -> None:
        super().__init__(wrong)
        self.stand_in = stand_in


@dataclass(frozen=True)
class ModelSpec:
    """A target as a worker loads it. `revision` is resolved (weights' sha256 or hub commit), never a branch name.

    `mask_id` and `stop_ids` None are the checkpoint's own. `chat` has the chat template's arguments, None for its
    defaults; False feeds a prompt as it is. `exact`: its prefix cache is, so that what follows a block changes nothing.
    `per_gpu` workers share a GPU; where it is not 1, no time that they take is theirs alone.
    """

    name: str
    family: str
    path: str
    revision: str
    block_length: int
    dtype: str = "float32"
    mask_id: int | None = None
    stop_ids: tuple[int, ...] | None = None
    chat: Chat = None
    exact: bool = True
    device: str = "cpu"
    threads: int = 1
    per_gpu: int = 1


@dataclass(frozen=True)
class DrafterSpec:
    """A drafter as a worker builds it. `checkpoint` is a path or None, `sha` its content's sha256.

    `pad_pieces` is how many drafts a pass is padded to: 0 for none, -1 for the budget. `longest_block` is how many
    positions of a block it can draft, None for any.
    """

    name: str
    method: str
    checkpoint: str | None = None
    sha: str | None = None
    options: tuple[tuple[str, Any], ...] = ()
    pad_pieces: int = 0
    longest_block: int | None = None


@dataclass(frozen=True)
class DecodeSpec:
    """The decode settings of a cell, as `spot.decoder.Settings` has them. `threshold` None commits one position.

    `suffix` "keep" shows an approximate cache's target the masked blocks that follow; "skip" leaves them out.
    """

    gen_length: int
    temperature: float
    seed: int
    stop: str = "eos"
    threshold: float | None = None
    layout: str = "batch"
    cache: bool = True
    suffix: str = "keep"


@dataclass(frozen=True)
class MethodTask:
    """One pending cell of a sample task: decode with `drafter` at `budget`. `drafter` None is the control."""

    cell: str
    drafter: DrafterSpec | None
    budget: int
    attempt: int = 1

    def again(self) -> "MethodTask":
        """The next attempt."""
        return replace(self, attempt=self.attempt + 1)


@dataclass(frozen=True)
class SampleTask:
    """One data-set row with all its pending cells that share model, task, temperature, seed and decode settings.

    The control is decoded in every sample task, since each method's timing is paired with it; `control` is its cell
    if its record is missing, else None. `turn` rotates the order in which control and methods run. With `replay`, the
    records keep their passes (workers/replay.py).
    """

    sweep: str
    model: ModelSpec
    task: str
    row: str
    prompt: str
    decode: DecodeSpec
    control: MethodTask | None
    methods: tuple[MethodTask, ...] = field(default=())
    turn: int = 0
    replay: bool = False

    def again(self) -> "SampleTask":
        """The same, after its worker died."""
        control = self.control.again() if self.control is not None else None
        return replace(self, control=control, methods=tuple(method.again() for method in self.methods))

    def apart(self) -> list["SampleTask"]:
        """One sample task a cell, the control's own first: which of them kills its worker?"""
        alone = [replace(self, methods=())] if self.control is not None else []
        return alone + [replace(self, control=None, methods=(method,)) for method in self.methods]


@dataclass(frozen=True)
class TraceTask:
    """A shard of draft-free traces to make: those of `prompts`, written as file `shard` to the store at `store`.

    `rows` are the prompts' ids in data set `task`.
    """

    model: ModelSpec
    task: str
    rows: tuple[str, ...]
    prompts: tuple[str, ...]
    decode: DecodeSpec
    shard: str
    store: str

    def again(self) -> "TraceTask":
        """The same, after its worker died: a shard that was written is written once more, to the same bytes."""
        return self

    def apart(self) -> list["TraceTask"]:
        """Itself: a shard is whole or not there."""
        return [self]


Work = SampleTask | TraceTask
