"""MLflow as a mirror of the ledger: one parent run a sweep, one nested run a cell, one step a sample. design.md §5.

    mirror = Mirror("sqlite:///runs/mlflow.db", sweep)
    mirror.push(decodes, scores)    # whatever became durable; returns at once
    mirror.finish("FINISHED")
    rebuild("sqlite:///runs/mlflow.db", Path("runs/first"))   # or all of it again, from the ledger

Nothing is kept here that the ledger does not have: what could not be sent is dropped and read again from the ledger
once the server answers. A sample's metrics carry its own step and time, so sending them twice changes nothing. Only
the driver writes; nobody should `rebuild` while it runs.
"""

from __future__ import annotations

import logging
import os
import queue
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pandas as pd

from orchestrator import results, tables
from orchestrator.grid import Cell
from orchestrator.ledger import Ledger, Record, Sweep, end_status, read_sweep
from workers.store import Place, open_store

if TYPE_CHECKING:  # importing mlflow takes seconds, which the mirror's thread spends, not the driver
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run

EXPERIMENT = "spot-sweeps"
RETRY_SECONDS = 30.0  # after a failure, pushes are dropped for so long before the server is tried again
SETTLE_SECONDS = 60.0  # complete cells get their summaries together, at most this often while the sweep runs
_BATCH = 1000  # metrics a request, MLflow's limit
_QUEUE = 256  # pushes
_REPLAYED = 10_000  # records at once, of which a whole sweep may not fit in memory
_log = logging.getLogger(__name__)

Status = str  # "FINISHED" | "FAILED" | "KILLED"
Report = Callable[[Place], object]


