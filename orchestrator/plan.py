"""What a grid amounts to: its cells and rows, what the ledger has of them, and the sample tasks still to run.

    python launch.py plan quickstart

Needs no Ray and no GPU: targets are identified by their files, drafters read once to see that they can be.
design.md §5.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, TypeVar
from uuid import uuid4

from orchestrator.config import Config, Source
from orchestrator.grid import Cell, DataSet, Grid, Group, decode_spec, expand
from orchestrator.ledger import Record, Sample, Sweep
from orchestrator.schedule import Assign, Schedule, Start
from workers.store import Place
from workers.tasks import Canary, Score
from workers.work import DrafterSpec, MethodTask, ModelSpec, SampleTask, Work

FIRST_WAVE = 20  # rows of every group that are decoded before any group gets more
Found = TypeVar("Found")
Results = Mapping[Sample, Record]


class Row(Protocol):
    """One row of a data set, prompt ready to tokenise."""

    @property
    def id(self) -> str: ...
    @property
    def prompt(self) -> str: ...


class Task(Protocol):
    """A data set and how its answers are judged. `revision` is the data's sha, `scorer` the scorer's version.

    `canaries` are texts of known verdict.
    """

    @property
    def revision(self) -> str: ...
    @property
    def scorer(self) -> str: ...
    @property
    def rows(self) -> tuple[Any, ...]: ...
    @property
    def canaries(self) -> tuple[Canary, ...]: ...
    def score(self, row: Any, text: str, /) -> Score: ...


class Judge(Protocol):
    """Scores one text at a time and never raises for what the scorer does."""

    def score(self, score: Callable[[Any, str], Score], row: Any, text: str, /) -> Score: ...
    def close(self) -> None: ...


class Worker(Protocol):
    """A loaded target; does one task and returns its records. `passes` counts its forwards: a sign of life."""

    @property
    def passes(self) -> int: ...
    def run(self, task: Work, /) -> list[Record]: ...


@dataclass(frozen=True)
class Backend:
    """What the orchestrator asks of workers/. Tests put a fake here; `backend()` is the real one."""

    load_task: Callable[[str, dict[str, Any]], Task]
    resolve_model: Callable[[str, dict[str, Any]], ModelSpec]
    resolve_drafter: Callable[[str, dict[str, Any]], DrafterSpec]
    environment: Callable[[ModelSpec], dict[str, Any]]
    make_worker: Callable[[ModelSpec], Worker]
    trained_rows: Callable[[DrafterSpec], Mapping[str, frozenset[str]]]
    make_judge: Callable[[], Judge]


def backend() -> Backend:
    """workers/ itself; imported here because it brings torch along."""
    from workers import scoring, tasks, worker

    return Backend(
        tasks.load_task,
        worker.resolve_model,
        worker.resolve_drafter,
        worker.environment,
        worker.Worker,
        worker.trained_rows,
        scoring.Judge,
    )


@dataclass(frozen=True)
class Plan:
    """A config with everything it names found, and the grid that it spans."""

    config: Config
    grid: Grid
    models: Mapping[str, ModelSpec]
    tasks: Mapping[str, Task]
    drafters: Mapping[str, DrafterSpec]

    @cached_property
    def cells(self) -> Mapping[str, Cell]:
        """Cells by key."""
        return {cell.key: cell for cell in self.grid.cells}

    @cached_property
    def rows(self) -> Mapping[str, tuple[str, ...]]:
        """Planned row ids by cell key."""
        return {key: self.grid.rows[cell.group] for key, cell in self.cells.items()}

    @cached_property
    def controls(self) -> Mapping[Group, Cell]:
        """Each group's control."""
        return {cell.group: cell for cell in self.grid.cells if cell.is_control}

    @cached_property
    def data(self) -> Mapping[str, Mapping[str, tuple[int, Any]]]:
        """task -> row id -> (index in the data set, row)."""
        return {name: {row.id: (i, row) for i, row in enumerate(task.rows)} for name, task in self.tasks.items()}

    @cached_property
    def samples(self) -> int:
        """How many (cell, row) the sweep has."""
        return sum(len(rows) for rows in self.rows.values())

    def waves(self, results: Results, retry_failed: bool = False) -> list[list[SampleTask]]:
        """The sample tasks that `results` lack: the first 20 rows of every group, then the rest."""
        spans = (slice(0, FIRST_WAVE), slice(FIRST_WAVE, None))
        return [list(self._tasks(span, results, retry_failed)) for span in spans]

    def _tasks(self, span: slice, results: Results, retry_failed: bool) -> Iterator[SampleTask]:
        for group, cells in self._groups.items():
            for row in self.grid.rows[group][span]:
                pending = [
                    self._method(cell, held)
                    for cell in cells
                    if (held := results.get((cell.key, row))) is None or (retry_failed and held["status"] == "failed")
                ]
                if pending:
                    yield self._sample_task(group, row, pending)

    def _sample_task(self, group: Group, row_id: str, pending: list[MethodTask]) -> SampleTask:
        index, row = self.data[group.task][row_id]
        config = self.config
        return SampleTask(
            sweep=config.name,
            model=self.models[group.model],
            task=group.task,
            row=row_id,
            prompt=row.prompt,
            decode=decode_spec(config, self.models[group.model], group.temperature, group.seed),
            control=next((method for method in pending if method.drafter is None), None),
            methods=tuple(method for method in pending if method.drafter is not None),
            turn=index,
        )

    def _method(self, cell: Cell, held: Record | None) -> MethodTask:
        drafter = None if cell.is_control else self.drafters[cell.drafter]
        return MethodTask(cell.key, drafter, cell.budget, 1 if held is None else held["attempt"] + 1)

    @cached_property
    def _groups(self) -> Mapping[Group, list[Cell]]:
        groups: dict[Group, list[Cell]] = {}
        for cell in self.grid.cells:
            groups.setdefault(cell.group, []).append(cell)
        return groups


