"""Which worker holds which model and which task goes where: a pure state machine, for samples and traces alike.

No Ray, no clock, no files: the driver tells it what happened (`joined`, `started`, `finished_job`, `died`, `left`) and
asks it what to do next (`decide`); simulate.py does the same with thousands of GPUs on paper. The aims, in order: a
first wave over the whole grid early, models loaded as rarely as that allows, a short tail. design.md §5.
"""

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from workers.failure import Cause
from workers.work import SampleTask, Work

IN_FLIGHT = 2  # tasks a worker holds: one being decoded, one waiting, so that it never idles on the driver
MOST_LOSSES = 10  # machines that may vanish around a job before it is blamed for it: preemption is nobody's fault
LONGEST_REST = 60.0  # seconds before a worker that keeps failing is started again


@dataclass(frozen=True)
class Job:
    """A task on its way. `number` tells jobs apart.

    `deaths` counts the workers that died of it, `losses` the machines that vanished around it.
    """

    number: int
    wave: int
    task: Work
    deaths: int = 0
    losses: int = 0

    @property
    def model(self) -> str:
        """The name of the model that decodes it."""
        return self.task.model.name

    @property
    def suspect(self) -> bool:
        """A worker has died of it. It shares no worker: a neighbour's delivery, lost in a death, would be blamed."""
        return self.deaths > 0


@dataclass(frozen=True)
class Start:
    """Start worker `worker` with `model`; its process is a new one."""

    worker: int
    model: str


@dataclass(frozen=True)
class Assign:
    """Send `job` to `worker`."""

    worker: int
    job: Job


@dataclass(frozen=True)
class Stop:
    """End the process of `worker`: it is needed for another model."""

    worker: int


Decision = Start | Assign | Stop


@dataclass
class _Slot:
    """A place for a worker process, on a device of some `kind`. `jobs` are in the order in which the worker runs them.

    `failures` counts the deaths since its last delivery, `unfit` has the models that it cannot load.
    """

    kind: str
    unfit: set[str]
    model: str | None = None
    ready: bool = False
    jobs: deque[Job] = field(default_factory=deque)
    failures: int = 0
    resting: bool = False


def decodings(task: Work) -> float:
    """The size of a task where no better is known: how many texts it decodes, or traces."""
    return 1.0 + len(task.methods) if isinstance(task, SampleTask) else float(len(task.rows))


