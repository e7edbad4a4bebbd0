"""How long what is planned will take, and what it costs.

    python launch.py plan quickstart --probe runs/probe/tiny-sdar-cpu.json

Passes: as measured in the sweep's own ledger, else as a probe found them, else as published (configs/published), else
a pass a position. Seconds of a pass: of the ledger, else of a probe; what nobody timed is named and not counted. A
probe that was made of other weights, on another kind of device, or of passes of another shape says nothing and is not
used.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import published
from orchestrator.cluster import Cluster
from orchestrator.config import Config, here, shown
from orchestrator.errors import UserError
from orchestrator.grid import Cell, Group, decode_spec
from orchestrator.plan import Plan, Results
from orchestrator.progress import duration
from orchestrator.workload import Workload, most_passes, passes_left
from workers.work import SampleTask, Work

if TYPE_CHECKING:
    from spot.pass_cost import Curve

FORMAT = 1  # of the files that are read here; workers/probe.py writes them
SAME = ("revision", "device", "dtype", "block_length", "threads")  # what decides how long a pass takes
SHAPE = ("layout", "cache", "suffix")  # and of how it is decoded
MOST_LOOKED_AT = 100  # records of a kind that are read for their times
ALIKE = ("gen_length", "stop", "threshold")  # what decides, with the task, how many passes a text takes


@dataclass(frozen=True)
class Probe:
    """What a probe's file says of a target's passes.

    `identity` has the values of SAME and SHAPE, `texts` the task and the values of ALIKE. `decoded` are the seconds a
    pass, all of decoding included, at the budgets that the probe decoded, `nfe` the passes a text there; `cost` are the
    seconds of a pass alone by its number of drafts.
    """

    file: Path
    model: str
    machine: str
    identity: Mapping[str, Any]
    texts: tuple[Any, ...]
    decoded: Mapping[int, float]
    nfe: Mapping[int, float]
    cost: Curve

    def pass_seconds(self, budget: int) -> float:
        """What was decoded; at other budgets, that of the nearest one, scaled as passes alone are."""
        nearest = self._nearest(budget)
        return self.decoded[nearest] * self.cost(budget) / self.cost(nearest)

    def is_alike(self, cell: Cell) -> bool:
        """Whether the probe decoded texts of the cell's kind."""
        return (cell.task, *(getattr(cell, key) for key in ALIKE)) == self.texts

    def passes(self, cell: Cell) -> float:
        """Those of a text alike as the probe found them, whichever the drafter."""
        return self.nfe[self._nearest(cell.budget)]

    def _nearest(self, budget: int) -> int:
        """The decoded budget that tells most of this one; draft-free is like no other."""
        drafted = [known for known in self.decoded if known]
        return min(drafted, key=lambda known: abs(known - budget), default=0) if budget else 0


def default_file(config: Config, model: str) -> Path:
    """`<store>/probe/MODEL-DEVICE.json`; for a store on S3, in `runs`."""
    return Path(here(config.store)) / "probe" / f"{model}-{config.workers.device}.json"