def make_plan(config: Config, source: Source, workers: Backend) -> Plan:
    """Find everything that `config` names. Raises UserError for a missing file or a bad value; loads no target."""
    models = {name: _found(source, "model", workers.resolve_model, name, config) for name in config.models}
    models = {
        name: replace(
            spec,
            device=config.workers.device,
            threads=config.workers.threads,
            per_gpu=config.workers.per_gpu if config.workers.device == "cuda" else 1,
        )
        for name, spec in models.items()
    }
    drafters = {name: _found(source, "drafter", workers.resolve_drafter, name, config) for name in config.drafters}
    tasks = load_tasks(config, source, workers)
    data = {name: DataSet(task.revision, tuple(row.id for row in task.rows)) for name, task in tasks.items()}
    plan = Plan(config, expand(config, models, data, drafters), models, tasks, drafters)
    _refuse_long_blocks(plan, source)
    _refuse_edges(plan, source)
    _refuse_trained_rows(plan, source, workers)
    return plan


def load_tasks(config: Config, source: Source, workers: Backend) -> dict[str, Task]:
    """The tasks of `config` by name, data and all. UserError for one that cannot be loaded, or has no rows."""
    tasks = {name: _found(source, "task", workers.load_task, name, config) for name in config.tasks}
    for name, task in tasks.items():
        if not task.rows:
            raise source.error(f"task.{name}", "no rows; a data set with nothing in it has no results")
    return tasks


def _refuse_long_blocks(plan: Plan, source: Source) -> None:
    """No drafter meets a block that is longer than its model."""
    for cell in plan.grid.cells:
        longest = None if cell.is_control else plan.drafters[cell.drafter].longest_block
        if longest is not None and cell.block_length > longest:
            wrong = f"{cell.block_length}: {cell.drafter} drafts for blocks of up to {longest} positions"
            raise source.error(f"model.{cell.model}.block_length", wrong)


def _refuse_edges(plan: Plan, source: Source) -> None:
    """No drafter drafts the block after next where the finished one changes the keys and values before it."""
    for cell in plan.grid.cells:
        drafts_edges = not cell.is_control and dict(cell.drafter_options).get("edge")
        if drafts_edges and not plan.models[cell.model].exact:
            wrong = f"drafting across the block's edge needs an exact prefix cache, which {cell.family} has not"
            raise source.error(f"drafter.{cell.drafter}.edge", wrong)