class Mirror:
    """Sends records to MLflow from a thread of its own. No method ever raises for what MLflow does.

    `behind` tells whether MLflow lacks something that the ledger has, `error` the last failure. `report`, called with
    the sweep's folder at the end, writes the page to attach (dashboards.report.write_report; launch.py passes it).
    """

    def __init__(
        self, uri: str, sweep: Sweep, report: Report | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.behind = True  # until the first catching up, which sends what an earlier driver could not
        self.error: str | None = None
        self._uri, self._sweep, self._report, self._clock = uri, sweep, report, clock
        self._runs: _Runs | None = None
        self._retry_at = self._settle_at = float("-inf")
        self._queue: queue.Queue[tuple[Sequence[Record], Sequence[Record]] | Status] = queue.Queue(_QUEUE)
        self._thread = Thread(target=self._work, name="mlflow-mirror", daemon=True)
        self._thread.start()

    def push(self, decodes: Iterable[Record], scores: Iterable[Record]) -> None:
        """Mirror these durable records soon, or later if the server does not keep up. Returns at once."""
        try:
            self._queue.put_nowait((tuple(decodes), tuple(scores)))
        except queue.Full:
            self.behind = True

    def finish(self, status: Status, timeout: float = 120.0) -> None:
        """Send what is missing, give every run its end status, attach tables and report. To be called once.

        Returns after `timeout` seconds at the latest. `behind` then tells whether MLflow lacks something; `rebuild`
        sends it later.
        """
        deadline = time.monotonic() + timeout
        try:
            self._queue.put(status, timeout=timeout)
        except queue.Full:
            self.behind = True
            return
        self._thread.join(max(0.0, deadline - time.monotonic()))
        self.behind |= self._thread.is_alive()

    def _work(self) -> None:
        while not isinstance(item := self._queue.get(), Status):
            self._guard(self._mirror, *item)
        self._guard(self._finish, item)

    def _guard(self, action: Callable[..., None], *arguments: Any) -> None:
        """The border: whatever goes wrong between here and MLflow, decoding goes on and the ledger has it all."""
        try:
            action(*arguments)
        except Exception as failure:
            first, self.error = self.error is None, f"{type(failure).__name__}: {failure}".partition("\n")[0][:200]
            self.behind, self._runs = True, None
            self._retry_at = self._clock() + RETRY_SECONDS
            if first:
                _log.warning("MLflow at %s is behind, the ledger has everything: %s", self._uri, self.error)

    def _mirror(self, decodes: Sequence[Record], scores: Sequence[Record]) -> None:
        if not self.behind and self._runs:
            self._runs.log(decodes, scores)
        elif self._clock() >= self._retry_at:
            self._catch_up()
        if self._runs and self._runs.complete() and self._clock() >= self._settle_at:
            self._runs.settle()
            self._settle_at = self._clock() + SETTLE_SECONDS

    def _catch_up(self) -> _Runs:
        self.behind = False  # before the ledger is read: a push that is dropped from now on sets it again
        self._runs = self._runs or _Runs(self._uri, self._sweep)
        self._runs.replay()
        return self._runs

    def _finish(self, status: Status) -> None:
        runs = self._catch_up() if self.behind or self._runs is None else self._runs
        runs.finish(status, self._report)


def rebuild(uri: str, folder: Place, report: Report | None = None) -> None:
    """Bring MLflow to what the ledger in `folder` says, run statuses included. Raises what MLflow raises."""
    sweep = read_sweep(folder)
    runs = _Runs(uri, sweep)
    runs.replay()
    runs.finish(end_status(sweep.rows, Ledger(folder).results()), report)


# -------------------------------------------------------------------------------------------------------- the runs


class _Runs:
    """The MLflow runs of one sweep, found or made. Synchronous, and raises what MLflow raises."""

    def __init__(self, uri: str, sweep: Sweep) -> None:
        self._client = _client(uri)
        self._sweep = sweep
        self._cells = {cell.key: cell for cell in sweep.cells}
        self._steps = {key: {row: step for step, row in enumerate(rows)} for key, rows in sweep.rows.items()}
        self._missing = {key: set(rows) for key, rows in sweep.rows.items()}
        self._settled: set[str] = set()
        self._sent: dict[str, set[tuple[str, int, int]]] = {}  # cell -> (metric, step, time) that mark a sent record
        self._sharing: dict[tuple[str, str, str], list[tuple[str, str]]] = defaultdict(list)  # text -> (cell, row)s
        self._scores: dict[tuple[str, str, str], Record] = {}
        self._experiment = _experiment(self._client, uri)
        self._find()

    def _find(self) -> None:
        """Take over the sweep's runs. RUNNING ones have no driver any more: KILLED, until something is logged."""
        found = _search(self._client, self._experiment, self._sweep.name, self._sweep.id)
        parents = [run for run in found if "cell" not in run.data.tags]
        for run in found:
            if run.info.status == "RUNNING":
                self._client.set_terminated(run.info.run_id, "KILLED")
        self._children = {run.data.tags["cell"]: run.info.run_id for run in found if "cell" in run.data.tags}
        self._latest = {run.data.tags["cell"]: run.data.metrics for run in found if "cell" in run.data.tags}
        self._status = {run.data.tags["cell"]: run.info.status for run in found if "cell" in run.data.tags}
        self._status = {cell: "KILLED" if status == "RUNNING" else status for cell, status in self._status.items()}
        for run in found:
            self._complete_params(run)
        self._parent = parents[0].info.run_id if parents else self._create_parent()
        self._client.update_run(self._parent, status="RUNNING")

    def _complete_params(self, run: Run) -> None:
        """Params that a killed driver left out. Those that are there are never sent again: MLflow refuses a change."""
        cell = self._cells.get(run.data.tags.get("cell", ""))
        wanted = results.axes(cell) if cell else {}
        self._log_params(run.info.run_id, {k: v for k, v in wanted.items() if k not in run.data.params})

    def _log_params(self, run_id: str, values: dict[str, Any]) -> None:
        from mlflow.entities import Param

        if values:
            self._client.log_batch(run_id, params=[Param(name, str(value)) for name, value in values.items()])

    def _create_parent(self) -> str:
        tags = {"sweep": self._sweep.name, "sweep_id": self._sweep.id, "kind": "sweep"}
        run = self._client.create_run(self._experiment, tags=tags, run_name=self._sweep.name)
        self._log_params(run.info.run_id, {"cells": len(self._sweep.cells)})
        return run.info.run_id

    def _create_child(self, cell: Cell, started: int) -> str:
        tags = {"sweep": self._sweep.name, "sweep_id": self._sweep.id, "kind": "cell", "cell": cell.key}
        tags |= {"mlflow.parentRunId": self._parent}
        run = self._client.create_run(self._experiment, start_time=started, tags=tags, run_name=cell.label)
        self._log_params(run.info.run_id, results.axes(cell))
        self._children[cell.key], self._status[cell.key] = run.info.run_id, "RUNNING"
        return run.info.run_id

    # ---- samples

    def replay(self) -> None:
        """Log whatever of the ledger MLflow lacks."""
        ledger = Ledger(self._sweep.folder)
        decodes = ledger.decodes()
        while some := tuple(islice(decodes, _REPLAYED)):
            self.log(some, ())
        self.log((), tuple(ledger.scores().values()))

    def log(self, decodes: Sequence[Record], scores: Sequence[Record]) -> None:
        """Log these records' metrics, those already there left out."""
        metrics: dict[str, list[Metric]] = defaultdict(list)
        planned = [r for r in decodes if r["row"] in self._steps.get(r["cell"], ())]
        for record in planned:
            metrics[record["cell"]] += self._decode_metrics(record)
        for record in scores:
            for cell, row in self._sharing[_text(record)]:
                metrics[cell] += self._score_metrics(cell, row, record)
            self._scores[_text(record)] = record
        starts = {record["cell"]: _milliseconds(record, "started") for record in reversed(planned)}
        for cell, values in metrics.items():
            self._send(cell, values, starts.get(cell, 0))

    def _decode_metrics(self, record: Record) -> list[Metric]:
        from mlflow.entities import Metric

        cell, row = record["cell"], record["row"]
        self._missing[cell].discard(row)
        step, when = self._steps[cell][row], _milliseconds(record, "finished")
        found = []
        if self._is_new(cell, "failed", step, when):
            found = [Metric(name, value, when, step) for name, value in sample_metrics(record).items()]
        text = self._cells[cell].task, row, record.get("text_sha") or ""
        if (cell, row) not in self._sharing[text]:
            self._sharing[text].append((cell, row))
        return found + (self._score_metrics(cell, row, self._scores[text]) if text in self._scores else [])

    def _score_metrics(self, cell: str, row: str, score: Record) -> list[Metric]:
        from mlflow.entities import Metric

        step, when = self._steps[cell][row], _milliseconds(score, "started")
        if score.get("correct") is None or not self._is_new(cell, "correct", step, when):
            return []
        return [Metric("correct", float(score["correct"]), when, step)]

    def _is_new(self, cell: str, metric: str, step: int, when: int) -> bool:
        """Whether this was not sent yet, by this driver or an earlier one; marks it as sent."""
        if cell not in self._sent:
            self._sent[cell] = self._history(cell, "failed") | self._history(cell, "correct")
        if (metric, step, when) in self._sent[cell]:
            return False
        self._sent[cell].add((metric, step, when))
        return True

    def _history(self, cell: str, metric: str) -> set[tuple[str, int, int]]:
        if cell not in self._children:
            return set()
        history = self._client.get_metric_history(self._children[cell], metric)
        return {(metric, point.step, point.timestamp) for point in history}

    def _send(self, cell: str, metrics: list[Metric], started: int) -> None:
        if not metrics:
            return
        run_id = self._children.get(cell) or self._create_child(self._cells[cell], started)
        if self._status[cell] != "RUNNING":
            self._client.update_run(run_id, status="RUNNING")
            self._status[cell] = "RUNNING"
        self._settled.discard(cell)
        for batch in _batches(metrics):
            self._client.log_batch(run_id, metrics=batch)

    # ---- ends

    def complete(self) -> set[str]:
        """The cells with a record for every row that are not settled yet."""
        return {cell for cell, rows in self._missing.items() if not rows and cell not in self._settled}

    def settle(self) -> pd.DataFrame:
        """Give complete cells their summary, generations and end status. Returns the whole sweep's summary."""
        sweep, samples = results.load(self._sweep.folder)
        table = results.summary(sweep, samples)
        due = self.complete() & self._children.keys()
        for row in table[table["cell"].isin(due)].to_dict("records"):
            self._settle_cell(row, samples[samples["cell"] == row["cell"]])
        return table

    def _settle_cell(self, row: dict[str, Any], samples: pd.DataFrame) -> None:
        from mlflow.entities import Metric

        cell, run_id = row["cell"], self._children[row["cell"]]
        decoded, scored = (int(1000 * max(samples[name].dropna(), default=0)) for name in ("finished", "scored_at"))
        values = summary_metrics(row, judged=bool(samples["scored_at"][samples["status"] == "ok"].notna().all()))
        times = {name: max(decoded, scored) if name == "summary/accuracy" else decoded for name in values}
        status = "FAILED" if row["failed"] else "FINISHED"
        if self._status[cell] != status or any(self._latest.get(cell, {}).get(k) != v for k, v in values.items()):
            self._client.log_batch(run_id, metrics=[Metric(name, v, times[name], 0) for name, v in values.items()])
            self._log_generations(run_id, samples)
            self._client.set_terminated(run_id, status, end_time=decoded)
        self._latest[cell], self._status[cell] = values, status
        self._settled.add(cell)

    def _log_generations(self, run_id: str, samples: pd.DataFrame) -> None:
        """A table that MLflow's page shows, in the form of its own `log_table`, which would append to an old one."""
        columns = ["row", "text", "answer", "correct", "nfe", "control_nfe", "identical", "status", "error"]
        data = samples[columns].astype(object).where(samples[columns].notna(), None).to_numpy().tolist()
        self._client.log_dict(run_id, {"columns": columns, "data": data}, "generations.json")
        self._client.set_tag(run_id, "mlflow.loggedArtifacts", '[{"path": "generations.json", "type": "table"}]')

    def finish(self, status: Status, report: Report | None = None) -> None:
        """Settle what is complete, end the rest and the parent, attach tables and the report."""
        self._settled.clear()  # scores may have come since
        table = self.settle()
        for cell, run_id in self._children.items():
            if self._status[cell] == "RUNNING":
                self._client.set_terminated(run_id, "KILLED" if status == "FINISHED" else status)
                self._status[cell] = "KILLED" if status == "FINISHED" else status
        self._attach(table, report)
        self._client.set_terminated(self._parent, status)

    def _attach(self, table: pd.DataFrame, report: Report | None) -> None:
        self._client.log_text(self._parent, tables.to_csv(table), "table.csv")
        self._client.log_text(self._parent, tables.to_markdown(tables.long(results.over_seeds(table))), "table.md")
        if report:
            report(self._sweep.folder)
        store = open_store(self._sweep.folder)
        for name in ("sweep.yaml", "report.html") if report else ("sweep.yaml",):
            self._client.log_text(self._parent, store.get(name).decode(), name)


def sample_metrics(record: Record) -> dict[str, float]:
    """The per-sample metrics of a decode record. A number that does not exist is absent, never NaN.

    `failed` is there for every record and comes last: once it is stored, so are the others.
    """
    if record["status"] != "ok":
        return {"failed": 1.0}
    seconds = record["seconds"]
    values = {"nfe": record["nfe"], "identical": record["identical"]}
    if record["drafted_passes"]:
        values["acceptance"] = record["accepted"] / record["drafted_passes"]
    if sum(seconds.values()) > 0:
        values["tokens_per_second"] = record["length"] / sum(seconds.values())
    values |= {f"seconds_{phase}": spent for phase, spent in seconds.items()}
    return {name: float(value) for name, value in values.items() if value is not None} | {"failed": 0.0}


def summary_metrics(row: dict[str, Any], judged: bool) -> dict[str, float]:
    """The metrics `summary/NAME` of a finished cell; the accuracy only once every sample is `judged`."""
    names = [name for name in (*results.MEASURES, "n", "failed", "numeric", "bug") if judged or name != "accuracy"]
    return {f"summary/{name}": float(row[name]) for name in names if row[name] is not None}


def _text(score: Record) -> tuple[str, str, str]:
    return score["task"], score["row"], score["text_sha"]


def _milliseconds(record: Record, name: str) -> int:
    return int(1000 * (record.get(name) or 0))


def _batches(metrics: list[Metric]) -> Iterable[list[Metric]]:
    return ([*metrics[start : start + _BATCH]] for start in range(0, len(metrics), _BATCH))


# ------------------------------------------------------------------------------------------------------- the server


def _client(uri: str) -> MlflowClient:
    """A client that gives up soon: the ledger waits better than the thread does. The user's own settings win."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    from mlflow import MlflowClient

    for name in ("alembic", "mlflow.store.db.utils", "urllib3.connectionpool"):
        logging.getLogger(name).setLevel(
            logging.CRITICAL
        )  # they would write into the live panel; `_guard` says it once
    if database := _database(uri):
        database.parent.mkdir(parents=True, exist_ok=True)
    return MlflowClient(tracking_uri=uri)


def _database(uri: str) -> Path | None:
    """The file behind a SQLite address, None for any other."""
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None


def _experiment(client: MlflowClient, uri: str) -> str:
    """The experiment's id. With SQLite, artifacts go beside the database instead of to ./mlruns."""
    if found := client.get_experiment_by_name(EXPERIMENT):
        return found.experiment_id
    database = _database(uri)
    location = (database.parent / "mlartifacts").resolve().as_uri() if database else None
    return client.create_experiment(EXPERIMENT, artifact_location=location)


def _search(client: MlflowClient, experiment: str, sweep: str, sweep_id: str = "") -> list[Run]:
    """Every run of the sweep of this name and id, oldest first, page after page. Another's runs stay its own."""
    found: list[Run] = []
    token: str | None = None
    while True:
        page = client.search_runs(
            [experiment], f"tags.sweep = '{sweep}'", order_by=["attributes.start_time ASC"], page_token=token
        )
        found += page
        if not (token := page.token):
            return [run for run in found if run.data.tags.get("sweep_id", "") == sweep_id]
