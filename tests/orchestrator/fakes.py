"""A stand-in for workers/: a data set of numbered rows and a worker whose records follow from the task alone.

`Fakes` is the whole of it and pickles, so that Ray actors can use it too.
"""

import hashlib
import os
import threading
from dataclasses import dataclass, field
from typing import Any

from orchestrator.executors import one_line
from orchestrator.plan import Backend
from workers.scoring import Judge
from workers.tasks import Canary, Score
from workers.work import DrafterSpec, MethodTask, ModelSpec, SampleTask


@dataclass(frozen=True)
class FakeRow:
    id: str
    prompt: str
    reference: str


@dataclass(frozen=True)
class FakeTask:
    """`size` rows r0, r1, ...; a text is right if it names an even row (an odd one where `inverted`).

    Scoring row `unscorable` raises; scoring row `fatal` ends the process.
    """

    name: str
    size: int = 40
    scorer: str = "fake-1"
    revision: str = "data-1"
    unscorable: str | None = None
    fatal: str | None = None
    inverted: bool = False
    canaries: tuple[Canary, ...] = ()

    @property
    def rows(self) -> tuple[FakeRow, ...]:
        return tuple(FakeRow(f"r{i}", f"prompt {i}", str(i)) for i in range(self.size))

    def score(self, row: FakeRow, text: str) -> Score:
        if row.id == self.unscorable:
            raise RuntimeError("this text\nbreaks the scorer")
        if row.id == self.fatal:
            os._exit(3)
        return Score(int(row.reference) % 2 == self.inverted and row.id in text, text)


class FakeJudge:
    """Scores in this process."""

    def score(self, score: Any, row: Any, text: str) -> Score:
        try:
            return score(row, text)
        except Exception as error:
            return Score(None, None, one_line(error))

    def close(self) -> None: ...


class DeadlyJudge(Judge):
    """A real one that takes the process which holds it along, at a text of row `r8`."""

    def score(self, score: Any, row: Any, text: str) -> Score:
        if row.id == "r8":
            os._exit(1)
        return super().score(score, row, text)


@dataclass(frozen=True)
class Fakes:
    """How the fake workers behave. `deadly` and `failing` hold (drafter name, row id); "none" is the control.

    A deadly sample ends the worker (by `os._exit` where `exits`), a hanging one never ends, a failing one is recorded
    as failed. `journal` sees every task that a worker of this process is given; `loads` every model. `unloadable`
    models raise, or never end to load where they are `endless`. `trained` holds the rows, by drafter and task, that
    drafters were trained on.
    """

    deadly: frozenset[tuple[str, str]] = frozenset()
    failing: frozenset[tuple[str, str]] = frozenset()
    buggy: frozenset[tuple[str, str]] = frozenset()
    unloadable: frozenset[str] = frozenset()
    hanging: frozenset[tuple[str, str]] = frozenset()
    endless: bool = False
    exits: bool = False
    revision: str = "weights-1"
    task: FakeTask = field(default_factory=lambda: FakeTask("fake"))
    trained: dict[str, dict[str, frozenset[str]]] = field(default_factory=dict, hash=False)
    journal: list[SampleTask] = field(default_factory=list, hash=False)
    loads: list[str] = field(default_factory=list, hash=False)

    def backend(self) -> Backend:
        return Backend(
            self.load_task,
            self.resolve_model,
            resolve_drafter,
            lambda model: {"fake": 1},
            self.make_worker,
            lambda drafter: self.trained.get(drafter.name, {}),
            FakeJudge,
        )

    def load_task(self, name: str, options: dict[str, Any]) -> FakeTask:
        if str(options.get("path", "")).endswith(".jsonl"):
            raise ValueError(f"path: no file {options['path']}; give a JSON-lines file")
        return self.task

    def resolve_model(self, name: str, options: dict[str, Any]) -> ModelSpec:
        stop_ids, chat = options.get("stop_ids"), options.get("chat")
        return ModelSpec(
            name,
            options["family"],
            options["path"],
            self.revision,
            options["block_length"],
            mask_id=options.get("mask_id"),
            stop_ids=stop_ids and tuple(stop_ids),
            chat=tuple(chat.items()) if chat else chat,
            exact=options["family"] not in ("llada", "dream"),
        )

    def make_worker(self, model: ModelSpec) -> "FakeWorker":
        self.loads.append(model.name)
        if model.name in self.unloadable:
            if self.endless:
                threading.Event().wait()
            raise OSError("weights cannot be read")
        return FakeWorker(self)


def resolve_drafter(name: str, options: dict[str, Any]) -> DrafterSpec:
    rest = tuple((key, value) for key, value in options.items() if key not in ("method", "checkpoint"))
    return DrafterSpec(name, options["method"], options["checkpoint"], f"sha of {name}", rest)


class FakeWorker:
    """Decodes nothing. A record is a function of the cell and the row."""

    passes = 0

    def __init__(self, fakes: Fakes) -> None:
        self._fakes = fakes

    def run(self, task: SampleTask) -> list[dict[str, Any]]:
        self._fakes.journal.append(task)
        methods = [method for method in (task.control, *task.methods) if method is not None]
        for method in methods:
            if (_drafter(method), task.row) in self._fakes.deadly:
                self._die()
            if (_drafter(method), task.row) in self._fakes.hanging:
                threading.Event().wait()
        return [self._record(task, method) for method in methods]

    def _die(self) -> None:
        if self._fakes.exits:
            os._exit(1)
        raise MemoryError("CUDA error: out of memory")

    def _record(self, task: SampleTask, method: MethodTask) -> dict[str, Any]:
        sample = (_drafter(method), task.row)
        failed, bug = sample in self._fakes.failing, sample in self._fakes.buggy
        if failed:  # nothing was measured
            return self._about(task, method) | {"status": "failed", "error": "ValueError: no"}
        text = f"{task.row} at T{task.decode.temperature:g} s{task.decode.seed}"
        sha = hashlib.sha256(text.encode()).hexdigest()
        return self._about(task, method) | {
            "status": "ok",
            "error": None,
            "text": text if method.drafter is None else None,
            "text_sha": sha,
            "tokens": [1, 2] if method.drafter is None else None,
            "length": 2,
            "nfe": 100 - method.budget,
            "cache_passes": 1,
            "steps": 100,
            "drafted": method.budget,
            "drafted_passes": 10,
            "accepted": method.budget,
            "accepted_by_depth": [10],
            "control_nfe": 100,
            "control_seconds": 2.0,
            "control_sha": sha,
            "identical": True,
            "difference": "bug" if bug else None,
            "seconds": {"prefill": 0.1, "target": 1.0, "draft": 0.1, "rest": 0.1},
        }

    def _about(self, task: SampleTask, method: MethodTask) -> dict[str, Any]:
        return {
            "kind": "decode",
            "sweep": task.sweep,
            "cell": method.cell,
            "row": task.row,
            "attempt": method.attempt,
            "device": "cpu",
            "dtype": "float32",
            "threads": 1,
            "node": "here",
            "started": 1.0,
            "finished": 2.0,
        }


def _drafter(method: MethodTask) -> str:
    return "none" if method.drafter is None else method.drafter.name
