"""The MLflow runs of one sweep, found or made: a parent, and nested in it a run a cell. design.md §5 "MLflow".

Synchronous, and raises what MLflow raises; tracking.py decides when. A run's tags say how far it has come: `mirrored`
is the number of ledger lines it has seen (the cursor), `rows` how many of which rows it was made for, `settled` the
cursor of its summary (that of an oracle beside it, where it is later). A cursor is written after its metrics, and
metrics carry the time and step of their record, so what a killed mirror sends again changes nothing.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pandas as pd

from orchestrator import results, tables
from orchestrator.grid import Cell
from orchestrator.ledger import Sweep, parse
from orchestrator.mlflow_store import connect, database, experiment, search
from orchestrator.projection import Entry, Projection, View, milliseconds
from orchestrator.segments import read_segments
from workers.store import Place, open_store

if TYPE_CHECKING:  # importing mlflow takes seconds, which the mirror's thread spends, not the driver
    from mlflow.entities import DatasetInput, Metric, Param, Run

_BATCH = 1000  # metrics, params and tags a request, MLflow's limit
_ENDED = ("FINISHED", "FAILED")  # of a cell that is settled
_PARAM, _TAG = 6000, 8000  # characters of a value, MLflow's limits: it cuts, with a warning in the panel, or refuses
_PARENT = "mlflow.parentRunId"
_SOURCE = {"mlflow.source.name": "launch.py", "mlflow.source.type": "LOCAL"}
_SHOWN = '[{"path": "generations.json", "type": "table"}]'  # by the run's page
_COLUMNS = ["row", "text", "answer", "correct", "nfe", "control_nfe", "identical", "status", "error"]

Status = str  # "FINISHED" | "FAILED" | "KILLED"
Files = Mapping[str, bytes]  # by path among a run's artifacts


@dataclass(frozen=True)
class Drawings:
    """What dashboards/ makes for MLflow; launch.py hands it in, since orchestrator/ may not import it.

    `report` writes report.html into a sweep's folder; `cell` draws a finished cell from its samples (`results.frame`)
    and its summary, `sweep` a sweep from its rows (`results.over_seeds`), each as files by name.
    """

    report: Callable[[Place], object]
    cell: Callable[[pd.DataFrame, Mapping[str, Any]], Files]
    sweep: Callable[[pd.DataFrame], Files]


@dataclass
class _Run:
    """A cell's run: it has what the first `cursor` lines of the ledger say of its first `rows` rows."""

    id: str
    status: str
    cursor: int = 0
    rows: int = 0
    settled: str | None = None
    params: list[Param] = field(default_factory=list)  # not sent yet: they go with the next batch

    def lacks(self, entry: Entry) -> bool:
        return entry.number >= self.cursor or entry.step >= self.rows


