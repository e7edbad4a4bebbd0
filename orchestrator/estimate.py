"""How long what is planned will take, by what `launch.py probe` measured on the machine that is to do it.

    python launch.py plan quickstart --probe runs/probe/tiny-sdar-cpu.json

A probe that was made of other weights, on another kind of device, or of passes of another shape says nothing and is not
used.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.config import Config, here, shown
from orchestrator.errors import UserError
from orchestrator.grid import Cell, decode_spec
from orchestrator.plan import Plan, Results, most_passes, passes_by_cell
from orchestrator.progress import duration

if TYPE_CHECKING:
    from spot.pass_cost import Curve

FORMAT = 1  # of the files that are read here; workers/probe.py writes them
SAME = ("revision", "device", "dtype", "block_length", "threads")  # what decides how long a pass takes
SHAPE = ("layout", "cache", "suffix")  # and of how it is decoded
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

    def passes(self, cell: Cell) -> float:
        """Those of a text as the probe found them, whichever the drafter; of texts of another kind, the most."""
        alike = (cell.task, *(getattr(cell, key) for key in ALIKE)) == self.texts
        return self.nfe[self._nearest(cell.budget)] if alike else most_passes(cell)

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


def lines(plan: Plan, results: Results, workers: int, probes: Mapping[str, Probe]) -> Iterator[str]:
    """`about 3 h 20 min, at most 12 h 05 min, on 2 workers, by the probe of ...`; names the models it is without."""
    models = list(dict.fromkeys(task.model.name for wave in plan.waves(results) for task in wave))
    known, unknown = [name for name in models if name in probes], [name for name in models if name not in probes]
    if not known:
        return

    def like_the_probes(cell: Cell) -> float:
        return probes[cell.model].passes(cell) if cell.model in probes else 0

    likely, most = (
        duration(_seconds(plan, passes_by_cell(plan, results, guess), probes) / workers)
        for guess in (like_the_probes, most_passes)
    )
    took = f"at most about {most}" if likely == most else f"about {likely}, at most {most},"
    of = ", ".join(f"{name} on {probes[name].machine}" for name in known)
    without = f"; without {', '.join(unknown)}, not probed" if unknown else ""
    yield f"{took} on {counted(workers, 'worker')}, by the probe{'s' * (len(known) > 1)} of {of}{without}"


def _seconds(plan: Plan, passes: Mapping[str, float], probes: Mapping[str, Probe]) -> float:
    """Of all passes of the models that are probed."""
    cells = (cell for cell in plan.grid.cells if cell.model in probes)
    return sum(passes[cell.key] * probes[cell.model].pass_seconds(cell.budget) for cell in cells)


def counted(count: int, what: str) -> str:
    """`1 worker`, `2 workers`."""
    return f"{count} {what}{'' if count == 1 else 's'}"
