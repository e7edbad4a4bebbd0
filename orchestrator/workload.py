"""How far cells are and what is left of them, counted: once over the records, never over cells times rows.

    standing = count(plan.grid.cells, plan.rows, ledger.results())

What `plan`, `status` and `watch` say of a sweep comes from here. design.md §5.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.grid import Cell, Group
from orchestrator.plan import FIRST_WAVE, Plan, Results
from orchestrator.schedule import Assign, Schedule, Start
from workers.work import DecodeSpec, SampleTask

WORDS = ("done", "partial", "failed", "new")  # the states of a cell
MOST_TASKS = 2000  # that are put through the schedule on paper; of more, an even share


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
        if self.left:
            return "partial" if self.done + self.failed else "new"
        return "failed" if self.failed else "done"

    @property
    def left(self) -> int:
        """Samples without a record."""
        return self.planned - self.done - self.failed


@dataclass(frozen=True)
class Workload:
    """The states of the cells, in their order, and by group how many sample tasks are left, first wave and the rest."""

    states: tuple[CellState, ...]
    tasks: Mapping[Group, tuple[int, int]]

    @property
    def left(self) -> int:
        """Samples without a record."""
        return sum(state.left for state in self.states)


def count(cells: Sequence[Cell], rows: Mapping[str, tuple[str, ...]], results: Results) -> Workload:
    """The workload of `cells`, of which `rows` are planned, by cell key, and `results` are there."""
    groups = {cell.key: cell.group for cell in cells}
    done, failed, passes = Counter[str](), Counter[str](), Counter[str]()
    held: dict[Group, Counter[str]] = defaultdict(Counter)
    planned = {id(ids): frozenset(ids) for ids in rows.values()} if results else {}
    for (key, row), record in results.items():
        if key not in groups or row not in planned[id(rows[key])]:
            continue
        held[groups[key]][row] += 1
        if record["status"] == "ok":
            done[key] += 1
            passes[key] += record["nfe"]
        else:
            failed[key] += 1
    states = tuple(
        CellState(
            cell, len(rows[cell.key]), done[cell.key], failed[cell.key],
            passes[cell.key] / done[cell.key] if done[cell.key] else None,
        )
        for cell in cells
    )  # fmt: skip
    sizes = Counter(groups.values())
    ids = {cell.group: rows[cell.key] for cell in cells}
    return Workload(states, {group: _tasks(ids[group], held.get(group), sizes[group]) for group in sizes})


def _tasks(rows: Sequence[str], held: Mapping[str, int] | None, cells: int) -> tuple[int, int]:
    """The rows, of the first wave and of the rest, that lack a record of any of a group's `cells`."""
    if held is None:
        return min(FIRST_WAVE, len(rows)), max(0, len(rows) - FIRST_WAVE)
    lacking = [held.get(row, 0) < cells for row in rows]
    return sum(lacking[:FIRST_WAVE]), sum(lacking[FIRST_WAVE:])


def most_passes(cell: Cell) -> float:
    """The most that a sample can need: a pass a position."""
    return cell.gen_length + cell.block_length - 1


def passes_left(workload: Workload, unknown: Callable[[Cell], float] = most_passes) -> dict[str, float]:
    """Target passes still to make, by cell key, controls decoded again for pairing included.

    A cell with results is taken at its mean NFE, one without at what `unknown` says.
    """
    return {
        state.cell.key: (state.nfe or unknown(state.cell))
        * (sum(workload.tasks[state.cell.group]) if state.cell.is_control else state.left)
        for state in workload.states
    }


def model_loads(plan: Plan, workload: Workload, workers: int) -> int:
    """How often a model will be loaded if every sample task takes as long: the schedule itself, run on paper."""
    total = sum(map(sum, workload.tasks.values()))
    share = min(1.0, max(MOST_TASKS, 8 * workers) / max(total, 1))
    waves: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    for group, tasks in workload.tasks.items():
        for wave, number in zip(waves, tasks, strict=True):
            wave[group.model] += number
    decode = DecodeSpec(gen_length=0, temperature=0.0, seed=0)
    stand_ins = {name: SampleTask("", model, "", "", "", decode, None) for name, model in plan.models.items()}
    schedule = Schedule(
        ([task for name, task in stand_ins.items() for _ in range(math.ceil(wave[name] * share))] for wave in waves),
        workers,
    )
    loads = 0
    while not schedule.finished:
        for decision in schedule.decide():
            if isinstance(decision, Start):
                loads += 1
                schedule.started(decision.worker)
            elif isinstance(decision, Assign):
                schedule.finished_job(decision.worker, decision.job.number)
    return loads
