"""MLflow as a mirror of the ledger: one parent run a sweep, one nested run a cell, one step a sample. design.md §5.

    mirror = Mirror("sqlite:///runs/mlflow.db", sweep)
    mirror.push(decodes, scores)    # so many more records are durable; returns at once
    mirror.finish("FINISHED")
    rebuild("sqlite:///runs/mlflow.db", Path("runs/first"))   # or all that is missing, from the ledger

The mirror reads the ledger itself, as far as the driver says that it is durable, and keeps no record: while the server
is away, nothing is held back but the place where it stopped. Only the driver writes; nobody should `rebuild` while it
runs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event, Thread

from orchestrator.ledger import Ledger, Record, Sweep, end_status, read_sweep
from orchestrator.mlflow_runs import Drawings, Runs, Status
from orchestrator.mlflow_store import why
from orchestrator.projection import Projection, count_lines, sample_metrics
from orchestrator.segments import read_segments
from workers.store import Place

__all__ = ["Drawings", "Mirror", "rebuild", "sample_metrics", "why"]

TURN_SECONDS = 5.0  # between two looks at the ledger
RETRY_SECONDS = 30.0  # after a failure, before the server is tried again
SETTLING = 0.03  # of a core, that finished cells' summaries and figures take while the sweep decodes; the rest waits
_LINES = 10_000  # that are read at once: the driver may want to end in between
_PENDING = 100_000  # lines that wait for their cell's batch to be full while there is more to read
_log = logging.getLogger(__name__)


class Mirror:
    """Shows the ledger in MLflow, from a thread of its own. No method ever raises for what MLflow does.

    `behind` tells whether MLflow lacks something that the ledger has, as of the last turn or the end; `error` is the
    last failure.
    """

    def __init__(
        self,
        uri: str,
        sweep: Sweep,
        drawings: Drawings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.behind = True
        self.error: str | None = None
        self._uri, self._clock = uri, clock
        self._connect = partial(Runs, uri, sweep, drawings)
        self._project = partial(Projection, sweep)
        self._folder = sweep.folder
        self._before = _sizes(sweep.folder) if isinstance(sweep.folder, Path) else None  # now: the driver will append
        self._durable_before: int | None = None  # lines, counted by the thread
        self._pushed = 0
        self._at: tuple[Runs, Projection] | None = None
        self._mirrored = 0
        self._retry_at = self._settle_at = float("-inf")
        self._status: Status | None = None
        self._ended = Event()
        self._thread = Thread(target=self._work, name="mlflow-mirror", daemon=True)
        self._thread.start()

    @property
    def lag(self) -> int:
        """How many durable records are not known to be in MLflow; 0 until those of an earlier driver are counted."""
        return max(0, (self._durable_before or 0) + self._pushed - self._mirrored)

    def push(self, decodes: Collection[Record], scores: Collection[Record]) -> None:
        """These records, the next ones of the ledger, have become durable. Returns at once."""
        self._pushed += len(decodes) + len(scores)

    def finish(self, status: Status, timeout: float = 120.0) -> None:
        """Send what is missing, give every run its end status, attach tables and report. To be called once.

        Returns after `timeout` seconds at the latest. `behind` then tells whether MLflow lacks something; `rebuild`
        sends it later.
        """
        self._status = status
        self._ended.set()
        self._thread.join(timeout)
        self.behind |= self._thread.is_alive()

    def _work(self) -> None:
        while not self._ended.is_set():
            self._step()
            self._ended.wait(TURN_SECONDS)
        self._guard(self._finish)

    def _step(self) -> None:
        if self._clock() >= self._retry_at:
            self._guard(self._turn)

    def _guard(self, action: Callable[[], object]) -> None:
        """The border: whatever goes wrong between here and MLflow, decoding goes on and the ledger has it all."""
        try:
            action()
        except Exception as failure:
            first, self.error = self.error is None, why(failure)
            self._at, self.behind = None, True
            self._retry_at = self._clock() + RETRY_SECONDS
            if first:
                _log.warning("MLflow at %s is behind, the ledger has everything: %s", self._uri, self.error)

    def _turn(self, settles: bool = True) -> tuple[Runs, Projection]:
        """Bring MLflow to what is durable by now."""
        pushed = self._pushed
        if self._durable_before is None:
            self._durable_before = count_lines(_sizes(self._folder) if self._before is None else self._before)
        runs, projection = self._at = self._at or (self._connect(), self._project())
        if self._before is not None:
            catch_up(runs, projection, self._durable_before + pushed, self._count)
        else:  # what S3 has is durable
            catch_up(runs, projection, count=self._count)
            self._durable_before = projection.read - pushed
        if settles and self._clock() >= self._settle_at:
            busy = time.thread_time()
            runs.settle(projection)
            self._settle_at = self._clock() + (time.thread_time() - busy) / SETTLING
        self.behind = False
        return runs, projection

    def _count(self, lines: int) -> None:
        self._mirrored = max(self._mirrored, lines)  # after a failure, all are read again

    def _finish(self) -> None:
        assert self._status is not None
        runs, projection = self._turn(settles=False)
        self.behind = True  # until the ends are there, too
        runs.finish(projection, self._status)
        self.behind = False


def _sizes(folder: Place) -> list[tuple[Path, int]]:
    """The segments as they are now."""
    return [(path, path.stat().st_size) for path in read_segments(folder)]


def catch_up(
    runs: Runs, projection: Projection, until: int = Projection.ALL, count: Callable[[int], None] = lambda lines: None
) -> None:
    """Send what the ledger's first `until` lines say. `count` is told how many lines MLflow has."""
    waiting = 0
    while read := projection.advance(until, _LINES):
        waiting += read
        runs.send(projection, full_only=waiting < _PENDING)
        if waiting >= _PENDING:
            waiting = 0
            count(projection.read)
    runs.send(projection)
    projection.close()
    count(projection.read)


def rebuild(uri: str, folder: Place, drawings: Drawings | None = None, anew: bool = False) -> None:
    """Bring MLflow to what the ledger in `folder` says, run statuses included. Raises what MLflow raises.

    `anew` deletes the sweep's runs first (MLflow keeps deleted runs until `mlflow gc`).
    """
    sweep = read_sweep(folder)
    runs, projection = Runs(uri, sweep, drawings), Projection(sweep)
    if anew:
        runs.delete()
    try:
        catch_up(runs, projection)
    except BaseException:  # Ctrl-C, a damaged record: no run is to look as if a driver were at work
        with suppress(Exception):
            runs.end(projection, "KILLED")
        raise
    runs.finish(projection, end_status(sweep.rows, Ledger(folder).results()))
