"""A cluster on paper: the schedule itself, run against simulated devices that load, decode, fail, come and go.

    python benchmarks/schedule.py     # the paper's grids on a thousand GPUs

A discrete-event simulation: what takes a GPU a week takes seconds here, and a seed makes every run the same. It knows
nothing of Ray, nor what a decision costs to carry out.
"""

import heapq
import math
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from orchestrator.schedule import Assign, Job, Schedule, Start
from workers.failure import Cause
from workers.work import Work


@dataclass(frozen=True)
class Device:
    """One GPU, there from `joins` until `leaves`, in seconds. `speed` multiplies how fast it loads and decodes."""

    kind: str = ""
    speed: float = 1.0
    joins: float = 0.0
    leaves: float = math.inf


@dataclass(frozen=True)
class Faults:
    """What goes wrong: a mean time between a device's failures in seconds, the chance that a load fails, poison tasks.

    A poison task kills its worker half way through; any other failure comes when it likes.
    """

    mean_seconds: float = math.inf
    load: float = 0.0
    poison: Callable[[Work], bool] = lambda task: False


@dataclass
class Run:
    """What became of a simulated sweep. `makespan` and `busy` (device seconds of decoding that was delivered) in
    seconds, `loads` by model; `decided` is the real time that the schedule took, over `events` events.
    """

    makespan: float = 0.0
    busy: float = 0.0
    loads: Counter[str] = field(default_factory=Counter)
    done: list[Job] = field(default_factory=list)
    condemned: list[Job] = field(default_factory=list)
    deaths: int = 0
    events: int = 0
    decided: float = 0.0


@dataclass
class _Worker:
    """A device at work: `life` tells its processes apart, so that what a dead one would have done does not happen."""

    device: Device
    life: int = 0
    queue: deque[Job] = field(default_factory=deque)


def simulate(
    schedule: Schedule,
    devices: Sequence[Device],
    load_seconds: Callable[[str], float],
    task_seconds: Callable[[Work], float],
    faults: Faults | None = None,
    seed: int = 0,
) -> Run:
    """Run `schedule`, which has no workers yet, on `devices` to its end, or until nothing more can happen."""
    return _Simulation(schedule, devices, load_seconds, task_seconds, faults or Faults(), random.Random(seed)).run()


class _Simulation:
    def __init__(
        self,
        schedule: Schedule,
        devices: Sequence[Device],
        load_seconds: Callable[[str], float],
        task_seconds: Callable[[Work], float],
        faults: Faults,
        chance: random.Random,
    ) -> None:
        self._schedule, self._faults, self._chance = schedule, faults, chance
        self._load_seconds, self._task_seconds = load_seconds, task_seconds
        self._workers = {number: _Worker(device) for number, device in enumerate(devices)}
        self._run, self._now, self._order = Run(), 0.0, 0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        for number, device in enumerate(devices):
            self._at(device.joins, lambda n=number: self._join(n))  # type: ignore[misc]
            if device.leaves < math.inf:
                self._at(device.leaves, lambda n=number: self._leave(n))  # type: ignore[misc]

    def run(self) -> Run:
        while self._agenda and not self._schedule.finished:
            now = self._now = self._agenda[0][0]
            while self._agenda and self._agenda[0][0] == now:
                heapq.heappop(self._agenda)[2]()
                self._run.events += 1
            self._decide()
        return self._run

    def _decide(self) -> None:
        began = time.perf_counter()
        decisions = self._schedule.decide(self._now)
        self._run.decided += time.perf_counter() - began
        for decision in decisions:
            worker = self._workers[decision.worker]
            if isinstance(decision, Start):
                self._start(decision.worker, worker, decision.model)
            elif isinstance(decision, Assign):
                worker.queue.append(decision.job)
                if len(worker.queue) == 1:
                    self._begin(decision.worker, worker)
            else:
                worker.life += 1

    def _tell(self, what: Callable[[], Job | None]) -> Job | None:
        """The schedule is told of something; that it takes time counts, too."""
        began = time.perf_counter()
        said = what()
        self._run.decided += time.perf_counter() - began
        return said

    # ---- what happens to a device

    def _join(self, number: int) -> None:
        self._schedule.joined(number, self._workers[number].device.kind)

    def _leave(self, number: int) -> None:
        worker = self._workers[number]
        worker.life += 1
        worker.queue.clear()
        self._schedule.left(number)

    def _start(self, number: int, worker: _Worker, model: str) -> None:
        self._run.loads[model] += 1
        worker.life += 1
        worker.queue.clear()
        seconds = self._load_seconds(model) / worker.device.speed
        if self._chance.random() < self._faults.load:
            self._in(seconds, worker, lambda: self._die(number, worker, "exception"))
            return
        self._in(seconds, worker, lambda: self._tell(lambda: self._schedule.started(number)))
        if self._faults.mean_seconds < math.inf:
            after = seconds + self._chance.expovariate(1.0 / self._faults.mean_seconds)
            self._in(after, worker, lambda: self._die(number, worker, "died"))

    def _begin(self, number: int, worker: _Worker) -> None:
        job = worker.queue[0]
        seconds = self._task_seconds(job.task) / worker.device.speed
        if self._faults.poison(job.task):
            self._in(seconds / 2, worker, lambda: self._die(number, worker, "oom-host"))
        else:
            self._in(seconds, worker, lambda: self._deliver(number, worker, job, seconds))

    def _deliver(self, number: int, worker: _Worker, job: Job, seconds: float) -> None:
        worker.queue.popleft()
        self._run.done.append(job)
        self._run.busy += seconds
        self._run.makespan = self._now
        if worker.queue:
            self._begin(number, worker)
        self._tell(lambda: self._schedule.finished_job(number, job.number))

    def _die(self, number: int, worker: _Worker, cause: Cause) -> None:
        worker.life += 1
        worker.queue.clear()
        self._run.deaths += 1
        condemned = self._tell(lambda: self._schedule.died(number, "simulated", cause, self._now))
        if condemned is not None:
            self._run.condemned.append(condemned)
        self._at(self._schedule.wakes, lambda: None)

    # ---- the agenda

    def _in(self, seconds: float, worker: _Worker, what: Callable[[], object]) -> None:
        """`what` happens to this process of the worker, unless it is gone by then."""
        life = worker.life
        self._at(self._now + seconds, lambda: what() if worker.life == life else None)  # type: ignore[arg-type,return-value]

    def _at(self, when: float, what: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._agenda, (when, self._order, what))
