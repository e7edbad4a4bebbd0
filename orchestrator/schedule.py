"""Which worker holds which model and which task goes where: a pure state machine, for samples and traces alike.

No Ray, no clock, no files: the driver tells it what happened (`started`, `finished_job`, `died`) and
asks it what to do next (`decide`). The aims, in order: a first wave over the whole grid early, models loaded as rarely
as that allows, a short tail. design.md §5.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from workers.work import Work

IN_FLIGHT = 2  # tasks a worker holds: one being decoded, one waiting, so that it never idles on the driver


@dataclass(frozen=True)
class Job:
    """A task on its way. `deaths` counts the workers that died of it; `number` tells jobs apart."""

    number: int
    wave: int
    task: Work
    deaths: int = 0

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
    """A place for a worker process. `jobs` are in the order in which the worker runs them."""

    model: str | None = None
    ready: bool = False
    jobs: deque[Job] = field(default_factory=deque)


class Schedule:
    """The state of a sweep's work: every job is queued, at a worker, done or condemned."""

    def __init__(self, waves: Iterable[Iterable[Work]], workers: int, retries: int = 2) -> None:
        """`waves` of tasks, `workers` slots; a task is taken apart at its `retries`-th death."""
        assert workers > 0 and retries > 0
        self._numbers = count()
        self._retries = retries
        self._slots = {number: _Slot() for number in range(workers)}
        self._queues: dict[str, dict[int, deque[Job]]] = {}
        self._failed_starts: dict[str, int] = {}
        self._draining = False
        self.given_up: dict[str, str] = {}  # model -> why it could not be loaded; its tasks are left undone
        for wave, tasks in enumerate(waves):
            for task in tasks:
                self._queue(Job(next(self._numbers), wave, task), front=False)

    # ---- what to do next

    @property
    def finished(self) -> bool:
        """Nothing is running and nothing will be."""
        return not any(slot.jobs for slot in self._slots.values()) and (self._draining or not self._queues)

    @property
    def workers(self) -> dict[str, int]:
        """How many workers hold each model, starting ones included."""
        models = [slot.model for slot in self._slots.values() if slot.model is not None]
        return {model: models.count(model) for model in dict.fromkeys(models)}

    def states(self) -> dict[str, int]:
        """How many workers are busy, idle, or loading a model."""
        slots = [slot for slot in self._slots.values() if slot.model is not None]
        words = ["busy" if slot.jobs else "idle" if slot.ready else "loading" for slot in slots]
        return {word: words.count(word) for word in dict.fromkeys(words)}

    def decide(self) -> list[Decision]:
        """Everything that can be done now. Doing it is taken for granted: ask once, do all of it in order."""
        if self._draining:
            return []
        decisions: list[Decision] = []
        for depth in range(IN_FLIGHT):  # a first task for every worker before a second for any: a short tail
            for number, slot in self._slots.items():
                if len(slot.jobs) == depth:
                    decisions += self._next(number, slot)
        return decisions

    def drain(self) -> None:
        """Hand out nothing more; what is running may end."""
        self._draining = True

    def dismiss(self) -> list[Decision]:
        """End every worker, so that its cores and its GPU are free: nothing is left to decode."""
        held = {number: slot for number, slot in self._slots.items() if slot.model is not None}
        for slot in held.values():
            slot.model, slot.ready = None, False
        return [Stop(number) for number in held]

    def _next(self, number: int, slot: _Slot) -> list[Decision]:
        target = self._choose(slot)
        if target is None:
            return []
        if target != slot.model:
            return self._switch(number, slot, target) if not slot.jobs else []
        if not slot.ready or (slot.jobs and (slot.jobs[0].suspect or self._first(target).suspect)):
            return []
        job = self._pop(target)
        slot.jobs.append(job)
        return [Assign(number, job)]

    def _choose(self, slot: _Slot) -> str | None:
        """The model this slot should work for: its own while it can, unless another's early wave has no worker."""
        if slot.model is not None and not slot.ready:
            return None  # wait for it
        waiting = [model for model in self._queues if self._wants_worker(model)]
        best = min(waiting, key=self._urgency, default=None)
        if slot.model not in self._queues:
            return best
        abandoned = best is not None and self._holders(best) == 0 and self._wave(best) < self._wave(slot.model)
        return best if abandoned else slot.model

    def _urgency(self, model: str) -> tuple[int, bool, float]:
        """Smallest first: the earliest wave, then a model that nobody holds, then the most work for a worker."""
        holders = self._holders(model)
        return self._wave(model), holders > 0, -self._queued(model) / (holders + 1)

    def _wants_worker(self, model: str) -> bool:
        """Is there more queued than the workers that hold (or are loading) the model can take at once?"""
        return self._queued(model) > IN_FLIGHT * self._holders(model)

    def _switch(self, number: int, slot: _Slot, model: str) -> list[Decision]:
        stop: list[Decision] = [Stop(number)] if slot.model is not None else []
        slot.model, slot.ready = model, False
        return [*stop, Start(number, model)]

    # ---- what happened

    def started(self, worker: int) -> None:
        """The worker has loaded its model."""
        self._slots[worker].ready = True
        self._failed_starts.pop(self._slots[worker].model or "", None)

    def finished_job(self, worker: int, number: int) -> None:
        """The worker has delivered job `number`."""
        slot = self._slots[worker]
        job = next(job for job in slot.jobs if job.number == number)
        slot.jobs.remove(job)

    def died(self, worker: int, error: str) -> Job | None:
        """The worker's process is gone. The job it was running is to blame; the one that waited just goes back.

        Returns the job if it is condemned: a single cell that has killed its share of workers. A worker that dies
        before it is ready has found its model at fault, or no room for one more worker.
        """
        slot = self._slots[worker]
        if not slot.ready:
            self._failed_to_start(worker, error)
            return None
        jobs, slot.model, slot.ready, slot.jobs = list(slot.jobs), None, False, deque()
        for job in reversed(jobs[1:]):
            self._queue(job)
        return self._blame(jobs[0]) if jobs else None

    def _failed_to_start(self, worker: int, error: str) -> None:
        """After `retries` of these in a row: one slot fewer if other workers hold the model, else it is given up."""
        slot = self._slots[worker]
        model, slot.model = slot.model, None
        assert model is not None and not slot.jobs
        self._failed_starts[model] = self._failed_starts.get(model, 0) + 1
        if self._failed_starts[model] < self._retries:
            return
        if any(other.model == model and other.ready for other in self._slots.values()):
            del self._slots[worker]
        else:
            self.given_up[model] = error
            self._queues.pop(model, None)

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

    # ---- queues

    def _queue(self, job: Job, front: bool = True) -> None:
        if job.model in self.given_up:
            return
        queue = self._queues.setdefault(job.model, {}).setdefault(job.wave, deque())
        (queue.appendleft if front else queue.append)(job)

    def _first(self, model: str) -> Job:
        return self._queues[model][self._wave(model)][0]

    def _pop(self, model: str) -> Job:
        waves, wave = self._queues[model], self._wave(model)
        job = waves[wave].popleft()
        if not waves[wave]:
            del waves[wave]
        if not waves:
            del self._queues[model]
        return job

    def _wave(self, model: str) -> int:
        return min(self._queues[model])

    def _queued(self, model: str) -> int:
        return sum(len(queue) for queue in self._queues[model].values())

    def _holders(self, model: str) -> int:
        return self.workers.get(model, 0)
