"""Where decoding runs: in this process, or in Ray actors. One interface, so that the driver knows neither.

A worker is a number. It is started with a model, is sent jobs, which it runs in order, and is stopped or dies; `wait`
says what happened since. Whatever escapes a worker's `run` ends the worker: after a CUDA error its process is not to
be trusted. design.md §5.
"""

import logging
import os
import re
import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from orchestrator.config import ROOT, Config, Source, Workers
from orchestrator.errors import UserError
from orchestrator.ledger import Record
from orchestrator.plan import Worker
from workers.work import ModelSpec, Work

MakeWorker = Callable[[ModelSpec], Worker]
OBJECT_STORE_BYTES = 200 << 20  # records are small and travel inline; Ray's default would take a third of the memory
CONNECT_SECONDS = 5.0  # for a cluster's address to answer at all
MOST_SCORERS = 8  # of `workers.scorers: auto`


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


Event = Started | Finished | Died


class Executor(Protocol):
    """Runs workers. None of the calls but `wait` blocks."""

    def start(self, worker: int, model: ModelSpec) -> None:
        """Begin loading `model` in a new worker; `Started` or `Died` follows."""

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

    def __init__(self, make_worker: MakeWorker) -> None:
        self._make_worker = make_worker
        self._workers: dict[int, Worker] = {}
        self._events: deque[Event] = deque()
        self._jobs: deque[tuple[int, int, Work]] = deque()

    def start(self, worker: int, model: ModelSpec) -> None:
        try:
            self._workers[worker] = self._make_worker(model)
            self._events.append(Started(worker))
        except Exception as error:
            self._events.append(Died(worker, one_line(error)))

    def submit(self, worker: int, job: int, task: Work) -> None:
        self._jobs.append((worker, job, task))

    def stop(self, worker: int) -> None:
        self._workers.pop(worker, None)

    def wait(self, seconds: float) -> list[Event]:
        if self._events:
            return [self._events.popleft()]
        if not self._jobs:
            return []
        worker, job, task = self._jobs.popleft()
        try:
            return [Finished(worker, job, self._workers[worker].run(task))]
        except Exception as error:
            del self._workers[worker]
            self._jobs = deque(entry for entry in self._jobs if entry[0] != worker)
            return [Died(worker, one_line(error))]

    def close(self) -> None:
        self._workers.clear()


# ---- Ray


class Host:
    """The Ray actor: a worker in a process of its own."""

    def __init__(self, make_worker: MakeWorker, model: ModelSpec) -> None:
        self._worker = make_worker(model)

    def ready(self) -> None:
        """Returns once the model is loaded."""

    def run(self, task: Work) -> list[Record]:
        """The worker's records of `task`."""
        return self._worker.run(task)


class RayExecutor:
    """Actors on a cluster at `workers.address`, or on a Ray that is started here with room for `count` of them.

    And for `scorers` tasks beside them (orchestrator/scoring.py).
    """

    def __init__(self, make_worker: MakeWorker, workers: Workers, count: int, scorers: int = 0) -> None:
        import ray

        self._ray, self._make_worker, self._workers = ray, make_worker, workers
        if not ray.is_initialized():
            connect(workers, count, scorers)
        self._actors: dict[int, Any] = {}
        self._calls: dict[Any, tuple[int, int | None]] = {}  # ref -> (worker, job, or None for `ready`), oldest first

    def start(self, worker: int, model: ModelSpec) -> None:
        host = self._ray.remote(**self._options())(Host)
        self._actors[worker] = host.remote(self._make_worker, model)
        self._calls[self._actors[worker].ready.remote()] = (worker, None)

    def submit(self, worker: int, job: int, task: Work) -> None:
        self._calls[self._actors[worker].run.remote(task)] = (worker, job)

    def stop(self, worker: int) -> None:
        self._ray.kill(self._actors.pop(worker))

    def wait(self, seconds: float) -> list[Event]:
        if not self._calls:
            return []
        ready, _ = self._ray.wait(list(self._calls), timeout=seconds)
        if ready:
            ready, _ = self._ray.wait(list(self._calls), num_returns=len(self._calls), timeout=0)
        deaths: dict[int, Event] = {}
        events: list[Event] = []
        for ref in [ref for ref in self._calls if ref in set(ready)]:
            event = self._event(ref)
            if isinstance(event, Died):
                deaths.setdefault(event.worker, event)
            else:
                events.append(event)
        for worker in deaths:
            self._bury(worker)
        return events + list(deaths.values())

    def close(self) -> None:
        for worker in list(self._actors):
            self._bury(worker)
        self._ray.shutdown()

    def _event(self, ref: Any) -> Event:
        worker, job = self._calls.pop(ref)
        try:
            records = self._ray.get(ref)
        except Exception as error:
            return Died(worker, reason(error))
        return Started(worker) if job is None else Finished(worker, job, records)

    def _bury(self, worker: int) -> None:
        """Forget the worker and its calls, and make sure that its process is gone."""
        self._calls = {ref: call for ref, call in self._calls.items() if call[0] != worker}
        self._ray.kill(self._actors.pop(worker))

    def _options(self) -> dict[str, Any]:
        """An actor is never restarted by Ray: which model comes next is for the schedule to say."""
        return {
            "num_cpus": self._workers.threads,
            "num_gpus": 1 if self._workers.device == "cuda" else 0,
            "max_restarts": 0,
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
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if workers.address is not None:
        ray.init(address=workers.address, **quiet)
        return
    here = {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES, **quiet}
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


# ---- how many workers, and is there room for them


def wanted_workers(workers: Workers) -> int:
    """The asked-for number; `auto` is what this machine, or the cluster connected to, has room for (0 if none)."""
    if isinstance(workers.count, int):
        return workers.count
    gpus, cores = _room(workers)
    return int(gpus) if workers.device == "cuda" else max(1, int(cores) // workers.threads)


def wanted_scorers(workers: Workers, decoding: int) -> int:
    """The asked-for number; `auto` is the cores that `decoding` workers leave over, between 1 and 8."""
    if isinstance(workers.scorers, int):
        return workers.scorers
    return min(MOST_SCORERS, max(1, spare_cores(workers, decoding)))


def spare_cores(workers: Workers, decoding: int) -> int:
    """The cores of this machine, or of the cluster connected to, that `decoding` workers leave over."""
    return max(0, int(_room(workers)[1]) - decoding * workers.threads)


def check_room(config: Config, source: Source) -> int:
    """The number of workers to run. UserError, before any model is loaded, where there is no room for them.

    Connects to the cluster if `workers.address` names one; starts nothing here.
    """
    workers = config.workers
    if workers.executor == "inline":
        need = 1
    else:
        if workers.address is not None:
            reach(workers, source)
        need = wanted_workers(workers) or 1
    gpus, cores = _room(workers)
    place = f"the cluster at {workers.address}" if workers.address else "this machine"
    if workers.device == "cuda" and gpus < need:
        key = "workers.device" if workers.count == "auto" else "workers.count"
        raise source.error(key, f"{need} GPU(s) needed, {place} has {gpus:g}; workers.device=cpu decodes on the CPU")
    if workers.address and cores < need * workers.threads:
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


def _room(workers: Workers) -> tuple[float, float]:
    """(GPUs, CPU cores): the cluster's if there is an address, else this machine's."""
    if workers.address is not None:
        import ray

        if not ray.is_initialized():
            return 0, 0
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        return resources.get("GPU", 0), resources.get("CPU", 0)
    cores = len(os.sched_getaffinity(0))
    if workers.device == "cpu":
        return 0, cores
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0, cores
