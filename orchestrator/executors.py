"""Where decoding runs: in this process, or in Ray actors. One interface, so that the driver knows neither.

A worker is a number. It is started with a model, is sent jobs, which it runs in order, and is stopped or dies; `wait`
says what happened since. Whatever escapes a worker's `run` ends the worker: after a CUDA error its process is not to
be trusted. design.md §5.
"""

import logging
import math
import os
import re
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from orchestrator.config import ROOT, Config, Source, Workers
from orchestrator.errors import UserError
from orchestrator.fleet import Fleet, Machine, bundle, live_nodes, places, startable
from orchestrator.ledger import Record
from orchestrator.plan import Worker
from orchestrator.watchdog import Watchdog
from workers.failure import Cause, cause_of
from workers.work import ModelSpec, Work

MakeWorker = Callable[[ModelSpec], Worker]
OBJECT_STORE_BYTES = 200 << 20  # records are small and travel inline; Ray's default would take a third of the memory
CONNECT_SECONDS = 5.0  # for a cluster's address to answer at all
LOOK_SECONDS = 5.0  # between looks at which nodes there are
IDLE_SECONDS = 0.1  # where there is nothing to wait for, but a worker that rests after a failure
PULSE = "pulse"  # the group of Ray threads that answers while another decodes
MOST_SCORERS = 8  # of `workers.scorers: auto`


@dataclass(frozen=True)
class Joined:
    """There is room for a worker of this number, on a device of this kind (Ray's accelerator type, "" if unknown)."""

    worker: int
    kind: str = ""


@dataclass(frozen=True)
class Left:
    """There is no room for it any more: its machine is gone, with the worker if there was one."""

    worker: int


@dataclass(frozen=True)
class Started:
    """The worker has loaded its model."""

    worker: int


@dataclass(frozen=True)
class Finished:
    """The worker has decoded a job."""

    worker: int
    job: int
    records: list[Record] = field(hash=False)


@dataclass(frozen=True)
class Died:
    """The worker is gone, with whatever it still had to do. `error` is one line."""

    worker: int
    error: str
    cause: Cause = "died"


Event = Joined | Left | Started | Finished | Died


class Executor(Protocol):
    """Runs workers. None of the calls but `wait` blocks."""

    def start(self, worker: int, model: ModelSpec) -> None:
        """Begin loading `model` in a worker that has joined and is not running; `Started` or `Died` follows."""

    def submit(self, worker: int, job: int, task: Work) -> None:
        """Send a job to a started worker; `Finished` or `Died` follows."""

    def stop(self, worker: int) -> None:
        """End an idle worker, or one that is loading."""

    def wait(self, seconds: float) -> list[Event]:
        """What has happened, a worker's deliveries before its death; waits up to `seconds` for a first event."""

    def close(self) -> None:
        """End everything."""


def one_line(error: BaseException) -> str:
    """`ValueError: what it said`, on one line of at most 300 characters."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


@contextmanager
def said_in_one_line(what: str) -> Iterator[None]:
    """Whatever a model or a method raises in this process, as a UserError: `what`, and `one_line` of it."""
    try:
        yield
    except Exception as error:  # the border
        raise UserError("", what, one_line(error)) from None


# ---- in this process


class InlineExecutor:
    """One job an event, in this process: for a debugger, and for tests. The model sets its threads in this process."""

    def __init__(self, make_worker: MakeWorker, count: int = 1) -> None:
        self._make_worker = make_worker
        self._workers: dict[int, Worker] = {}
        self._events: deque[Event] = deque(map(Joined, range(count)))
        self._jobs: deque[tuple[int, int, Work]] = deque()

    def start(self, worker: int, model: ModelSpec) -> None:
        try:
            self._workers[worker] = self._make_worker(model)
            self._events.append(Started(worker))
        except Exception as error:
            self._events.append(Died(worker, one_line(error), cause_of(error)))

    def submit(self, worker: int, job: int, task: Work) -> None:
        self._jobs.append((worker, job, task))

    def stop(self, worker: int) -> None:
        self._workers.pop(worker, None)

    def wait(self, seconds: float) -> list[Event]:
        if self._events:
            found = list(self._events)
            self._events.clear()
            return found
        if not self._jobs:
            time.sleep(min(seconds, IDLE_SECONDS))
            return []
        worker, job, task = self._jobs.popleft()
        try:
            return [Finished(worker, job, self._workers[worker].run(task))]
        except Exception as error:
            del self._workers[worker]
            self._jobs = deque(entry for entry in self._jobs if entry[0] != worker)
            return [Died(worker, one_line(error), cause_of(error))]

    def close(self) -> None:
        self._workers.clear()


# ---- Ray


class Host:
    """The Ray actor: a worker in a process of its own. `passes` answers while `run` is at work."""

    def __init__(self, make_worker: MakeWorker, model: ModelSpec) -> None:
        self._worker = make_worker(model)

    def ready(self) -> None:
        """Returns once the model is loaded."""

    def run(self, task: Work) -> list[Record]:
        """The worker's records of `task`."""
        return self._worker.run(task)

    def passes(self) -> int:
        """How many target passes the worker has made."""
        return self._worker.passes


