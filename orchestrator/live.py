"""What a running sweep tells of itself: to the terminal, to `watch` elsewhere, and to the cluster's metrics.

All three are views. Nothing of it is needed to go on with a sweep, and none of it can end one.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

from orchestrator.grid import Cell
from orchestrator.ledger import Decoded, Ledger, Record
from orchestrator.plan import Plan
from orchestrator.progress import Progress, View
from orchestrator.standing import write_workers
from orchestrator.tally import Tally

SHOW_SECONDS = 0.25  # between two looks at the terminal
TELL_SECONDS = 5.0  # between two words on the workers in the store


class Meter(Protocol):
    """Where numbers go that a cluster is watched by: orchestrator.metrics.Metrics, or nowhere. No method raises."""

    def add(self, cell: Cell, record: Record) -> None:
        """A decode record of this run."""

    def show(self, progress: Progress, ledger_lag: int, mlflow_lag: int) -> None:
        """How things are now; a lag is a number of records."""


class NoMeter:
    """Nowhere: there is no cluster."""

    def add(self, cell: Cell, record: Record) -> None: ...

    def show(self, progress: Progress, ledger_lag: int, mlflow_lag: int) -> None: ...


class Live:
    """The views of one run."""

    def __init__(self, plan: Plan, ledger: Ledger, view: View, meter: Meter) -> None:
        self._plan, self._ledger, self._view, self._meter = plan, ledger, view, meter
        self._tally = Tally(plan.grid.cells, plan.rows)
        self._show_at = self._tell_at = -math.inf
        self._told: Mapping[str, Mapping[str, int]] | None = None
        results = ledger.results()
        for key, rows in plan.rows.items():
            for row in rows:
                if (record := results.get((key, row))) is not None:
                    self._tally.add(record, self._control_nfe(record))

    def add(self, record: Record, now: float) -> None:
        """A decode record of this run, which the ledger has taken."""
        self._tally.add(record, self._control_nfe(record), now)
        self._meter.add(self._plan.cells[record["cell"]], record)

    def show(
        self, now: float, workers: Mapping[str, Mapping[str, int]], to_score: int, mlflow_lag: int, last: bool = False
    ) -> None:
        """Show how things are, if it is time to, or for the `last` time."""
        if now < self._show_at and not last:
            return
        self._show_at = now + SHOW_SECONDS
        progress = self._tally.progress(now, workers, to_score)
        self._view.update(progress)
        self._meter.show(progress, self._ledger.lag, mlflow_lag)
        if workers != self._told and now >= self._tell_at and self._ledger.trouble is None:
            self._told, self._tell_at = workers, now + TELL_SECONDS
            with suppress(OSError):
                write_workers(self._ledger.folder, workers)

    def _control_nfe(self, record: Record) -> int | None:
        """The passes of the control on the record's prompt. Of what an earlier run left, by the control's own record.

        That holds them in memory, and so half a million records are not read from the disk for this.
        """
        if not isinstance(record, Decoded):
            return record.get("control_nfe")
        control = self._plan.controls.get(self._plan.cells[record["cell"]].group)
        held = self._ledger.results().get((control.key, record["row"])) if control else None
        return held["nfe"] if held is not None and held["status"] == "ok" else None
