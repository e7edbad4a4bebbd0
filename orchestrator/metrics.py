"""A running sweep in the cluster's own monitoring: Ray's custom metrics, which its agents offer to Prometheus.

    driver = Driver(..., meter=Metrics("quickstart"))
    executor = RayExecutor(Metered(make_worker, "quickstart"), ...)

COUNTERS and GAUGES say what there is; in Prometheus `ray_` is before every name and `_total` after a counter's.
dashboards/grafana/sweep.json shows them.

Ray forgets a gauge that is not set again within its report interval (10 s; the agents drop it after 20), so all are set
every few seconds and are gone soon after their driver. Counters stay at their last value until the node's Ray ends;
their rate is then 0. Labels are bounded: a grid has so many models, tasks and methods.
"""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.executors import MakeWorker
from orchestrator.grid import Cell
from orchestrator.ledger import Record
from orchestrator.plan import Worker
from orchestrator.progress import STATES, Progress
from orchestrator.tally import share_of
from workers.work import ModelSpec, Work

SECONDS = 4.0  # between two settings of the gauges: often enough for Ray, and a few calls a second
_log = logging.getLogger(__name__)

Labels = tuple[str, ...]
AXES: Labels = ("sweep", "model", "task", "method")
COUNTERS: Mapping[str, tuple[Labels, str]] = {  # since the driver started
    "spot_decoded": (AXES, "Samples decoded."),
    "spot_failures": ((*AXES, "cause"), "Samples that failed."),
    "spot_passes": (AXES, "Target passes of the decoded samples: their NFE."),
    "spot_control_passes": (AXES, "Target passes of the draft-free control on the same prompts."),
    "spot_accepted": (AXES, "Drafts accepted."),
    "spot_drafted_passes": (AXES, "Target passes that carried drafts."),
    "spot_tokens": (AXES, "Tokens of the decoded texts."),
    "spot_decode_seconds": (AXES, "Time that the decoding of these texts took, in seconds."),
}
GAUGES: Mapping[str, tuple[Labels, str]] = {  # of the whole sweep
    "spot_samples": ((*AXES, "state"), "Samples that are done, failed, or left."),
    "spot_cells": (("sweep", "state"), "Cells that are done, or left."),
    "spot_workers": (("sweep", "model", "state"), f"Workers that are {', '.join(STATES)}."),
    "spot_passes_in_flight": (("sweep", "model"), "Target passes of the samples that a worker is decoding."),
    "spot_samples_per_second": (("sweep",), "Samples a second over the last five minutes."),
    "spot_seconds_left": (("sweep",), "Time left at that rate, in seconds."),
    "spot_texts_to_score": (("sweep",), "Texts that are decoded and not scored."),
    "spot_ledger_lag": (("sweep",), "Records that are not durable yet."),
    "spot_mlflow_lag": (("sweep",), "Durable records that MLflow lacks."),
}


def of_ray() -> Any:
    """Ray's `Counter` and `Gauge`, as long as this process is connected to a cluster."""
    import ray
    from ray.util import metrics

    return metrics if ray.is_initialized() else None