class RayExecutor:
    """Actors on a cluster at `workers.address`, or on a Ray that is started here with room for `count` of them.

    And for `scorers` tasks beside them (orchestrator/scoring.py). On a cluster every worker has its node: one joins for
    each place on a node that comes, up to `workers.count`, and leaves with it.
    """

    def __init__(self, make_worker: MakeWorker, workers: Workers, count: int, scorers: int = 0) -> None:
        import ray

        self._ray, self._make_worker, self._workers = ray, make_worker, workers
        if not ray.is_initialized():
            connect(workers, count, scorers)
        self._actors: dict[int, Any] = {}
        self._calls: dict[Any, tuple[int, int | None]] = {}  # ref -> (worker, job, or None for `ready`), oldest first
        self._asked: dict[Any, int] = {}  # ref of a `passes` -> worker
        self._watchdog = Watchdog(workers.hang_timeout)
        self._loading = Watchdog(workers.load_timeout)  # none of these is asked anything: loading counts no passes
        self._fleet = Fleet(workers) if workers.address is not None else None
        self._events: list[Event] = list(map(Joined, range(count))) if self._fleet is None else []
        self._looked = -math.inf
        if self._fleet is not None and isinstance(workers.count, int) and startable(workers):
            self._ask_for(workers.count)

    def start(self, worker: int, model: ModelSpec) -> None:
        host = self._ray.remote(**self._options(worker))(Host)
        self._actors[worker] = host.remote(self._make_worker, model)
        self._calls[self._actors[worker].ready.remote()] = (worker, None)
        self._loading.alive(worker, time.monotonic())

    def submit(self, worker: int, job: int, task: Work) -> None:
        if not any(busy == worker for busy, _ in self._calls.values()):
            self._watchdog.alive(worker, time.monotonic())
        self._calls[self._actors[worker].run.remote(task)] = (worker, job)

    def stop(self, worker: int) -> None:
        self._bury(worker)

    def wait(self, seconds: float) -> list[Event]:
        self._look_around()
        if self._events:
            seconds = 0.0
        if not self._calls:
            time.sleep(min(seconds, IDLE_SECONDS))
        events, self._events = self._events + self._collect(seconds) + self._hung(), []
        return events

    def close(self) -> None:
        for worker in list(self._actors):
            self._bury(worker)
        if self._fleet is not None and startable(self._workers):
            self._ask_for(0)
        self._ray.shutdown()

    def _collect(self, seconds: float) -> list[Event]:
        """Deliveries, and deaths after them."""
        deaths: dict[int, Event] = {}
        events: list[Event] = []
        ready = self._ready(self._calls, seconds)
        for ref in [ref for ref in self._calls if ref in ready]:
            event = self._event(ref)
            if isinstance(event, Died):
                deaths.setdefault(event.worker, event)
            else:
                events.append(event)
        for worker in deaths:
            self._bury(worker)
        return events + list(deaths.values())

    def _ready(self, calls: Mapping[Any, Any], seconds: float) -> set[Any]:
        if not calls:
            return set()
        ready, _ = self._ray.wait(list(calls), timeout=seconds)
        if ready:
            ready, _ = self._ray.wait(list(calls), num_returns=len(calls), timeout=0)
        return set(ready)

    def _event(self, ref: Any) -> Event:
        worker, job = self._calls.pop(ref)
        try:
            records = self._ray.get(ref)
        except Exception as error:
            return Died(worker, reason(error), death_cause(error))
        if job is None:
            self._loading.forget(worker)
            return Started(worker)
        if any(busy == worker for busy, _ in self._calls.values()):
            self._watchdog.alive(worker, time.monotonic())
        else:
            self._watchdog.forget(worker)
        return Finished(worker, job, records)

    def _hung(self) -> list[Event]:
        """Ask those that are silent; those that stay so are ended."""
        for ref in self._ready(self._asked, 0.0):
            worker = self._asked.pop(ref)
            try:
                self._watchdog.answered(worker, self._ray.get(ref), time.monotonic())
            except Exception:  # it died of something that its `run` will tell
                continue
        to_ask, silent = self._watchdog.due(time.monotonic())
        for worker in set(to_ask) - set(self._asked.values()):
            self._asked[self._actors[worker].passes.options(concurrency_group=PULSE).remote()] = worker
        _, loading = self._loading.due(time.monotonic())
        no_pass = f"no pass and no delivery for {self._workers.hang_timeout:g} s (workers.hang_timeout)"
        not_loaded = f"its model is not loaded after {self._workers.load_timeout:g} s (workers.load_timeout)"
        hung = dict.fromkeys(silent, no_pass) | dict.fromkeys(loading, not_loaded)
        for worker in hung:
            self._bury(worker)
        return [Died(worker, said, "hung") for worker, said in hung.items()]

    def _look_around(self) -> None:
        """Which nodes have come and gone."""
        if self._fleet is None or time.monotonic() - self._looked < LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        came, gone = self._fleet.update(live_nodes())
        for worker in gone:
            self._bury(worker)
        self._events += [*map(Left, gone), *(Joined(worker, kind) for worker, kind in came.items())]

    def _ask_for(self, count: int) -> None:
        """Have the autoscaler start machines for so many workers."""
        from ray.autoscaler.sdk import request_resources

        request_resources(bundles=[bundle(self._workers)] * count)

    def _bury(self, worker: int) -> None:
        """Forget the worker and its calls, and make sure that its process is gone."""
        self._calls = {ref: call for ref, call in self._calls.items() if call[0] != worker}
        self._asked = {ref: asked for ref, asked in self._asked.items() if asked != worker}
        self._watchdog.forget(worker)
        self._loading.forget(worker)
        if worker in self._actors:
            self._ray.kill(self._actors.pop(worker))

    def _options(self, worker: int) -> dict[str, Any]:
        """An actor is never restarted by Ray: which model comes next is for the schedule to say."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        needs = bundle(self._workers)
        here = None if self._fleet is None else NodeAffinitySchedulingStrategy(self._fleet.node(worker), soft=False)
        return {
            "num_cpus": needs["CPU"],
            "num_gpus": needs.get("GPU", 0),
            "max_restarts": 0,
            "scheduling_strategy": here,
            "concurrency_groups": {PULSE: 1},
            "runtime_env": {"env_vars": environment(self._workers.threads)},
        }


def environment(threads: int) -> dict[str, str]:
    """What a process of Ray's needs to find this project and to use so many threads."""
    paths = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
    }