def _refuse_trained_rows(plan: Plan, source: Source, workers: Backend) -> None:
    """No drafter meets a row that it was trained or calibrated on; a checkpoint that names no rows is not asked."""
    trained = {
        name: _found(source, "drafter", lambda name, _: workers.trained_rows(plan.drafters[name]), name, plan.config)
        for name in plan.drafters
    }
    for cell in plan.grid.cells:
        known = trained.get(cell.drafter, {}).get(cell.task, frozenset())
        seen = [row for row in plan.rows[cell.key] if row in known]
        if seen:
            more = f" and {len(seen) - 1} more" if len(seen) > 1 else ""
            wrong = f"{plan.drafters[cell.drafter].checkpoint} was trained on row {seen[0]} of task {cell.task}{more}"
            remedy = "evaluate rows of another split, or train it on other rows"
            raise source.error(f"drafter.{cell.drafter}.checkpoint", f"{wrong}, which this grid evaluates; {remedy}")


def _found(
    source: Source, section: str, find: Callable[[str, dict[str, Any]], Found], name: str, config: Config
) -> Found:
    entry = dict(getattr(config, section)[name])
    try:
        return find(name, entry)
    except (ValueError, TypeError) as error:
        option, _, wrong = str(error).partition(": ")
        if option in entry:  # `path: no such file` is about this key of the entry
            raise source.error(f"{section}.{name}.{option}", wrong) from None
        raise source.error(f"{section}.{name}", str(error)) from None


def make_sweep(plan: Plan, folder: Place, environment: Mapping[str, Any], previous: Sweep | None = None) -> Sweep:
    """What sweep.yaml is to say: the plan's grid; cells that `previous` had and the grid has not are retired.

    The id is random: two people's sweeps may have one name and one MLflow server.
    """
    once = (*previous.cells, *previous.retired) if previous is not None else ()
    retired = tuple(cell for cell in once if cell.key not in plan.cells)
    config = plan.config.as_dict()
    for name, model in plan.models.items():  # what is planned is what is resumed, whatever the hub has by then
        config["model"][name]["revision"] = model.revision
    sweep_id = previous.id if previous is not None else uuid4().hex
    return Sweep(folder, plan.config.name, config, plan.grid.cells, plan.rows, environment, retired, sweep_id)


# ---- what `plan` and `status` print


@dataclass(frozen=True)
class CellState:
    """How far a cell is. `done` counts its `ok` samples, `nfe` is their mean number of target passes."""

    cell: Cell
    planned: int
    done: int
    failed: int
    nfe: float | None

    @property
    def word(self) -> str:
        """new, partial, failed (all there, some failed) or done."""
        if self.done + self.failed < self.planned:
            return "partial" if self.done + self.failed else "new"
        return "failed" if self.failed else "done"


def cell_state(cell: Cell, rows: tuple[str, ...], results: Results) -> CellState:
    """The state of `cell`, of which `rows` are planned."""
    held = [results[cell.key, row] for row in rows if (cell.key, row) in results]
    ok = [record for record in held if record["status"] == "ok"]
    nfe = sum(record["nfe"] for record in ok) / len(ok) if ok else None
    return CellState(cell, len(rows), len(ok), len(held) - len(ok), nfe)


def estimated_passes(plan: Plan, results: Results) -> int:
    """Target passes still to make, controls decoded again for pairing included."""
    return math.ceil(sum(passes_by_cell(plan, results).values()))


def most_passes(cell: Cell) -> float:
    """The most that a sample can need: a pass a position."""
    return cell.gen_length + cell.block_length - 1


def passes_by_cell(plan: Plan, results: Results, unknown: Callable[[Cell], float] = most_passes) -> dict[str, float]:
    """Those passes, by cell key. A cell with results is taken at its mean NFE, one without at what `unknown` says."""
    means = {cell.key: cell_state(cell, plan.rows[cell.key], results).nfe or unknown(cell) for cell in plan.grid.cells}
    passes = dict.fromkeys(means, 0.0)
    for wave in plan.waves(results):
        for task in wave:
            group = Group(task.model.name, task.task, task.decode.temperature, task.decode.seed)
            for key in (plan.controls[group].key, *(method.cell for method in task.methods)):
                passes[key] += means[key]
    return passes


def model_loads(plan: Plan, results: Results, workers: int) -> int:
    """How often a model will be loaded if every sample task takes as long: the schedule itself, run on paper."""
    schedule = Schedule(plan.waves(results), workers)
    loads = 0
    while not schedule.finished:
        for decision in schedule.decide():
            if isinstance(decision, Start):
                loads += 1
                schedule.started(decision.worker)
            elif isinstance(decision, Assign):
                schedule.finished_job(decision.worker, decision.job.number)
    return loads