class Schedule:
    """The state of a sweep's work: every job is queued, at a worker, done or condemned. What it does is O(models)."""

    def __init__(
        self,
        waves: Iterable[Iterable[Work]],
        workers: int = 0,
        retries: int = 2,
        fits: Callable[[str, str], bool] = lambda model, kind: True,
        cost: Callable[[Work], float] = decodings,
    ) -> None:
        """`waves` of tasks; `workers` that are there from the start, numbered from 0, as others may join.

        A task is taken apart at its `retries`-th death. `fits` says whether a device of some kind has room for a
        model, `cost` how long a task takes relative to others: models get workers in proportion to it.
        """
        assert retries > 0
        self._numbers = count()
        self._retries, self._fits, self._cost = retries, fits, cost
        self._slots: dict[int, _Slot] = {}
        self._open: dict[int, None] = {}  # workers that something has happened to since the last decision
        self._parked: dict[int, None] = {}  # those that there was nothing for
        self._rests: list[tuple[float, int]] = []  # heap of (until when, worker)
        self._queues: dict[str, dict[int, deque[Job]]] = {}
        self._queued: Counter[str] = Counter()
        self._left: dict[str, float] = {}  # cost of what is queued
        self._holders: Counter[str] = Counter()  # workers that hold or load a model
        self._running = 0
        self._failed_starts: Counter[tuple[str, str]] = Counter()  # in a row, by model and kind
        self._draining = False
        self.given_up: dict[str, str] = {}  # model -> why it could not be loaded; its tasks are left undone
        for wave, tasks in enumerate(waves):
            for task in tasks:
                self._queue(Job(next(self._numbers), wave, task), front=False)
        for worker in range(workers):
            self.joined(worker)

    # ---- what to do next

    @property
    def finished(self) -> bool:
        """Nothing is running and nothing will be."""
        return not self._running and (self._draining or not self._queues)

    @property
    def stuck(self) -> bool:
        """Only a worker that joins can change anything: no worker is there, or none that fits what is left."""
        if self.finished or self._running or self._open:
            return False
        return not any(slot.resting or (slot.model and not slot.ready) for slot in self._slots.values())

    @property
    def wakes(self) -> float:
        """When a worker that rests after a failure is to be started again, in seconds; infinity if none does."""
        return self._rests[0][0] if self._rests else math.inf

    @property
    def workers(self) -> dict[str, int]:
        """How many workers hold each model, starting ones included."""
        return {model: holders for model, holders in self._holders.items() if holders}

    def states(self) -> dict[str, dict[str, int]]:
        """By model how many workers are busy, idle or loading it; under "" those that wait to be started again."""
        states: dict[str, Counter[str]] = {}
        for slot in self._slots.values():
            if word := _state(slot):
                states.setdefault(slot.model or "", Counter())[word] += 1
        return {model: dict(counts) for model, counts in states.items()}

    def decide(self, now: float = 0.0) -> list[Decision]:
        """Everything that can be done at `now` (seconds). Doing it is taken for granted: do all of it in order."""
        if self._draining:
            return []
        while self._rests and self._rests[0][0] <= now:
            self._rested(heapq.heappop(self._rests)[1])
        asked = sorted(self._open, key=self._choices)  # a device that few models fit has the first pick
        self._open.clear()
        decisions: list[Decision] = []
        for depth in range(IN_FLIGHT):  # a first task for every worker before a second for any: a short tail
            for number in asked:
                if len(self._slots[number].jobs) == depth:
                    decisions += self._next(number, self._slots[number])
        return decisions

    def drain(self) -> None:
        """Hand out nothing more; what is running may end."""
        self._draining = True

    def dismiss(self) -> list[Decision]:
        """End every worker, so that its cores and its GPU are free: nothing is left to decode."""
        held = {number: slot for number, slot in self._slots.items() if slot.model is not None}
        for slot in held.values():
            self._let_go(slot)
        return [Stop(number) for number in held]

    def _next(self, number: int, slot: _Slot) -> list[Decision]:
        target = self._choose(slot)
        if target is not None and target != slot.model and not slot.jobs:
            return self._switch(number, slot, target)
        if target is None or target != slot.model or (slot.jobs and not self._may_wait(slot)):
            self._parked[number] = None
            return []
        job = self._pop(target)
        slot.jobs.append(job)
        self._running += 1
        return [Assign(number, job)]

    def _choose(self, slot: _Slot) -> str | None:
        """The model this slot should work for: its own while it can, unless another's early wave has no worker."""
        if slot.resting or (slot.model is not None and not slot.ready):
            return None  # wait for it
        waiting = [model for model in self._queues if self._wants_worker(model) and model not in slot.unfit]
        best = min(waiting, key=self._urgency, default=None)
        if slot.model not in self._queues:
            return best
        abandoned = best is not None and not self._holders[best] and self._wave(best) < self._wave(slot.model)
        return best if abandoned else slot.model

    def _urgency(self, model: str) -> tuple[int, bool, float]:
        """Smallest first: the earliest wave, then a model that nobody holds, then the most work for a worker."""
        holders = self._holders[model]
        return self._wave(model), holders > 0, -self._left[model] / (holders + 1)

    def _wants_worker(self, model: str) -> bool:
        """Is there more queued than the workers that hold (or are loading) the model can take at once?"""
        return self._queued[model] > IN_FLIGHT * self._holders[model]

    def _may_wait(self, slot: _Slot) -> bool:
        """May the model's next job wait behind the slot's? Not the last ones, which a free worker takes sooner."""
        assert slot.model is not None
        plenty = self._queued[slot.model] >= self._holders[slot.model]
        return plenty and not (slot.jobs[0].suspect or self._first(slot.model).suspect)

    def _switch(self, number: int, slot: _Slot, model: str) -> list[Decision]:
        stop: list[Decision] = [Stop(number)] if slot.model is not None else []
        self._let_go(slot)
        slot.model = model
        self._holders[model] += 1
        return [*stop, Start(number, model)]

    def _choices(self, worker: int) -> int:
        return -len(self._slots[worker].unfit)

    # ---- what happened

    def joined(self, worker: int, kind: str = "") -> None:
        """There is room for one more worker, on a device of this kind."""
        models = {*self._queues, *self._holders}
        unfit = {model for model in models if not self._fits(model, kind) or self._barred(model, kind)}
        self._slots[worker] = _Slot(kind, unfit)
        self._open[worker] = None

    def left(self, worker: int) -> None:
        """There is no room for it any more: its machine is gone. Nobody is to blame."""
        slot = self._slots.pop(worker)
        self._open.pop(worker, None)
        self._parked.pop(worker, None)
        for job in reversed(self._take_back(slot)):
            self._queue(_lost(job))
        self._let_go(slot)

    def started(self, worker: int) -> None:
        """The worker has loaded its model."""
        slot = self._slots[worker]
        slot.ready = True
        self._failed_starts.pop((slot.model or "", slot.kind), None)
        self._open[worker] = None

    def finished_job(self, worker: int, number: int) -> None:
        """The worker has delivered job `number`."""
        slot = self._slots[worker]
        slot.jobs.remove(next(job for job in slot.jobs if job.number == number))
        slot.failures = 0
        self._running -= 1
        self._touch(worker)

    def died(self, worker: int, error: str, cause: Cause = "died", now: float = 0.0) -> Job | None:
        """The worker's process is gone. The job it was running is to blame; the one that waited just goes back.

        Returns the job if it is condemned: a single cell that has killed its share of workers. A worker that dies
        before it is ready has found its model at fault, or no room for one more worker. The first failure is made up
        for at once, every further one without a delivery between waits longer.
        """
        slot = self._slots[worker]
        model, was_ready, jobs = slot.model, slot.ready, self._take_back(slot)
        self._let_go(slot)
        self._rest(worker, slot, now)
        if not was_ready:
            if cause != "node-lost":
                self._failed_to_start(slot, model or "", error)
            return None
        for job in reversed(jobs[1:]):
            self._queue(job)
        if jobs and cause == "node-lost" and jobs[0].losses < MOST_LOSSES:
            self._queue(_lost(jobs[0]))
            return None
        return self._blame(jobs[0]) if jobs else None

    def _failed_to_start(self, slot: _Slot, model: str, error: str) -> None:
        """After `retries` of these in a row: this slot cannot have it, or if no other of its kind has, none of them."""
        self._failed_starts[model, slot.kind] += 1
        if self._failed_starts[model, slot.kind] < self._retries:
            return
        alike = [other for other in self._slots.values() if other.kind == slot.kind]
        if any(other.model == model and other.ready for other in alike):
            slot.unfit.add(model)
            return
        for other in alike:
            other.unfit.add(model)
        if all(model in other.unfit for other in self._slots.values()):
            self.given_up[model] = error
            self._queues.pop(model, None)

    def _barred(self, model: str, kind: str) -> bool:
        return self._failed_starts[model, kind] >= self._retries

    def _blame(self, job: Job) -> Job | None:
        again = replace(job, deaths=job.deaths + 1, task=job.task.again())
        if again.deaths < self._retries:
            self._queue(again)
            return None
        parts: Sequence[Work] = again.task.apart()
        if len(parts) == 1:
            return job
        for part in reversed(parts):  # alone, one more death convicts
            self._queue(Job(next(self._numbers), job.wave, part, deaths=self._retries - 1))
        return None

    # ---- slots

    def _touch(self, worker: int) -> None:
        self._parked.pop(worker, None)
        self._open[worker] = None

    def _unpark(self) -> None:
        """There is more to do than when these were last asked."""
        self._open.update(self._parked)
        self._parked.clear()

    def _rest(self, worker: int, slot: _Slot, now: float) -> None:
        slot.failures += 1
        slot.resting = True
        self._parked.pop(worker, None)
        self._open.pop(worker, None)
        seconds = 0.0 if slot.failures == 1 else min(LONGEST_REST, 2.0 ** (slot.failures - 2))
        heapq.heappush(self._rests, (now + seconds, worker))

    def _rested(self, worker: int) -> None:
        if worker in self._slots and self._slots[worker].resting:
            self._slots[worker].resting = False
            self._open[worker] = None

    def _let_go(self, slot: _Slot) -> None:
        if slot.model is not None:
            self._holders[slot.model] -= 1
            if slot.model in self._queues:
                self._unpark()
        slot.model, slot.ready = None, False

    def _take_back(self, slot: _Slot) -> list[Job]:
        jobs, slot.jobs = list(slot.jobs), deque()
        self._running -= len(jobs)
        return jobs

    # ---- queues

    def _queue(self, job: Job, front: bool = True) -> None:
        if job.model in self.given_up:
            return
        queue = self._queues.setdefault(job.model, {}).setdefault(job.wave, deque())
        (queue.appendleft if front else queue.append)(job)
        self._queued[job.model] += 1
        self._left[job.model] = self._left.get(job.model, 0.0) + self._cost(job.task)
        self._unpark()

    def _first(self, model: str) -> Job:
        return self._queues[model][self._wave(model)][0]

    def _pop(self, model: str) -> Job:
        waves, wave = self._queues[model], self._wave(model)
        job = waves[wave].popleft()
        self._queued[model] -= 1
        self._left[model] -= self._cost(job.task)
        if not waves[wave]:
            del waves[wave]
        if not waves:
            del self._queues[model]
        return job

    def _wave(self, model: str) -> int:
        return min(self._queues[model])


def _lost(job: Job) -> Job:
    """The job once more, after its machine went."""
    return replace(job, losses=job.losses + 1, task=job.task.again())


def _state(slot: _Slot) -> str | None:
    if slot.model is None:
        return "waiting" if slot.resting else None
    return "busy" if slot.jobs else "idle" if slot.ready else "loading"