class Metrics:
    """The meter of one driver: a `live.Meter`. Whatever Ray makes of it, the sweep goes on."""

    def __init__(
        self, sweep: str, instruments: Callable[[], Any] = of_ray, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._sweep, self._instruments, self._clock = sweep, instruments, clock
        self._made: dict[str, Any] = {}
        self._due: defaultdict[tuple[str, Labels], float] = defaultdict(float)  # of the counters, since the last `show`
        self._set: set[tuple[str, Labels]] = set()  # the gauges that were told
        self._next = float("-inf")
        self._off = False

    def add(self, cell: Cell, record: Record) -> None:
        """A decode record of this run."""
        axes = share_of(cell)
        if record["status"] != "ok":
            self._due["spot_failures", (*axes, record.get("cause") or "exception")] += 1
            return
        for name, amount in _measured(record):
            self._due[name, axes] += amount

    def show(self, progress: Progress, ledger_lag: int, mlflow_lag: int) -> None:
        """Tell Ray, at most every SECONDS."""
        if self._off or self._clock() < self._next:
            return
        self._next = self._clock() + SECONDS
        try:
            if (ray := self._instruments()) is not None:
                self._tell(ray, dict(_gauges(progress, ledger_lag, mlflow_lag)))
        except Exception as error:  # the border: a sweep is not to fail of its metrics
            self._off = True
            _log.warning("no more Ray metrics of this sweep: %s: %s", type(error).__name__, error)

    def _tell(self, ray: Any, gauges: Mapping[tuple[str, Labels], float]) -> None:
        for (name, labels), amount in self._due.items():
            if amount > 0:
                self._instrument(ray.Counter, COUNTERS, name).inc(amount, self._tags(COUNTERS, name, labels))
        self._due.clear()
        gone = {gauge: 0.0 for gauge in self._set - gauges.keys() if gauge[0] == "spot_workers"}  # in no such state now
        for (name, labels), value in {**gone, **gauges}.items():
            self._instrument(ray.Gauge, GAUGES, name).set(value, self._tags(GAUGES, name, labels))
        self._set |= gauges.keys()

    def _instrument(self, kind: Any, known: Mapping[str, tuple[Labels, str]], name: str) -> Any:
        if name not in self._made:
            labels, said = known[name]
            self._made[name] = kind(name, description=said, tag_keys=labels)
        return self._made[name]

    def _tags(self, known: Mapping[str, tuple[Labels, str]], name: str, labels: Labels) -> dict[str, str]:
        return dict(zip(known[name][0], (self._sweep, *labels), strict=True))


def _measured(record: Record) -> Iterator[tuple[str, float]]:
    yield "spot_decoded", 1
    yield "spot_passes", record["nfe"]
    yield "spot_control_passes", record.get("control_nfe") or 0
    yield "spot_accepted", record.get("accepted") or 0
    yield "spot_drafted_passes", record.get("drafted_passes") or 0
    yield "spot_tokens", record.get("length") or 0
    yield "spot_decode_seconds", sum((record.get("seconds") or {}).values())


def _gauges(progress: Progress, ledger_lag: int, mlflow_lag: int) -> Iterator[tuple[tuple[str, Labels], float]]:
    for share in progress.shares:
        left = share.planned - share.ok - share.failed
        for state, number in (("done", share.ok), ("failed", share.failed), ("left", left)):
            yield ("spot_samples", (share.model, share.task, share.method, state)), number
    yield ("spot_cells", ("done",)), progress.cells_done
    yield ("spot_cells", ("left",)), progress.cells - progress.cells_done
    for state in STATES:
        for model, counts in progress.workers.items():
            yield ("spot_workers", (model, state)), counts.get(state, 0)
    yield ("spot_samples_per_second", ()), progress.rate
    if progress.seconds_left is not None:
        yield ("spot_seconds_left", ()), progress.seconds_left
    yield ("spot_texts_to_score", ()), progress.to_score
    yield ("spot_ledger_lag", ()), ledger_lag
    yield ("spot_mlflow_lag", ()), mlflow_lag


# ---- in the actors


@dataclass(frozen=True)
class Metered:
    """Makes workers as `make_worker` does, which tell Ray the passes that they have in flight. Pickles."""

    make_worker: MakeWorker
    sweep: str

    def __call__(self, model: ModelSpec) -> Worker:
        return _MeteredWorker(self.make_worker(model), {"sweep": self.sweep, "model": model.name})


class _MeteredWorker:
    """A worker with a thread that tells of it, for as long as its process lives."""

    def __init__(self, worker: Worker, tags: dict[str, str]) -> None:
        self._worker, self._tags = worker, tags
        self._before: int | None = None  # passes made before the task that is under way
        threading.Thread(target=self._tell, name="metrics", daemon=True).start()

    @property
    def passes(self) -> int:
        """How many target passes the worker has made."""
        return self._worker.passes

    @property
    def in_flight(self) -> int:
        """Those of the task that it is at, whose records nobody has yet."""
        before = self._before
        return self.passes - before if before is not None else 0

    def run(self, task: Work) -> Any:
        """The worker's records of `task`."""
        self._before = self.passes
        try:
            return self._worker.run(task)
        finally:
            self._before = None

    def _tell(self) -> None:
        try:
            labels, said = GAUGES["spot_passes_in_flight"]
            gauge = of_ray().Gauge("spot_passes_in_flight", description=said, tag_keys=labels)
            while True:
                gauge.set(self.in_flight, self._tags)
                time.sleep(SECONDS)
        except Exception as error:  # the border, as above
            _log.warning("no Ray metrics of this worker: %s: %s", type(error).__name__, error)
