"""Draft-free traces as a sweep of its own: shards of prompts, made by workers and kept in a store. design.md §4.

    python launch.py collect-traces --model tiny-sdar --task arith --prompts 1000 --to runs/traces

A shard is named for what decides its content, so it is made once: an interrupted collection goes on, a larger one takes
up the shards of a smaller one, and another model, prompt or decode setting has shards of its own. There is no ledger:
a shard is in the store, or it is still to be made.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.driver import WAIT_SECONDS, Patience, carry_out, take
from orchestrator.errors import UserError
from orchestrator.executors import Died, Event, Executor, Finished
from orchestrator.plan import Row
from orchestrator.progress import LINE_EVERY, duration
from orchestrator.schedule import Schedule
from workers.store import open_store
from workers.work import DecodeSpec, ModelSpec, TraceTask

if TYPE_CHECKING:
    from spot.training.traces import Trace

SHARD = 10  # prompts: what the death of a worker costs
FORMAT = 2  # raised by hand when the same prompts would give a shard of other content


def trace_tasks(model: ModelSpec, task: str, rows: Sequence[Row], decode: DecodeSpec, store: str) -> list[TraceTask]:
    """The shards of `rows`, in their order, `SHARD` of them each but the last.

    Raises ValueError for a `store` that is none.
    """
    open_store(store)
    where = store if "://" in store else str(Path(store).resolve())  # a worker may stand in another folder
    parts = [rows[first : first + SHARD] for first in range(0, len(rows), SHARD)]
    found = []
    for part in parts:
        ids, prompts = tuple(row.id for row in part), tuple(row.prompt for row in part)
        found.append(TraceTask(model, task, ids, prompts, decode, _shard_name(model, decode, prompts), where))
    return found


def make_shards(
    tasks: Sequence[TraceTask],
    make_executor: Callable[[], Executor],
    retries: int,
    scale_timeout: float,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> list[str]:
    """Make those shards that the store lacks; returns what could not be made and why, a line each.

    A shard whose worker died is tried again; at its `retries`-th death nothing more is begun, nor once no worker has
    been there for `scale_timeout` seconds. Raises OSError for a
    store that does not answer, and UserError for a folder that the workers do not share with this process.
    """
    store = open_store(tasks[0].store)
    present = set(store.names())
    missing = [task for task in tasks if task.shard not in present]
    if not missing:
        return []
    lines = _Lines(tasks, missing, say, clock)
    failed = _Collection(missing, make_executor, retries, Patience(scale_timeout, say), lines).run()
    if not failed and {task.shard for task in tasks} - set(store.names()):
        wrong = "the workers' shards are not here; give them a folder that all machines share, or s3://bucket/prefix"
        raise UserError(tasks[0].store, "", wrong)
    return failed


def load_traces(tasks: Sequence[TraceTask]) -> list["Trace"]:
    """The traces of shards that are made, prompt by prompt in the order of `tasks`.

    Raises UserError for a shard that is damaged.
    """
    from spot.training.traces import unpack  # which brings torch along

    store, found = open_store(tasks[0].store), []
    for task in tasks:
        try:
            found += unpack(store.get(task.shard))
        except ValueError:
            raise UserError(task.store, "", f"shard {task.shard} is damaged; delete it") from None
    return found


def made_of(tasks: Sequence[TraceTask]) -> dict[str, Any]:
    """What a checkpoint made of these traces says of its origin. Its `trained_on` keeps it from these very rows."""
    model, decode = tasks[0].model, tasks[0].decode
    rows = [row for task in tasks for row in task.rows]
    return {
        "model": model.name,
        "revision": model.revision,
        "step_rule": "single" if decode.threshold is None else f"threshold {decode.threshold:g}",
        "gen_length": decode.gen_length,
        "prompts": len(rows),
        "trained_on": {tasks[0].task: rows},
    }


def _shard_name(model: ModelSpec, decode: DecodeSpec, prompts: tuple[str, ...]) -> str:
    reading = (model.mask_id, model.stop_ids, model.chat)
    asked = (FORMAT, model.revision, model.block_length, model.dtype, *reading, decode, prompts)
    return f"{hashlib.sha256(repr(asked).encode()).hexdigest()[:20]}.safetensors"


class _Collection:
    """The schedule at work on the missing shards."""

    def __init__(
        self,
        missing: Sequence[TraceTask],
        make_executor: Callable[[], Executor],
        retries: int,
        patience: Patience,
        lines: "_Lines",
    ) -> None:
        self._models = {task.model.name: task.model for task in missing}
        self._schedule = Schedule([missing], retries=retries)
        self._make_executor, self._patience, self._lines = make_executor, patience, lines
        self._failed: list[str] = []

    def run(self) -> list[str]:
        executor = self._make_executor()
        try:
            while not self._schedule.finished:
                for decision in self._schedule.decide(time.monotonic()):
                    carry_out(decision, executor, self._models)
                for event in executor.wait(WAIT_SECONDS):
                    self._take(event)
                if why := self._patience.ended(self._schedule.stuck, self._lines.clock()):
                    self._failed.append(f"traces: {why}")
                    self._schedule.drain()
        finally:
            executor.close()
        given_up = self._schedule.given_up.items()
        return self._failed + [f"model {model} could not be loaded: {error}" for model, error in given_up]

    def _take(self, event: Event) -> None:
        condemned = take(event, self._schedule, time.monotonic())
        if isinstance(event, Finished):
            self._lines.add(event.records[0]["rows"])
        elif isinstance(event, Died):
            self._lines.say(f"worker {event.worker}: {event.error}")
            if condemned is not None:
                task = condemned.task
                assert isinstance(task, TraceTask)
                self._failed.append(f"traces of {task.task}, rows {task.rows[0]} to {task.rows[-1]}: {event.error}")
                self._schedule.drain()  # what is wrong with one shard is likely wrong with all


@dataclass
class _Lines:
    """A line of progress now and then, and one at the end. Counts prompts."""

    tasks: Sequence[TraceTask]
    missing: Sequence[TraceTask]
    say: Callable[[str], None]
    clock: Callable[[], float]
    made: int = 0
    began: float = field(init=False)
    spoke: float = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.spoke = self.clock()

    def add(self, rows: int) -> None:
        self.made += rows
        now = self.clock()
        left = sum(len(task.rows) for task in self.missing) - self.made
        if left and now < self.spoke + LINE_EVERY:
            return
        self.spoke = now
        every = sum(len(task.rows) for task in self.tasks)
        rate = self.made / max(now - self.began, 1e-9)
        pace = f"{rate:.2f} prompts/s, {duration(left / rate)} left" if left else "done"
        self.say(f"traces: {every - left}/{every} prompts, {pace}")