def read(file: Path) -> Probe:
    """Raises UserError for a file that is none of `launch.py probe`'s."""
    from spot.pass_cost import Curve

    try:
        found = json.loads(file.read_text())
        if found["format"] != FORMAT:
            raise UserError(shown(file), "format", f"{found['format']}; {FORMAT} is known here; probe again")
        seconds = {line["nodes"] - 1: line["seconds"] for line in found["passes"] if line["seconds"] is not None}
        return Probe(
            file=file,
            model=found["model"],
            machine=found["machine"]["name"],
            identity={key: found[key] for key in SAME} | {key: found["decode"][key] for key in SHAPE},
            texts=(found["task"], *(found["decode"][key] for key in ALIKE)),
            decoded={line["budget"]: line["pass_seconds"] for line in found["decoded"]},
            nfe={line["budget"]: line["nfe"] for line in found["decoded"]},
            cost=Curve.of(seconds),
        )
    except OSError as error:
        raise UserError(shown(file), "", f"cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise UserError(shown(file), "", "no file of `launch.py probe`") from None


def check(probe: Probe, plan: Plan) -> None:
    """Raises UserError unless `probe` is of one of the plan's models, as it is, is decoded, and where it is to run."""
    spec = plan.models.get(probe.model)
    if spec is None:
        raise UserError(shown(probe.file), "model", f"{probe.model}; this grid has {', '.join(plan.models)}")
    decode = decode_spec(plan.config, spec, 0.0, 0)
    ours = {key: getattr(spec, key) for key in SAME} | {key: getattr(decode, key) for key in SHAPE}
    keys = [key for key in ours if key != "threads" or spec.device == "cpu"]
    for key in keys:
        if probe.identity[key] != ours[key]:
            wrong = f"{probe.identity[key]}; this grid's {probe.model} has {ours[key]}; probe it again"
            raise UserError(shown(probe.file), key, wrong)


def find(plan: Plan, named: Sequence[Path]) -> tuple[dict[str, Probe], list[str]]:
    """The probes by model, and a line for each that is there and not used.

    Those `named` are used, or a UserError; for the other models, the store's own are used if they are of the same.
    """
    found: dict[str, Probe] = {}
    notes: list[str] = []
    for file in named:
        probe = read(file)
        check(probe, plan)
        if probe.model in found:
            raise UserError(shown(file), "model", f"{probe.model}, as {shown(found[probe.model].file)}; one is enough")
        found[probe.model] = probe
    for model in plan.models.keys() - found.keys():
        file = default_file(plan.config, model)
        if not file.is_file():
            continue
        try:
            probe = read(file)
            check(probe, plan)
            if probe.model == model:
                found[model] = probe
        except UserError as error:
            notes.append(f"not used: {error}")
    return found, sorted(notes)


Ratios = Mapping[tuple[str, str, int, str | None], float]  # by (model, drafter, budget, task), of any task if None


def published_ratios() -> Ratios:
    """How many times fewer passes than draft-free decoding papers report at least; of one position a pass."""
    told = [
        figure
        for figure in published.every()
        if (figure.measure, figure.baseline, figure.unmasking) == ("nfe_ratio", "control", "single")
        and figure.conditions.keys() >= {"models", "drafters", "budgets"}
    ]
    return {
        (model, drafter, budget, task): figure.low
        for figure in told
        for model in figure.conditions["models"]
        for drafter in figure.conditions["drafters"]
        for budget in figure.conditions["budgets"]
        for task in figure.conditions.get("tasks", (None,))
        if figure.low is not None
    }


def _ratio(ratios: Ratios, cell: Cell) -> float | None:
    """Of its task if one is told, else of any."""
    key = (cell.model, cell.drafter, cell.budget)
    found = ratios.get((*key, cell.task), ratios.get((*key, None)))
    return found if cell.threshold is None else None


PassKind = tuple[str, str, int]  # (model, drafter, budget): what decides, in one sweep, how long a pass takes


def measured(plan: Plan, results: Results) -> dict[PassKind, float]:
    """The seconds a pass, prefill and drafting included, of the sweep's own first records on this kind of device."""
    device = plan.config.workers.device
    seconds, passes, looked = Counter[PassKind](), Counter[PassKind](), Counter[PassKind]()
    for (key, _), record in results.items():
        cell = plan.cells.get(key)
        if cell is None or record["status"] != "ok":
            continue
        kind = (cell.model, cell.drafter, cell.budget)
        looked[kind] += 1
        if looked[kind] > MOST_LOOKED_AT or record.get("device") != device:
            continue
        seconds[kind] += sum(record["seconds"].values())
        passes[kind] += record["nfe"]
    return {kind: seconds[kind] / passes[kind] for kind in seconds if passes[kind]}


@dataclass(frozen=True)
class Estimate:
    """Of what is left: target passes, and seconds of one worker, as likely and at most.

    `of_passes` and `of_seconds` say where the numbers are from. The passes in `untimed`, of a model or of some of its
    drafters and budgets, are not in the seconds, as nobody timed them; None where none was timed.
    """

    passes: float
    most_passes: float
    seconds: float | None
    most_seconds: float | None
    of_passes: tuple[str, ...]
    of_seconds: tuple[str, ...]
    untimed: tuple[str, ...]


def estimate(plan: Plan, workload: Workload, results: Results, probes: Mapping[str, Probe]) -> Estimate:
    """The passes and the time of all that is left."""
    paper, own = published_ratios(), measured(plan, results)
    of_passes, of_seconds = dict[str, None](), dict[str, None]()
    timed_models, untimed = set[str](), dict[PassKind, None]()
    passes_of: dict[tuple[Any, ...], float] = {}

    def likely(cell: Cell) -> float:
        kind = (cell.model, cell.task, cell.drafter, cell.budget)
        if kind not in passes_of:
            passes_of[kind], whose = _likely_passes(cell, probes.get(cell.model), paper)
            of_passes[whose] = None
        return passes_of[kind]

    all_passes = passes_left(workload, likely)
    most_passes_left = passes_left(workload)
    if any(state.nfe for state in workload.states):
        of_passes["the ledger"] = None
    seconds = most_seconds = 0.0
    for cell in plan.grid.cells:
        if not most_passes_left[cell.key]:
            continue
        timed = _pass_seconds(cell, own, probes)
        if timed is None:
            untimed[cell.model, cell.drafter, cell.budget] = None
            continue
        a_pass, whose = timed
        timed_models.add(cell.model)
        of_seconds[whose] = None
        seconds += all_passes[cell.key] * a_pass
        most_seconds += most_passes_left[cell.key] * a_pass
    return Estimate(
        passes=sum(all_passes.values()),
        most_passes=sum(most_passes_left.values()),
        seconds=seconds if of_seconds else None,
        most_seconds=most_seconds if of_seconds else None,
        of_passes=tuple(of_passes),
        of_seconds=tuple(of_seconds),
        untimed=tuple(_untimed(untimed, timed_models)),
    )


def _untimed(kinds: Iterable[PassKind], timed_models: set[str]) -> Iterator[str]:
    """`sdar-8b`; of a model whose other passes were timed, `sdar-8b with spot at budget 8 and 20`."""
    budgets: dict[tuple[str, str], list[str]] = {}
    for model, drafter, budget in kinds:
        key = (model, drafter if model in timed_models else "")
        budgets.setdefault(key, []).append(str(budget))
    for (model, drafter), values in budgets.items():
        if not drafter:
            yield model
        elif values == ["0"]:
            yield f"{model} draft-free"
        else:
            yield f"{model} with {drafter} at budget {_and(values)}"


def task_cost(plan: Plan, results: Results) -> Callable[[Work], float]:
    """How long a sample task of `plan` takes beside others, for the schedule: who holds how many workers.

    In seconds, if the passes of every cell were timed: by the sweep's own records, or by the store's probes. Else in
    passes, as if those of all models took as long.
    """
    probes, own, paper = find(plan, [])[0], measured(plan, results), published_ratios()
    passes = {cell.key: _likely_passes(cell, probes.get(cell.model), paper)[0] for cell in plan.grid.cells}
    timed = {cell.key: _pass_seconds(cell, own, probes) for cell in plan.grid.cells}
    seconds = {key: passes[key] * time[0] for key, time in timed.items() if time}
    costs = seconds if len(seconds) == len(passes) else passes

    def cost(task: Work) -> float:
        assert isinstance(task, SampleTask)
        control = plan.controls[Group(task.model.name, task.task, task.decode.temperature, task.decode.seed)]
        return costs[control.key] + sum(costs[method.cell] for method in task.methods)

    return cost


def _pass_seconds(cell: Cell, own: Mapping[PassKind, float], probes: Mapping[str, Probe]) -> tuple[float, str] | None:
    """The seconds of a pass, and by whose word; None where nobody timed it."""
    kind = (cell.model, cell.drafter, cell.budget)
    if kind in own:
        return own[kind], "the sweep's own records"
    if cell.model in probes:
        probe = probes[cell.model]
        return probe.pass_seconds(cell.budget), f"the probe of {cell.model} on {probe.machine}"
    return None


def _likely_passes(cell: Cell, probe: Probe | None, paper: Ratios) -> tuple[float, str]:
    """A sample's passes, and by whose word."""
    if probe is not None and probe.is_alike(cell):
        return probe.passes(cell), f"the probe of {probe.model}"
    draft_free = float(cell.gen_length) if cell.stop == "length" and cell.threshold is None else most_passes(cell)
    ratio = _ratio(paper, cell)
    if ratio is not None:
        return draft_free / ratio, "the published ratios"
    return (draft_free if cell.is_control else most_passes(cell)), "a pass a position"


def lines(found: Estimate, workers: int, cluster: Cluster | None) -> Iterator[str]:
    """`about 3 h 20 min, at most 12 h 05 min, on 2 workers, by the probe of ...`; names the models it is without."""
    if round(found.passes) < round(found.most_passes):
        told = [whose for whose in found.of_passes if whose != "a pass a position"]
        by = f" by {_and(told)}" if told else ""
        yield f"about {found.passes:,.0f} target passes{by}, at most {found.most_passes:,.0f}"
    elif found.most_passes:
        yield f"at most {found.most_passes:,.0f} target passes"
    without = (
        f"; without {', '.join(found.untimed)}, whose passes nobody timed (launch.py probe)" if found.untimed else ""
    )
    if found.seconds is None or found.most_seconds is None:
        if found.untimed:
            yield f"time unknown: nobody timed the passes of {', '.join(found.untimed)} (launch.py probe)"
        return
    likely, most = (duration(seconds / workers) for seconds in (found.seconds, found.most_seconds))
    took = f"at most about {most}" if likely == most else f"about {likely}, at most {most},"
    yield f"{took} on {counted(workers, 'worker')}, by {_and(found.of_seconds)}{without}"
    if cluster is not None:
        hours, most_hours = found.seconds / 3600, found.most_seconds / 3600
        yield f"{hours:.1f} GPU-hours, at most {most_hours:.1f}{_price(cluster, hours, most_hours)}"


def _price(cluster: Cluster, hours: float, most_hours: float) -> str:
    """`: 120 USD, at most 310, at 4.975 a GPU-hour (H200, 2026-01)`."""
    price = cluster.usd_per_gpu_hour
    if price is None:
        return f"; no price of a GPU-hour is known ({cluster.gpu})"
    cost, most = hours * price, most_hours * price
    return f": {cost:,.2f} USD, at most {most:,.2f}, at {price:g} a GPU-hour ({cluster.gpu}, {cluster.date})"


def _and(words: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def counted(count: int, what: str) -> str:
    """`1 worker`, `2 workers`."""
    return f"{count} {what}{'' if count == 1 else 's'}"
