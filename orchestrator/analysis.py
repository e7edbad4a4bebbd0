"""The paper's findings (sections 3 and 5.3, and its limits) on one's own target and data, as tables.

    python launch.py analyze quickstart
    python launch.py analyze --model tiny-sdar --task arith --prompts 20 --block-lengths 16,32

Everything is of one seed, the config's first. Passes are counted, nothing is timed: what a sweep has decoded is taken
from its ledger, what it lacks is decoded in this process and kept in a ledger of the analysis' own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from orchestrator import config as configs
from orchestrator import results
from orchestrator.config import COMMAND_LINE, Config, Source
from orchestrator.errors import UserError
from orchestrator.executors import said_in_one_line
from orchestrator.grid import CONTROL, DataSet, Grid, Group, decode_spec, expand, points
from orchestrator.ledger import Ledger, Record, Sample, read_sweep
from orchestrator.plan import Plan, make_sweep
from workers.store import Place

if TYPE_CHECKING:
    from workers.worker import Worker

ORACLES = ("positions", "tokens", "both")
COMPARED = 10  # prompts decoded with every method where no sweep has decoded them
SHOWN = 12  # blocks or depths a terminal has room for
Track = Callable[[Sequence[Any], str], Iterable[Any]]
Results = Mapping[Sample, Record]
PLACE = ["model", "task", "temperature"]
_NOTHING = "–"


@dataclass(frozen=True)
class Analysis:
    """Three tables, a line a number.

    `accuracy`: PLACE, measure (spot.analysis.MEASURES), by ("block" or "depth"), at, asked, share. `headroom`: PLACE,
    name, method, knows, budget, n, nfe, nfe_ratio, oracle_share, a line a cell with drafts. `lengths`: checkpoint,
    task, temperature, block_length, name, budget, n, nfe, nfe_ratio, of checkpoints decoded at several block lengths.
    """

    name: str
    folder: Path
    facts: tuple[tuple[str, str], ...]
    accuracy: pd.DataFrame
    headroom: pd.DataFrame
    lengths: pd.DataFrame
    failed: tuple[str, ...] = ()

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """By the name of their CSV file, those that have a line."""
        named = {"accuracy": self.accuracy, "headroom": self.headroom, "block-lengths": self.lengths}
        return {name: table for name, table in named.items() if len(table)}


# ---- what is asked


@dataclass(frozen=True)
class Subject:
    """What is analysed: a config of the rows to watch, how many of these to decode with every method, and where to.

    `held` are the records that a sweep has already.
    """

    name: str
    config: Config
    source: Source
    compared: int
    folder: Path
    held: Results


def of_sweep(folder: Place, overrides: Sequence[str], prompts: int) -> Subject:
    """The first `prompts` rows of the sweep in `folder`, all of them with every method.

    The page of a sweep on S3 goes to `runs` here.
    """
    stored, file = configs.relocated(read_sweep(folder).config, folder), folder / "sweep.yaml"
    changes = [text for text in overrides if not text.startswith("store=")]  # which found the folder
    planned, _ = configs.load_stored(stored, file, changes)
    rows = min(prompts, planned.limit or prompts)
    config, source = configs.load_stored(stored, file, [*changes, *_changes(planned, rows)])
    out = Path(configs.here(config.store)) / folder.name / "analysis"
    return Subject(config.name, config, source, rows, out, Ledger(folder).results())


def of_model(model: str, task: str, overrides: Sequence[str], prompts: int) -> Subject:
    """The first `prompts` rows of `task`, of which COMPARED are decoded with every method of the quickstart grid."""
    configs.check_one("model", model)
    configs.check_one("task", task)
    changes = [f"models=[{model}]", f"tasks=[{task}]", *overrides]
    planned, _ = configs.load("quickstart", changes)
    config, source = configs.load("quickstart", [*changes, *_changes(planned, prompts)])
    folder = Path(configs.here(config.store)) / f"analysis-{model}-{task}"
    return Subject(f"{model} · {task}", config, source, min(prompts, COMPARED), folder, {})


def _changes(config: Config, prompts: int) -> list[str]:
    """What turns `config` into an analysis of it: its first rows and first seed, in this process, with the oracles."""
    there = {results.oracle_knowledge(entry.get("method", name), entry) for name, entry in config.drafter.items()}
    drafters = [*config.drafters, *(f"oracle-{what}" for what in ORACLES if what not in there)]
    return [
        f"limit={prompts}",
        f"seeds=[{config.seeds[0]}]",
        f"drafters=[{','.join(drafters)}]",
        "zip=[]",
        "exclude=[]",
        "workers.executor=inline",
        "workers.address=null",
    ]


def check(subject: Subject, lengths: Sequence[int]) -> None:
    """UserError where an analysis can make no sense of what is asked."""
    from spot.order_model import LONGEST_BLOCK

    config = subject.config
    if any(config.decode_of(model).commit_threshold is not None for model in config.models):
        wrong = "'threshold': an analysis is of the order of single commits; decode.unmasking=single"
        raise subject.source.error("decode.unmasking", wrong)
    for length in lengths:
        if not 1 <= length <= LONGEST_BLOCK:
            raise UserError(COMMAND_LINE, "--block-lengths", f"{length}: from 1 to {LONGEST_BLOCK} positions")


def first_rows(plan: Plan, count: int) -> Plan:
    """`plan` with the first `count` rows of every group."""
    rows = {group: ids[:count] for group, ids in plan.grid.rows.items()}
    return replace(plan, grid=replace(plan.grid, rows=rows))


def at_lengths(plan: Plan, lengths: Sequence[int]) -> Plan:
    """The models of `plan` at other block lengths, with the drafters of methods spot and stale."""
    models = {
        f"{name}-b{length}": replace(spec, name=f"{name}-b{length}", block_length=length)
        for name, spec in plan.models.items()
        for length in lengths
        if length != spec.block_length
    }
    named = {spec.name: spec for spec in plan.drafters.values() if spec.method in ("spot", "stale")}
    if not (models and named):
        return replace(plan, models={}, grid=Grid((), {}, ()))
    drafters = {(model, name): spec for model in models for name, spec in named.items()}
    entries = {f"{name}-b{length}": plan.config.model[name] for name in plan.models for length in lengths}
    config = replace(plan.config, models=list(models), drafters=list(named), model=entries)
    data = {name: DataSet(task.revision, tuple(row.id for row in task.rows)) for name, task in plan.tasks.items()}
    grid = expand(config, points(config)[0], models, data, drafters)
    return replace(plan, config=config, models=models, grid=grid, drafters=drafters)


# ---- measuring


def analyze(subject: Subject, plan: Plan, lengths: Sequence[int], track: Track) -> Analysis:
    """Watch the rows of `plan`, decode the first `compared` of them with every method, and tabulate.

    What the sweep lacks is kept in `folder`, so that an analysis that was stopped, or is run again, decodes nothing
    twice.
    """
    from workers.worker import Worker

    methods = first_rows(plan, subject.compared)
    others = first_rows(at_lengths(plan, lengths), min(subject.compared, COMPARED))
    models = {**plan.models, **others.models}
    shares: list[dict[str, Any]] = []
    with Ledger.write(subject.folder, 0.0) as ledger:
        held = _best(ledger.results(), subject.held)
        for model in models.values():
            todo = [task for p in (methods, others) for wave in p.waves(held, retry_failed=True) for task in wave]
            todo = [task for task in todo if task.model == model]
            watched = [group for group in plan.grid.rows if group.model == model.name]
            if not (todo or watched):
                continue
            worker = None  # before the next is loaded, the last goes
            with said_in_one_line(f"model {model.name} could not be loaded"):
                worker = Worker(model)
            for group in watched:
                shares += _accuracy(worker, plan, group, track)
            for task in track(todo, f"decoding · {model.name}"):
                for record in worker.run(task):
                    ledger.append(record)
        held = _best(ledger.results(), subject.held)
    headroom, at_others = _cells(methods, held), _cells(others, held)
    return Analysis(
        name=subject.name,
        folder=subject.folder,
        facts=_facts(plan, subject.compared),
        accuracy=pd.DataFrame(shares),
        headroom=headroom.drop(columns=["checkpoint", "block_length"]),
        lengths=_several_lengths(pd.concat([headroom[headroom["knows"].isna()], at_others])),
        failed=tuple(line for p in (methods, others) for line in _failures(p, held)),
    )


def _best(own: Results, sweep: Results) -> dict[Sample, Record]:
    """The records of both; the sweep's, unless it failed there."""
    return {**sweep, **own, **{sample: record for sample, record in sweep.items() if record["status"] == "ok"}}