class Runs:
    """The sweep's runs; those of an earlier driver are taken over. To be used by one process at a time."""

    def __init__(self, uri: str, sweep: Sweep, drawings: Drawings | None = None) -> None:
        self._client, self._database = connect(uri), database(uri)
        self._sweep, self._drawings = sweep, drawings
        self._cells = {cell.key: cell for cell in sweep.cells}
        self._runs: dict[str, _Run] = {}
        self._experiment = experiment(self._client, uri, sweep)
        self._find()

    def delete(self) -> None:
        """Delete every run of this sweep, and begin again."""
        for run in search(self._client, self._experiment, self._sweep):
            self._client.delete_run(run.info.run_id)
        self._runs.clear()
        self._find()

    # ---- taking over

    def _find(self) -> None:
        """Take over the sweep's runs. RUNNING ones have no driver any more: KILLED, until something is logged.

        A second run of a cell (a request whose answer was lost, made again), and one made for other rows, are deleted.
        """
        found = search(self._client, self._experiment, self._sweep)
        parents = [run for run in found if "cell" not in run.data.tags]
        for run in parents[1:]:
            self._client.delete_run(run.info.run_id)
        self._parent = self._take_parent(parents[0]) if parents else self._create_parent()
        for run in found:
            if "cell" in run.data.tags:
                self._take_child(run)

    def _take_parent(self, run: Run) -> str:
        tags = self._parent_tags()
        self._add_tags(run, {name: value for name, value in tags.items() if run.data.tags.get(name) != value})
        self._log_inputs(run.info.run_id, self._sweep.cells, run)
        self._client.update_run(run.info.run_id, status="RUNNING")
        return str(run.info.run_id)

    def _take_child(self, run: Run) -> None:
        tags, run_id = run.data.tags, run.info.run_id
        cell = self._cells.get(tags["cell"])
        if cell is not None and (cell.key in self._runs or not self._made_for(cell, tags)):
            self._client.delete_run(run_id)
            return
        status = run.info.status
        if status == "RUNNING":
            status = "KILLED"
            self._client.set_terminated(run_id, status)
        if tags.get(_PARENT) != self._parent:  # the one that it had was deleted
            self._add_tags(run, {_PARENT: self._parent})
        if cell is None:  # no longer in the grid
            return
        wanted = self._child_tags(cell)
        self._add_tags(run, {name: value for name, value in wanted.items() if name not in tags})
        self._log_inputs(run_id, [cell], run)
        missing = {name: value for name, value in params(cell).items() if name not in run.data.params}
        cursor, rows = int(tags["mirrored"]), int(tags["rows"].partition(" ")[0])
        self._runs[cell.key] = _Run(run_id, status, cursor, rows, tags.get("settled"), _params(missing))

    def _made_for(self, cell: Cell, tags: Mapping[str, str]) -> bool:
        """Whether a run of these tags has its steps where they are now: a larger limit leaves them there."""
        mark = tags.get("rows", "")  # people can change tags, or delete them
        numbers = mark.partition(" ")[0], tags.get("mirrored", "")
        return all(map(str.isdecimal, numbers)) and _mark(self._sweep.rows[cell.key], int(numbers[0])) == mark

    def _add_tags(self, run: Run, tags: Mapping[str, str]) -> None:
        if tags:
            self._client.log_batch(run.info.run_id, tags=_tags(tags), synchronous=True)

    def _create_parent(self) -> str:
        tags, name = self._parent_tags() | _code(self._sweep), self._sweep.name
        run = self._client.create_run(self._experiment, _first_start(self._sweep), tags, name)
        self._log_inputs(run.info.run_id, self._sweep.cells)
        return str(run.info.run_id)

    def _create_child(self, cell: Cell, started: int) -> _Run:
        tags = self._child_tags(cell) | {"mirrored": "0", "rows": _mark(self._sweep.rows[cell.key])}
        run = self._client.create_run(self._experiment, started, tags, cell.label)
        self._log_inputs(run.info.run_id, [cell])
        made = _Run(run.info.run_id, "RUNNING", 0, len(self._sweep.rows[cell.key]), None, _params(params(cell)))
        self._runs[cell.key] = made
        return made

    def _parent_tags(self) -> dict[str, str]:
        """A flat filter finds a sweep by these: `tags.models LIKE '%sdar%'`."""
        axes = {
            f"{axis}s": ", ".join(dict.fromkeys(str(getattr(cell, axis)) for cell in self._sweep.cells))[:_TAG]
            for axis in ("model", "task", "drafter", "budget", "temperature", "seed")
        }
        samples = sum(len(self._sweep.rows[cell.key]) for cell in self._sweep.cells)
        counts = {"cells": str(len(self._sweep.cells)), "samples": str(samples)}
        return self._common_tags("sweep") | axes | counts | _environment(self._sweep)

    def _child_tags(self, cell: Cell) -> dict[str, str]:
        """Also what a run of another environment was made in, which a resumed sweep's other runs may not be."""
        whose = {"cell": cell.key, _PARENT: self._parent}
        return self._common_tags("cell") | whose | _environment(self._sweep) | _code(self._sweep)

    def _common_tags(self, kind: str) -> dict[str, str]:
        return {"sweep": self._sweep.name, "sweep_id": self._sweep.id, "kind": kind}

    def _log_inputs(self, run_id: str, cells: Iterable[Cell], run: Run | None = None) -> None:
        there = {(i.dataset.name, i.dataset.digest) for i in (run.inputs.dataset_inputs if run else ())}
        wanted = [i for i in _datasets(self._sweep, cells) if (i.dataset.name, i.dataset.digest) not in there]
        if wanted:
            self._client.log_inputs(run_id, datasets=wanted)

    # ---- samples

    def send(self, projection: Projection, full_only: bool = False) -> None:
        """Log what is pending; of `full_only`, cells with about a request's worth of metrics."""
        if self._database is not None and not self._database.is_file():  # SQLite writes on, to nowhere
            raise FileNotFoundError(f"{self._database} was deleted")
        for view in projection.views.values():
            if view.pending and not (full_only and len(view.pending) < _BATCH // 10):
                self._send_cell(projection, view)

    def _send_cell(self, projection: Projection, view: View) -> None:
        key = view.cell.key
        run = self._runs.get(key)
        entries = [entry for entry in view.pending if run is None or run.lacks(entry)]
        if entries:
            run = run or self._create_child(view.cell, projection.started(entries[0]))
            if run.status != "RUNNING":
                self._client.update_run(run.id, status="RUNNING")
                run.status = "RUNNING"
            cursor = {"mirrored": str(entries[-1].number + 1), "rows": _mark(self._sweep.rows[key])}
            self._log(run, _metrics(projection, entries), cursor)
            run.cursor, run.rows = entries[-1].number + 1, len(view.steps)
        view.pending.clear()

    def _log(self, run: _Run, metrics: Iterator[Metric], tags: Mapping[str, str]) -> None:
        """All of it, the tags with the last request; done on return, MLFLOW_ENABLE_ASYNC_LOGGING or not."""
        most = _BATCH - len(run.params) - len(tags)
        batch = list(islice(metrics, most))
        while following := list(islice(metrics, most)):
            self._client.log_batch(run.id, metrics=batch, params=run.params, synchronous=True)
            run.params, batch = [], following
        self._client.log_batch(run.id, metrics=batch, params=run.params, tags=_tags(tags), synchronous=True)
        run.params = []

    # ---- ends

    def settle(self, projection: Projection) -> None:
        """Give the cells of complete groups whose texts are all scored their summary and end status."""
        for views in projection.groups.values():
            if all(v.complete and not v.unscored for v in views):
                self._settle_group(projection, views)

    def _settle_group(self, projection: Projection, views: list[View]) -> None:
        """Those of its complete cells that lack it. A group holds whatever the numbers of its cells are made of."""
        if not (due := self._due(views)):
            return
        decodes, scores = projection.records(views)
        part = replace(
            self._sweep, cells=tuple(v.cell for v in views), rows={v.cell.key: tuple(v.steps) for v in views}
        )
        samples = results.frame(part, decodes, scores)
        lines = {line["cell"]: line for line in results.summary(part, samples).to_dict("records")}
        for key, seen in due.items():
            self._settle_cell(lines[key], samples, seen)
            self._end_cell(projection, projection.views[key])

    def _due(self, views: list[View]) -> dict[str, str]:
        """The complete cells of a group that lack their summary, and how far the ledger was read for it.

        That is for their own runs, and for those of the oracles beside them, which they are measured against.
        """
        runs = {v.cell.key: self._runs[v.cell.key] for v in views if v.cell.key in self._runs}
        oracles = [v.cell.key for v in views if results.is_oracle(v.cell.method)]
        least = max((runs[key].cursor for key in oracles if key in runs), default=0)
        seen = {
            v.cell.key: str(max(runs[v.cell.key].cursor, least)) for v in views if v.complete and v.cell.key in runs
        }
        return {k: mark for k, mark in seen.items() if runs[k].status not in _ENDED or runs[k].settled != mark}

    def _settle_cell(self, line: dict[str, Any], group: pd.DataFrame, seen: str) -> None:
        """The mark last: a run without it is settled again."""
        from mlflow.entities import Metric

        run, samples = self._runs[line["cell"]], group[group["cell"] == line["cell"]]
        decoded, scored = (_latest(samples[name]) for name in ("finished", "scored_at"))
        oracles = _latest(group["finished"][group["method"].map(results.is_oracle).astype(bool)])
        judged = bool(samples["scored_at"][samples["status"] == "ok"].notna().all())
        values = summary_metrics(line, judged)
        later = {name: scored if "accuracy" in name else oracles if "oracle" in name else 0 for name in values}
        drawn = self._drawings.cell(samples, line) if self._drawings else {}
        self._attach(run.id, {**drawn, "generations.json": _generations(samples)})
        metrics = (Metric(name, value, max(decoded, later[name]), 0) for name, value in values.items())
        self._log(run, metrics, {"settled": seen, "mlflow.loggedArtifacts": _SHOWN})
        run.settled = seen

    def _end_cell(self, projection: Projection, view: View, otherwise: Status = "KILLED") -> None:
        """A complete cell's status is its own, another's is `otherwise`."""
        run = self._runs[view.cell.key]
        status = ("FAILED" if view.failed else "FINISHED") if view.complete else otherwise
        if run.status != status or not view.complete:
            self._client.set_terminated(run.id, status, end_time=_last_end(projection, [view]))
            run.status = status

    def finish(self, projection: Projection, status: Status) -> None:
        """Every run's end status, then what takes long and the driver may not wait for: figures, tables, the report."""
        self.end(projection, status)
        for views in projection.groups.values():
            self._settle_group(projection, views)
        self._present()

    def end(self, projection: Projection, status: Status) -> None:
        """Nothing is at work any more: the sweep's status, and that of its cells, as far as they were read."""
        for key, run in self._runs.items():
            if run.params:
                self._log(run, iter(()), {})
            self._end_cell(projection, projection.views[key], "KILLED" if status == "FINISHED" else status)
        self._client.set_terminated(self._parent, status, end_time=_last_end(projection, projection.views.values()))

    def _present(self) -> None:
        """The tables as `launch.py report` has them: a tie takes the samples of cells of several groups."""
        table, rows = self._numbers()
        paper = tables.to_markdown(tables.main(rows))
        self._client.set_tag(self._parent, "mlflow.note.content", paper[:_TAG], synchronous=True)
        self._attach(self._parent, self._pages(table, rows))

    def _numbers(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        sweep, samples = results.load(self._sweep.folder)
        table = results.summary(sweep, samples)
        return table, results.over_seeds(table, samples)

    def _pages(self, table: pd.DataFrame, rows: pd.DataFrame) -> Files:
        store = open_store(self._sweep.folder)
        files: dict[str, bytes] = {
            "table.csv": tables.to_csv(table).encode(),
            "table.tex": tables.to_latex(tables.main(rows)).encode(),
            "table.md": tables.to_markdown(tables.long(rows)).encode(),
            "sweep.yaml": store.get("sweep.yaml"),
        }
        if self._drawings:
            self._drawings.report(self._sweep.folder)
            files |= {**self._drawings.sweep(rows), "report.html": store.get("report.html")}
        return files

    def _attach(self, run_id: str, files: Files) -> None:
        with TemporaryDirectory() as folder:
            for name, data in files.items():
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            self._client.log_artifacts(run_id, folder)


# ------------------------------------------------------------------------------------------------ what runs are told


def params(cell: Cell) -> dict[str, str]:
    """Every axis and whatever else decides the cell's results, an option of its drafter as `option.NAME`."""
    plain = cell.as_dict()
    options = {f"option.{name}": value for name, value in plain.pop("drafter_options")}
    return {name: str(value)[:_PARAM] for name, value in (plain | options).items() if value is not None}


def summary_metrics(line: Mapping[str, Any], judged: bool) -> dict[str, float]:
    """The metrics `summary/NAME` of a finished cell, and the ends of their intervals (`_low`, `_high`).

    The accuracy only once every sample is `judged`. What does not exist is absent.
    """
    measures = [f"{name}{end}" for name in results.MEASURES for end in ("", "_low", "_high")]
    names = [name for name in (*measures, "n", "failed", "numeric", "bug") if judged or "accuracy" not in name]
    return {f"summary/{name}": float(line[name]) for name in names if line.get(name) is not None}


def _environment(sweep: Sweep) -> dict[str, str]:
    """Versions, machine and sources, as tags `env.NAME`."""
    return {f"env.{name}": str(value) for name, value in sweep.environment.items() if value is not None}


def _code(sweep: Sweep) -> dict[str, str]:
    """Who ran what, as MLflow's own tags say it."""
    tags = dict(_SOURCE)
    with suppress(KeyError, OSError):  # a container's user may have no name
        tags["mlflow.user"] = getpass.getuser()
    if commit := sweep.environment.get("commit"):
        tags["mlflow.source.git.commit"] = commit.removesuffix("+")
        tags["mlflow.source.git.dirty"] = str(commit.endswith("+")).lower()
    return tags


def _datasets(sweep: Sweep, cells: Iterable[Cell]) -> list[DatasetInput]:
    """The data that cells were evaluated on: the task's name, its rows' revision, and where they are from."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    found = []
    for task, revision in dict.fromkeys((cell.task, cell.data_revision) for cell in cells):
        entry = sweep.config.get("task", {}).get(task) or {}
        kind, source = _source(entry)
        dataset = Dataset(task, revision[:36], kind, json.dumps(source))
        found.append(DatasetInput(dataset, [InputTag("mlflow.data.context", "eval")]))
    return found


def _source(entry: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """A task's data in the terms of MLflow's data sets: the hub's, a file's, or its generator's."""
    if entry.get("path"):
        return "local", {"uri": entry["path"]}
    if entry.get("hub"):
        named = {"path": entry["hub"], "config_name": entry.get("config")}
        return "hugging_face", named | {name: entry.get(name) for name in ("split", "revision")}
    return "generated", {name: value for name, value in entry.items() if isinstance(value, str | int | float)}


def _metrics(projection: Projection, entries: Sequence[Entry]) -> Iterator[Metric]:
    from mlflow.entities import Metric

    for entry in entries:
        for point in projection.points(entry):
            yield Metric(*point)


def _generations(samples: pd.DataFrame) -> bytes:
    """A table that MLflow's page shows, in the form of its own `log_table`, which would append to an old one."""
    data = samples[_COLUMNS].astype(object).where(samples[_COLUMNS].notna(), None).to_numpy().tolist()
    return json.dumps({"columns": _COLUMNS, "data": data}, ensure_ascii=False).encode()


def _latest(times: pd.Series) -> int:
    return milliseconds(max(times.dropna(), default=0))


def _last_end(projection: Projection, views: Iterable[View]) -> int | None:
    """When the last line of theirs was finished, in unix milliseconds; None without one."""
    last = max((place for view in views for place in view.places), default=-1)
    return milliseconds(projection.record(last)["finished"]) if last >= 0 else None


def _mark(rows: Sequence[str], count: int | None = None) -> str:
    """`20 3f9a...`: so many rows, and which."""
    first = rows[:count]
    return f"{count or len(rows)} {hashlib.sha256(json.dumps(first).encode()).hexdigest()[:16]}"


def _params(values: Mapping[str, str]) -> list[Param]:
    from mlflow.entities import Param

    return [Param(name, value) for name, value in values.items()]


def _tags(values: Mapping[str, str]) -> list[Any]:
    from mlflow.entities import RunTag

    return [RunTag(name, value) for name, value in values.items()]


def _first_start(sweep: Sweep) -> int:
    """When the first record was begun, in unix milliseconds: now, where there is none."""
    for file in read_segments(sweep.folder):
        with file.open("rb") as opened, suppress(ValueError, KeyError):
            return milliseconds(parse(opened.readline())["started"])
    return milliseconds(time.time())