def connect(workers: Workers, count: int, scorers: int = 0) -> None:
    """Connect to Ray at `workers.address`, or start one here: quiet, with cores for so many workers and scorers."""
    import ray

    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # a CPU actor need not hide the GPUs; no warning
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # of calls that nobody waits for any more, at the end
    os.environ.setdefault("RAY_worker_niceness", "0")  # decoding is what a Ray of our own is for
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if workers.address is not None:
        ray.init(address=workers.address, **quiet)
        return
    spared = {"prestart_worker_first_driver": False, "enable_metrics_collection": False}  # 3 % of a core
    here = {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES, "_system_config": spared, **quiet}
    start = partial(ray.init, address="local", num_cpus=count * workers.threads + scorers, **here)
    try:
        start()
        return
    except Exception:  # Ray raises a bare one where a busy machine, or the end of an earlier Ray, starts it too slowly
        ray.shutdown()
    try:
        start()
    except Exception as error:
        wrong = f"Ray did not start here ({one_line(error)}); try again, or workers.executor=inline"
        raise UserError("", "workers.executor", wrong) from None


def reason(error: Exception) -> str:
    """Why a worker is gone, from Ray's several lines: the exception it raised, or how its process ended."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, BaseException):
        return one_line(cause)
    text = str(error)
    detail = re.search(r"Worker exit detail: (.*)", text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    raised = "creation task" in text and len(lines) > 1
    said = lines[-1] if raised else detail.group(1) if detail else lines[0] if lines else ""
    return f"worker died: {said}"[:300]


def death_cause(error: Exception) -> Cause:
    """Why a worker is gone, by what Ray raises for its calls."""
    from ray.exceptions import ActorUnschedulableError, NodeDiedError, OutOfMemoryError

    raised, text = getattr(error, "cause", None), str(error)
    if isinstance(raised, BaseException):
        return cause_of(raised)
    if isinstance(error, OutOfMemoryError) or "memory monitor" in text or "running low on memory" in text:
        return "oom-host"
    lost = isinstance(error, NodeDiedError | ActorUnschedulableError) or "its node has died" in text
    if lost or getattr(error, "preempted", False):
        return "node-lost"
    return cause_of(error) if "creation task" in text else "died"


# ---- how many workers, and is there room for them


def wanted_workers(workers: Workers) -> int:
    """The asked-for number; `auto` is what this machine, or the cluster connected to, has room for (0 if none)."""
    if isinstance(workers.count, int):
        return workers.count
    return _room(workers) if workers.device == "cuda" else max(1, _room(workers))


def wanted_scorers(workers: Workers, decoding: int) -> int:
    """The asked-for number; `auto` is the cores that `decoding` workers leave over, between 1 and 8."""
    if isinstance(workers.scorers, int):
        return workers.scorers
    return min(MOST_SCORERS, max(1, spare_cores(workers, decoding)))


def spare_cores(workers: Workers, decoding: int) -> int:
    """The cores of this machine, or of the cluster connected to, that `decoding` workers leave over."""
    return max(0, int(sum(machine.get("CPU", 0) for machine in _machines(workers))) - decoding * workers.threads)


def check_room(config: Config, source: Source) -> int:
    """The number of workers to run. UserError, before any model is loaded, where there is no room for them.

    Room is a live machine, or one that the cluster's autoscaler may start, for which the sweep then waits. Connects to
    the cluster if `workers.address` names one; starts nothing here.
    """
    workers = config.workers
    if workers.executor == "inline":
        need = 1
    else:
        if workers.address is not None:
            reach(workers, source)
        need = wanted_workers(workers) or 1
    live, later = _machines(workers), startable(workers)
    room, startable_room = (sum(places(machine, workers) for machine in machines) for machines in (live, later))
    if workers.count == "auto" and room < need <= startable_room:  # `auto` asks for no machine: one costs money
        wrong = "no machine with room is up, and `auto` has none started; name a number"
        raise source.error("workers.count", f"{wrong}, e.g. workers.count={min(startable_room, 8)}")
    if max(room, startable_room) >= need:
        return need
    machines = live or later
    gpus, cores = (sum(machine.get(resource, 0) for machine in machines) for resource in ("GPU", "CPU"))
    place = f"the cluster at {workers.address}" if workers.address else "this machine"
    key = "workers.device" if workers.count == "auto" else "workers.count"
    if workers.device == "cuda" and int(gpus) * workers.per_gpu < need:
        wanted = math.ceil(need / workers.per_gpu)
        raise source.error(key, f"{wanted} GPU(s) needed, {place} has {gpus:g}; workers.device=cpu decodes on the CPU")
    if workers.address:
        raise source.error("workers.count", f"{need * workers.threads} CPU core(s) needed, {place} has {cores:g}")
    return need


def reach(workers: Workers, source: Source) -> None:
    """Connect to the cluster. Ray takes minutes over an address where nobody listens, so that is tried first."""
    host, _, port = str(workers.address).removeprefix("ray://").rpartition(":")
    try:
        if port.isdigit():
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        connect(workers, 0)
    except (OSError, RuntimeError, ValueError) as error:  # ConnectionError is an OSError
        remedy = "start one with: ray start --head; if it asks for a token, set RAY_AUTH_MODE=token"
        wrong = f"no Ray cluster at {workers.address!r} ({one_line(error)}); {remedy}"
        raise source.error("workers.address", wrong) from None


def _room(workers: Workers) -> int:
    return sum(places(machine, workers) for machine in _machines(workers))


def _machines(workers: Workers) -> list[Machine]:
    """The resources of each live machine: the cluster's if there is an address, else this one's."""
    if workers.address is not None:
        import ray

        return list(live_nodes().values()) if ray.is_initialized() else []
    cores = len(os.sched_getaffinity(0))
    if workers.device == "cpu":
        return [{"CPU": cores}]
    import torch

    return [{"CPU": cores, "GPU": torch.cuda.device_count() if torch.cuda.is_available() else 0}]