def _accuracy(worker: Worker, plan: Plan, group: Group, track: Track) -> list[dict[str, Any]]:
    """The lines of table `accuracy` for a group, whose rows are decoded draft-free."""
    from spot.analysis import measure
    from spot.decoder import Settings
    from spot.noise import Noise
    from spot.order_model import load_order_model
    from workers.worker import drafter_file

    asked = decode_spec(plan.config, plan.models[group.model], group.temperature, group.seed)
    settings = Settings(
        asked.gen_length, asked.temperature, asked.stop, layout=asked.layout, cache=asked.cache, suffix=asked.suffix
    )
    drafter = next((d for d in plan.drafters.values() if d.method == "spot" and d.checkpoint), None)
    file = drafter_file(drafter) if drafter else None
    order = load_order_model(file, str(worker.target.device)) if file else None
    rows = track(plan.grid.rows[group], f"watching · {group.model} · {group.task} · T {group.temperature:g}")
    prompts = ((row, plan.data[group.task][row][1].prompt) for row in rows)
    texts = ((worker.prompt_ids(prompt), Noise.keyed(group.seed, group.task, row)) for row, prompt in prompts)
    found = measure(worker.target, texts, settings, order)
    place = {"model": group.model, "task": group.task, "temperature": group.temperature}
    counts = {"block": found.asked[0].tolist(), "depth": found.asked.sum(1).tolist()}
    return [
        {**place, "measure": name, "by": by, "at": at, "asked": counts[by][at], "share": share}
        for name in found.hits
        for by, shares in (("block", found.by_block(name)), ("depth", found.by_depth(name)))
        for at, share in enumerate(shares)
    ]


