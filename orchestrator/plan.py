"""What a grid amounts to: its cells and rows, what the ledger has of them, and the sample tasks still to run.

    python launch.py plan quickstart

Needs no Ray and no GPU: targets are identified by their files, drafters read once to see that they can be.
design.md §5.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar
from uuid import uuid4

from orchestrator.config import Config, Source, known
from orchestrator.errors import UserError
from orchestrator.grid import Cell, DataSet, Grid, Group, Point, decode_spec, expand, points
from orchestrator.ledger import Record, Sample, Sweep
from workers.store import Place
from workers.tasks import Canary, Score
from workers.work import UNRESOLVED, Absent, DrafterSpec, MethodTask, ModelSpec, SampleTask, Work

TRAINABLE = ("arith", "gsm8k", "mbpp")  # tasks with rows of a train split; the others' rows are all to evaluate
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
    drafters: Mapping[tuple[str, str], DrafterSpec]  # by (model, name)
    unresolved: tuple[str, ...] = ()  # what is planned by name alone, a line each

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
            replayed = frozenset(self.grid.rows[group][: self.config.replays])
            for row in self.grid.rows[group][span]:
                pending = [
                    self._method(cell, held)
                    for cell in cells
                    if (held := results.get((cell.key, row))) is None or (retry_failed and held["status"] == "failed")
                ]
                if pending:
                    yield self._sample_task(group, row, pending, row in replayed)

    def _sample_task(self, group: Group, row_id: str, pending: list[MethodTask], replay: bool) -> SampleTask:
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
            replay=replay,
        )

    def _method(self, cell: Cell, held: Record | None) -> MethodTask:
        drafter = None if cell.is_control else self.drafters[cell.model, cell.drafter]
        return MethodTask(cell.key, drafter, cell.budget, 1 if held is None else held["attempt"] + 1)

    @cached_property
    def _groups(self) -> Mapping[Group, list[Cell]]:
        groups: dict[Group, list[Cell]] = {}
        for cell in self.grid.cells:
            groups.setdefault(cell.group, []).append(cell)
        return groups


def make_plan(config: Config, source: Source, workers: Backend, by_name: bool = False) -> Plan:
    """Find everything that `config` names. Raises UserError for a missing file or a bad value; loads no target.

    With `by_name`, what this machine has not got is planned by its name and published size, and is `unresolved`.
    """
    try:
        combinations, notes = points(config)
    except ValueError as error:
        raise source.error("exclude", str(error).removeprefix("exclude: ")) from None
    find = _Finder(config, source, by_name)
    models = {name: find("model", name, workers.resolve_model) for name in _named(combinations, "model")}
    models = {
        name: replace(
            spec,
            device=config.workers.device,
            threads=config.workers.threads,
            per_gpu=config.workers.per_gpu if config.workers.device == "cuda" else 1,
        )
        for name, spec in models.items()
    }
    pairs = dict.fromkeys((point.model, point.drafter) for point in combinations)
    drafters = {(model, name): find("drafter", name, workers.resolve_drafter, model) for model, name in pairs}
    tasks = {name: find("task", name, workers.load_task) for name in _named(combinations, "task")}
    _refuse_no_rows(tasks, source)
    data = {name: DataSet(task.revision, tuple(row.id for row in task.rows)) for name, task in tasks.items()}
    grid = expand(config, combinations, models, data, drafters)
    grid = replace(grid, notes=(*notes, *grid.notes))
    plan = Plan(config, grid, models, tasks, drafters, tuple(find.unresolved.values()))
    _refuse_long_blocks(plan, source)
    _refuse_edges(plan, source)
    _refuse_trained_rows(plan, source, workers)
    return plan


def load_tasks(config: Config, source: Source, workers: Backend) -> dict[str, Task]:
    """The tasks of `config` by name, data and all. UserError for one that cannot be loaded, or has no rows."""
    find = _Finder(config, source)
    tasks = {name: find("task", name, workers.load_task) for name in config.tasks}
    _refuse_no_rows(tasks, source)
    return tasks


def _named(combinations: Iterable[Point], axis: str) -> list[str]:
    return list(dict.fromkeys(getattr(point, axis) for point in combinations))


class _Finder:
    """Looks up catalogue entries; what is wrong with one is a UserError about its key, or `unresolved` if by name."""

    def __init__(self, config: Config, source: Source, by_name: bool = False) -> None:
        self._config, self._source, self._by_name = config, source, by_name
        self.unresolved: dict[str, str] = {}

    def __call__(self, section: str, name: str, find: Callable[[str, dict[str, Any]], Found], model: str = "") -> Found:
        """What `find` makes of an entry; `{model}` in its checkpoint is the name of its target."""
        entry = dict(getattr(self._config, section)[name])
        if section == "drafter" and isinstance(entry.get("checkpoint"), str):
            entry["checkpoint"] = entry["checkpoint"].replace("{model}", model)
        try:
            return find(name, entry)
        except Absent as absent:
            options = self._made_for(entry["checkpoint"], name, model) if section == "drafter" else ""
            said = self._error(section, name, entry, f"{absent}{options}")
            if not self._by_name:
                raise said from None
            self.unresolved.setdefault(str(absent), str(said))  # several entries may name one file
            found: Found = absent.stand_in
            return found
        except (ValueError, TypeError) as error:
            raise self._error(section, name, entry, str(error)) from None

    def _made_for(self, checkpoint: str, name: str, model: str) -> str:
        """The options that a drafter's making needs here: their defaults are the bundled target and a toy task."""
        if "{model}" not in self._config.drafter[name]["checkpoint"]:  # of the target in its path, or the only one
            only = model if len(self._config.models) == 1 else ""
            model = next((part for part in Path(checkpoint).parts if part in known("model")), only)
        of_model = f" --model {model}" if model else ""
        tasks = [task for task in self._config.tasks if self._config.task[task].get("task", task) in TRAINABLE]
        task = tasks[0] if tasks else "gsm8k"
        return of_model if task == "arith" else f"{of_model} --task {task}"

    def _error(self, section: str, name: str, entry: Mapping[str, Any], said: str) -> UserError:
        option, _, wrong = said.partition(": ")
        if option in entry:  # `path: no such file` is about this key of the entry
            return self._source.error(f"{section}.{name}.{option}", wrong)
        return self._source.error(f"{section}.{name}", said)


def _refuse_no_rows(tasks: Mapping[str, Task], source: Source) -> None:
    for name, task in tasks.items():
        if not task.rows:
            raise source.error(f"task.{name}", "no rows; a data set with nothing in it has no results")


def _refuse_long_blocks(plan: Plan, source: Source) -> None:
    """No drafter meets a block that is longer than its model."""
    for (model, name), drafter in plan.drafters.items():
        length = plan.models[model].block_length
        if drafter.longest_block is not None and length > drafter.longest_block:
            wrong = f"{length}: {name} drafts for blocks of up to {drafter.longest_block} positions"
            raise source.error(f"model.{model}.block_length", wrong)


def _refuse_edges(plan: Plan, source: Source) -> None:
    """No drafter drafts the block after next where the finished one changes the keys and values before it."""
    for (model, name), drafter in plan.drafters.items():
        if dict(drafter.options).get("edge") and not plan.models[model].exact:
            family = plan.models[model].family
            wrong = f"drafting across the block's edge needs an exact prefix cache, which {family} has not"
            raise source.error(f"drafter.{name}.edge", wrong)


def _refuse_trained_rows(plan: Plan, source: Source, workers: Backend) -> None:
    """No drafter meets a row that it was trained or calibrated on; a checkpoint that names no rows is not asked."""
    trained = {
        pair: _trained_rows(workers, drafter, source) for pair, drafter in plan.drafters.items() if _is_here(drafter)
    }
    if not any(trained.values()):
        return
    met = {(cell.group, cell.drafter) for cell in plan.grid.cells if trained.get((cell.model, cell.drafter))}
    for group, name in met:
        known = trained[group.model, name].get(group.task, frozenset())
        seen = [row for row in plan.grid.rows[group] if row in known]
        if seen:
            more = f" and {len(seen) - 1} more" if len(seen) > 1 else ""
            checkpoint = plan.drafters[group.model, name].checkpoint
            wrong = f"{checkpoint} was trained on row {seen[0]} of task {group.task}{more}"
            remedy = "evaluate rows of another split, or train it on other rows"
            raise source.error(f"drafter.{name}.checkpoint", f"{wrong}, which this grid evaluates; {remedy}")


def _is_here(drafter: DrafterSpec) -> bool:
    return drafter.sha != UNRESOLVED


def _trained_rows(workers: Backend, drafter: DrafterSpec, source: Source) -> Mapping[str, frozenset[str]]:
    try:
        return workers.trained_rows(drafter)
    except ValueError as error:
        wrong = str(error).removeprefix("checkpoint: ")
        raise source.error(f"drafter.{drafter.name}.checkpoint", wrong) from None


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