def _cells(plan: Plan, held: Results) -> pd.DataFrame:
    """A line a cell with drafts, by `results.summary`."""
    columns = [*PLACE, "checkpoint", "block_length", "name", "method", "knows", "budget", "n", "nfe", "nfe_ratio",
               "oracle_share"]  # fmt: skip
    sweep = make_sweep(plan, plan.config.folder, {})
    samples = results.frame(sweep, (record for (cell, _), record in held.items() if cell in plan.cells), ())
    lines = [
        line
        | {"name": results.method_name(line), "knows": results.knows(cell)}
        | {"checkpoint": plan.models[cell.model].path, "block_length": cell.block_length}
        for line, cell in zip(results.summary(sweep, samples).to_dict("records"), sweep.cells, strict=True)
        if cell.method != CONTROL.method
    ]
    return pd.DataFrame(lines, columns=columns)


def _failures(plan: Plan, held: Results) -> Iterator[str]:
    for cell in plan.grid.cells:
        records = ((row, held[cell.key, row]) for row in plan.rows[cell.key])
        yield from (f"{cell.label}, row {row}: {found['error']}" for row, found in records if found["status"] != "ok")


def _several_lengths(cells: pd.DataFrame) -> pd.DataFrame:
    """Those of checkpoints that were decoded at more than one block length."""
    several = cells.groupby("checkpoint")["block_length"].transform("nunique") > 1
    columns = ["checkpoint", "task", "temperature", "block_length", "name", "budget", "n", "nfe", "nfe_ratio"]
    return cells[several.astype(bool)][columns].reset_index(drop=True)


def _facts(plan: Plan, compared: int) -> tuple[tuple[str, str], ...]:
    config, watched = plan.config, max(map(len, plan.grid.rows.values()))
    return (
        ("targets", ", ".join(plan.models)),
        ("tasks", ", ".join(plan.tasks)),
        ("block length", ", ".join(sorted({str(spec.block_length) for spec in plan.models.values()}))),
        ("tokens", ", ".join(sorted({str(config.decode_of(model).gen_length) for model in plan.models}))),
        ("seed", str(config.seeds[0])),
        ("texts watched", str(watched)),
        ("texts compared", str(min(compared, watched))),
    )


# ---- what a terminal shows


@contextmanager
def tracker(console: Console) -> Iterator[Track]:
    """A bar for every stage if `console` is a terminal, else a line."""
    columns = (TextColumn("{task.description}"), BarColumn(None), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:

        def track(items: Sequence[Any], what: str) -> Iterator[Any]:
            if items and not console.is_terminal:
                console.print(f"{what}: {len(items)} texts", highlight=False, soft_wrap=True)
            yield from bars.track(items, description=what) if items else ()

        yield track


def printed(analysis: Analysis) -> Iterator[RenderableType]:
    """The tables for a terminal of 80 columns; the page and the CSV files have all of it."""
    titles = {"block": "Right, %, by block of the answer", "depth": "Right, %, by number of commits ahead"}
    for by, title in titles.items():
        yield from _tables(title, by, analysis.accuracy.query("by == @by"), PLACE, ["measure"], "at", percent)
    title = "NFE ratio, and the share of the position oracle's reduction"
    yield from _tables(title, "budget", analysis.headroom, PLACE, ["name"], "budget", _saved)
    place = ["checkpoint", "task", "temperature"]
    title = "NFE ratio by block length"
    yield from _tables(title, "block length", analysis.lengths, place, ["name", "budget"], "block_length", ratio)


def percent(line: dict[str, Any]) -> str:
    """A share as 81.9, or 100."""
    return _NOTHING if pd.isna(line["share"]) else f"{100 * line['share']:.1f}".replace("100.0", "100")


def ratio(line: dict[str, Any]) -> str:
    """An NFE ratio as 3.81×."""
    return _NOTHING if pd.isna(line["nfe_ratio"]) else f"{line['nfe_ratio']:.2f}×"


def recovered(line: dict[str, Any]) -> str:
    """An oracle share as 88%."""
    return _NOTHING if pd.isna(line["oracle_share"]) else f"{line['oracle_share']:.0%}"


def _saved(line: dict[str, Any]) -> str:
    """Both: 3.81×  88%."""
    return ratio(line) + ("" if pd.isna(line["oracle_share"]) else f" {recovered(line):>4}")


def pivot(
    lines: pd.DataFrame, names: list[str], column: str, cell: Callable[[dict[str, Any]], str]
) -> Iterator[tuple[str, list[str]]]:
    """For each `names`, its cells over the values of `column`."""
    across = sorted(lines[column].unique())
    for name, group in lines.groupby(names, sort=False):
        found = {line[column]: cell(line) for line in group.to_dict("records")}
        yield " ".join(map(str, name)), [found.get(value, _NOTHING) for value in across]


def places(lines: pd.DataFrame, place: list[str]) -> Iterator[tuple[str, pd.DataFrame]]:
    """`model · task · T 0` and its lines."""
    for (*words, temperature), part in lines.groupby(place, sort=False) if len(lines) else ():
        yield f"{' · '.join(words)} · T {temperature:g}", part


def _tables(
    title: str, over: str, lines: pd.DataFrame, place: list[str], names: list[str], column: str,
    cell: Callable[[dict[str, Any]], str],
) -> Iterator[RenderableType]:  # fmt: skip
    """`names` down, the values of `column` across, a table for every `place`."""
    if len(lines):
        yield Text(title, style="bold")
    for where, part in places(lines, place):
        across = sorted(part[column].unique())
        shown = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
        shown.add_column(over)
        for value in across[:SHOWN]:
            shown.add_column(str(value), justify="right", no_wrap=True)
        for name, cells in pivot(part, names, column, cell):
            shown.add_row(name, *cells[:SHOWN])
        yield Text(where, style="cyan")
        yield shown
        yield ""
