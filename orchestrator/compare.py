"""Two sweeps beside each other, cell by cell on the rows that both have, or a sweep beside what papers report.

    python launch.py compare runs/first runs/second
    python launch.py compare sdar-8b-t0 published

Cells meet by model, task, drafter, budget, temperature and seed; whatever else decides results and is not the same, or
differs in the environment, is told. Times of two sweeps are not paired, so speed is compared by each sweep's own paired
throughput ratio. Reads ledgers and files; starts nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pandas as pd

from orchestrator import results
from orchestrator.config import COMMAND_LINE, listed
from orchestrator.errors import UserError
from orchestrator.grid import Cell
from orchestrator.ledger import Sweep
from orchestrator.published import MEASURES, SHARES, Figure
from orchestrator.results import Part, Ratio, Terms
from orchestrator.tables import Column, Entry, Line, Note, Panel, Sheet

_MEET = ("model", "task", "drafter", "budget", "temperature")  # and the seed
_SHOWN_CELLS = 6  # of one sweep alone
Loaded = tuple[Sweep, pd.DataFrame]  # as results.load gives them


# ---- two sweeps


@dataclass(frozen=True)
class Meeting:
    """A cell of both sweeps, over its seeds, on the `n` samples that both decoded.

    `alone` are those that only the first, and only the second, decoded; `nfe` is per sample in each, `passes` the
    first's over the second's (above 1: the second needs fewer), `prompts` on how many the second wins, ties and loses
    by NFE; `throughput` are both paired ratios and `speed` the second over the first; `accuracy` is the second's less
    the first's over the samples scored in both. `nfe_differs`, `texts` and `verdicts` say on how many they differ.
    """

    model: str
    task: str
    method: str
    budget: int
    temperature: float
    n: int
    alone: tuple[int, int]
    nfe: tuple[float | None, float | None]
    nfe_differs: int
    passes: Ratio
    prompts: tuple[int, int, int]
    texts: int
    verdicts: int
    accuracy: Ratio
    throughput: tuple[float | None, float | None]
    speed: Ratio

    @property
    def is_same(self) -> bool:
        """Whether every common sample, and there is one, has the same text and as many passes."""
        return self.n > 0 and not (self.texts or self.nfe_differs)


@dataclass(frozen=True)
class Comparison:
    """`settings` are (name, first's, second's, in how many cells, 0 for the environment's)."""

    names: tuple[str, str]
    meetings: tuple[Meeting, ...]
    only: tuple[tuple[str, ...], tuple[str, ...]]
    settings: tuple[tuple[str, str, str, int], ...]

    @property
    def wins_ties_losses(self) -> tuple[int, int, int]:
        """Cells in which the second needs fewer passes, as many as far as the interval tells, more."""
        signs = Counter(meeting.passes.sign for meeting in self.meetings if meeting.n)
        return signs[1], signs[0], signs[-1]


def of_sweeps(first: Loaded, second: Loaded) -> Comparison:
    """Raises UserError where the sweeps have no cell in common."""
    sweeps = first[0], second[0]
    cells = [{(*_meets(cell), cell.seed): cell for cell in sweep.cells} for sweep in sweeps]
    shared = [key for key in cells[0] if key in cells[1]]
    if not shared:
        names = (*_MEET, "seed")
        values = [[{getattr(cell, name) for cell in sweep.cells} for name in names] for sweep in sweeps]
        apart = [name for name, ours, theirs in zip(names, *values, strict=True) if not ours & theirs]
        why = f"; no {apart[0]} is in both" if apart else ""
        raise UserError(COMMAND_LINE, _named(sweeps[1]), f"no cell in common with {_named(sweeps[0])}{why}")
    tagged = [samples.assign(cell=f"{side} " + samples["cell"].astype(str)) for side, (_, samples) in
              zip("AB", (first, second), strict=True)]  # fmt: skip
    parts = results.by_cell(pd.concat(tagged, ignore_index=True))
    seeds: dict[tuple[Any, ...], list[tuple[Cell, Cell]]] = {}
    for key in shared:
        seeds.setdefault(key[:-1], []).append((cells[0][key], cells[1][key]))
    meetings = tuple(_meeting(group, parts) for group in seeds.values())
    only = tuple(tuple(cell.label for key, cell in ours.items() if key not in theirs)
                 for ours, theirs in (cells, cells[::-1]))  # fmt: skip
    pairs = [pair for group in seeds.values() for pair in group]
    settings = (*_settings(pairs), *_environments(*sweeps))
    both = (_named(sweeps[0]), _named(sweeps[1]))
    return Comparison(both, meetings, (only[0], only[1]), settings)


def _named(sweep: Sweep) -> str:
    return str(sweep.folder)


def _meets(cell: Cell) -> tuple[Any, ...]:
    return tuple(getattr(cell, name) for name in _MEET)


def _meeting(seeds: Sequence[tuple[Cell, Cell]], parts: Mapping[str, Part]) -> Meeting:
    cell, nothing = seeds[0][0], results.nothing()
    sides = [(parts.get(f"A {ours.key}", nothing), parts.get(f"B {theirs.key}", nothing)) for ours, theirs in seeds]
    pairs = [results.common(ours, theirs) for ours, theirs in sides]
    both = [_joined([pair[side] for pair in pairs]) for side in (0, 1)]
    n = len(both[0]["row"])
    saved = both[0]["nfe"] - both[1]["nfe"]
    times = [[results.terms(pair[side], "throughput_ratio") for pair in pairs] for side in (0, 1)]
    scored = both[1]["correct"] - both[0]["correct"]
    return Meeting(
        **{name: getattr(cell, name) for name in ("model", "task", "budget", "temperature")},
        method=results.method_name({"drafter": cell.drafter, "method": cell.method}),
        n=n,
        alone=(_total(sides, 0) - n, _total(sides, 1) - n),
        nfe=(_mean(both[0]["nfe"]), _mean(both[1]["nfe"])),
        nfe_differs=int(np.count_nonzero(saved)),
        passes=results.ratio([results.cost_terms(theirs, ours, "nfe") for ours, theirs in pairs]),
        prompts=(int((saved > 0).sum()), int((saved == 0).sum()), int((saved < 0).sum())),
        texts=int((both[0]["text_sha"] != both[1]["text_sha"]).sum()),
        verdicts=int(np.count_nonzero(np.nan_to_num(scored))),
        accuracy=results.ratio([_accuracy(ours, theirs) for ours, theirs in pairs]),
        throughput=(results.ratio(times[0]).value, results.ratio(times[1]).value),
        speed=results.ratio(times[1], times[0]),
    )


def _joined(parts: Sequence[Part]) -> Part:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _total(sides: Sequence[tuple[Part, Part]], side: int) -> int:
    return sum(len(pair[side]["row"]) for pair in sides)


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None


def _accuracy(ours: Part, theirs: Part) -> Terms:
    difference = theirs["correct"] - ours["correct"]
    scored = ~np.isnan(difference)
    return Terms(ours["row"][scored], difference[scored], np.ones(int(scored.sum())))


def _settings(pairs: Sequence[tuple[Cell, Cell]]) -> Iterator[tuple[str, str, str, int]]:
    """What of cells that meet is not the same."""
    found: Counter[tuple[str, str, str]] = Counter()
    for ours, theirs in pairs:
        for field in fields(Cell):
            values = getattr(ours, field.name), getattr(theirs, field.name)
            if values[0] != values[1]:
                found[field.name, _shown(values[0]), _shown(values[1])] += 1
    return ((*told, count) for told, count in found.items())


def _environments(first: Sweep, second: Sweep) -> Iterator[tuple[str, str, str, int]]:
    ours, theirs = dict(first.environment), dict(second.environment)
    for name in dict.fromkeys((*ours, *theirs)):
        if ours.get(name) != theirs.get(name):
            yield name, _shown(ours.get(name)), _shown(theirs.get(name)), 0


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)


def sheet(found: Comparison) -> Sheet:
    """A line a cell; A is the first sweep, B the second."""
    columns = (
        Column("model", words=True, section=True),
        Column("task", words=True, section=True),
        Column("method", words=True),
        Column("budget", "bud-\nget"),
        Column("T"),
        Column("n"),
        Column("NFE A", "NFE\nA"),
        Column("NFE B", "NFE\nB"),
        Column("passes A/B", "passes\nA/B"),
        Column("wins–ties–losses of B", "W–T–L\nof B"),
        Column("texts that differ", "texts\n≠"),
        Column("accuracy B−A", "accur.\nB−A"),
        Column("throughput ratio B/A", "thr.\nB/A"),
    )
    notes = (
        Note("Over the n samples that both decoded. Passes A/B above 1: B needs fewer. Wins, ties, losses: prompts on"),
        Note("which B needs fewer, as many, more passes. Throughput ratios are each sweep's own, against the control"),
        Note("decoded beside it."),
        Note("Ranges are 95 % bootstrap intervals over prompts, the seeds of one together.", "interval"),
        Note("Bold: the 95 % interval of the ratio holds no 1.", "best"),
    )
    lines = tuple(Line(tuple(_meeting_entries(meeting))) for meeting in found.meetings)
    return Sheet((Panel("", columns, lines),), notes)


def _meeting_entries(meeting: Meeting) -> Iterator[Entry]:
    yield from (Entry(meeting.model), Entry(meeting.task), Entry(meeting.method), Entry(f"{meeting.budget}"))
    yield Entry(f"{meeting.temperature:g}")
    yield Entry(f"{meeting.n}", partial=meeting.n == 0 or any(meeting.alone))
    yield from (Entry("–" if nfe is None else f"{nfe:.1f}") for nfe in meeting.nfe)
    yield _ratio_entry(meeting.passes, "{:.2f}", best=meeting.passes.sign != 0)
    yield Entry("–".join(map(str, meeting.prompts)))
    yield Entry(f"{meeting.texts}", bug=bool(meeting.texts))
    yield _ratio_entry(meeting.accuracy, "{:+.1%}", between=", ")
    yield _ratio_entry(meeting.speed, "{:.2f}", best=meeting.speed.sign != 0)


def _ratio_entry(ratio: Ratio, form: str, best: bool = False, between: str = "–") -> Entry:
    if ratio.value is None:
        return Entry("–")
    ends = [form.format(end) for end in (ratio.low, ratio.high) if end is not None]
    return Entry(form.format(ratio.value), interval=between.join(ends), best=best)


def lines(found: Comparison) -> Iterator[str]:
    """What the table does not say: who is who, what is the same, what only one has, what differs in the settings."""
    yield from (f"{side}: {name}" for side, name in zip("AB", found.names, strict=True))
    met = [meeting for meeting in found.meetings if meeting.n]
    same = sum(meeting.is_same for meeting in met)
    shared = f"{len(found.meetings)} cells in both, {len(met)} with common samples"
    yield f"{shared}; in {same}, every text and NFE is the same"
    if same < len(met):
        wins, ties, losses = found.wins_ties_losses
        yield f"by cells, B wins {wins}, ties {ties} (the 95 % interval of passes A/B holds 1) and loses {losses}"
    alone = [sum(meeting.alone[side] for meeting in found.meetings) for side in (0, 1)]
    for side, cells, samples in zip("AB", found.only, alone, strict=True):
        if cells:
            more = f" and {len(cells) - _SHOWN_CELLS} more" if len(cells) > _SHOWN_CELLS else ""
            yield f"only in {side}: {len(cells)} cells: {'; '.join(cells[:_SHOWN_CELLS])}{more}"
        if samples:
            yield f"only in {side}: {samples} samples of the cells in both"
    for name, ours, theirs, count in found.settings:
        yield f"differs: {name}: {ours} in A, {theirs} in B{f' ({count} cells)' if count else ''}"


def as_dict(found: Comparison) -> dict[str, Any]:
    """Plain values, for --json."""
    cells = [
        {
            **{field.name: getattr(meeting, field.name) for field in fields(Meeting)},
            **{name: getattr(meeting, name)._asdict() for name in ("passes", "accuracy", "speed")},
            "same": meeting.is_same,
        }
        for meeting in found.meetings
    ]
    names = ("name", "a", "b", "cells")
    return {
        "a": found.names[0],
        "b": found.names[1],
        "cells": cells,
        "wins_ties_losses": found.wins_ties_losses,
        "only_a": found.only[0],
        "only_b": found.only[1],
        "settings": [dict(zip(names, told, strict=True)) for told in found.settings],
    }


# ---- a sweep and papers


@dataclass(frozen=True)
class Ours:
    """What a cell of ours has for a published figure, over its seeds."""

    label: str
    value: float
    low: float | None
    high: float | None
    n: int
    planned: int


@dataclass(frozen=True)
class Beside:
    """A published figure and our cells that it speaks of, at least one."""

    figure: Figure
    ours: tuple[Ours, ...]

    @property
    def verdicts(self) -> tuple[str, ...]:
        """For each of ours, or for their mean where a mean is published: inside, near, below or above.

        Inside is as far as the source's digits tell. Near: outside, but the 95 % interval reaches it.
        """
        if self.figure.kind == "mean":
            return (_verdict(self.figure, float(np.mean([one.value for one in self.ours])), None, None),)
        return tuple(_verdict(self.figure, one.value, one.low, one.high) for one in self.ours)


def _verdict(figure: Figure, value: float, low: float | None, high: float | None) -> str:
    least = -np.inf if figure.low is None else figure.low - _rounding(figure.low)
    most = np.inf if figure.high is None else figure.high + _rounding(figure.high)
    if least <= value <= most:
        return "inside"
    if low is not None and high is not None and low <= most and high >= least:
        return "near"
    return "below" if value < least else "above"


def _rounding(end: float) -> float:
    """How far from `end` a number may be that its source prints as `end`."""
    return 0.5 * 10.0 ** -len(str(end).partition(".")[2])


def of_published(ours: Loaded, figures: Sequence[Figure]) -> tuple[list[Beside], list[Figure]]:
    """The figures that speak of one of our cells, and those that do not. UserError where none does."""
    sweep, samples = ours
    cells = {cell.key: cell for cell in sweep.cells}
    drafters = {cell.drafter for cell in sweep.cells if not cell.is_control}
    told = [figure for figure in figures if not figure.derived]
    rows: dict[str, list[dict[str, Any]]] = {}
    for baseline in {figure.baseline for figure in told} & {"control", *drafters}:
        paired = samples if baseline == "control" else results.against(samples, baseline, samples)
        merged = results.over_seeds(results.summary(sweep, paired), paired).to_dict("records")
        parts = results.by_cell(paired)
        rows[baseline] = [row | {"more_passes": _more_passes(row["cells"].values(), parts)} for row in merged]
    found = [Beside(figure, tuple(_ours(figure, rows.get(figure.baseline, []), cells))) for figure in told]
    met, unmet = [one for one in found if one.ours], [one.figure for one in found if not one.ours]
    if not met:
        models = sorted({model for figure in told for model in figure.conditions.get("models", ())})
        wrong = f"no published figure speaks of a cell that it has decoded; they are of {listed(models)}"
        raise UserError(COMMAND_LINE, _named(sweep), wrong)
    return met, unmet


def _more_passes(cells: Iterable[str], parts: Mapping[str, Part]) -> float | None:
    """How many more passes than its pair a sample of these cells takes, over those that have one."""
    more = [parts[cell]["nfe"] - parts[cell]["pair_nfe"] for cell in cells if cell in parts]
    known = np.concatenate([np.empty(0), *more])
    return _mean(known[~np.isnan(known)])


def _ours(figure: Figure, rows: Sequence[Mapping[str, Any]], cells: Mapping[str, Cell]) -> Iterator[Ours]:
    for row in rows:
        if figure.is_of(cells[next(iter(row["cells"].values()))]):
            value, low, high = _of_row(figure.measure, row)
            if value is not None:
                method = f"{results.method_name(row)} · b{row['budget']} · T{row['temperature']:g}"
                label = f"{row['model']} · {row['task']} · {method}"
                yield Ours(label, value, low, high, results.met(row), row["planned"])


def _of_row(measure: str, row: Mapping[str, Any]) -> tuple[float | None, float | None, float | None]:
    """The value and its interval; None where a sweep does not measure it."""
    if measure == "passes_saved":
        ratio = (row[f"nfe_ratio{end}"] for end in ("", "_low", "_high"))
        value, low, high = (None if one is None else 1 - 1 / one for one in ratio)
        return value, low, high
    return row.get(measure), row.get(f"{measure}_low"), row.get(f"{measure}_high")


def published_sheet(found: Sequence[Beside]) -> Sheet:
    """A line a figure, all of a measure together, so that sources which disagree stand one below the other."""
    columns = (Column("measure", words=True, section=True), Column("of", words=True), Column("published"),
               Column("ours"), Column("cells"), Column("ours is", words=True),
               Column("source", words=True))  # fmt: skip
    order = list(dict.fromkeys((one.figure.measure, one.figure.baseline) for one in found))
    by_measure = sorted(found, key=lambda one: order.index((one.figure.measure, one.figure.baseline)))
    incomplete = any(one.n < one.planned for beside in found for one in beside.ours)
    sources = dict.fromkeys(one.figure.source for one in by_measure)
    shown = [_shown_ours(one, _form(one.figure.measure)) for one in found]
    said = [
        (any(len(one.ours) > 1 and one.figure.kind != "mean" for one in found), "Ranges of ours are over cells."),
        (any("[" in ours for ours in shown), "In brackets: a cell's 95 % interval over prompts."),
        (any("near" in one.verdicts for one in found), "Near: outside, but a cell's 95 % interval reaches it."),
        (incomplete, "n/N: of cells that are incomplete."),
    ]
    notes = [sentence for there, sentence in said if there]
    notes += [f"{source.name}: {source.title}, {source.where}, {source.date}." for source in sources]
    panel = Panel("", columns, tuple(Line(tuple(_beside_entries(one))) for one in by_measure))
    return Sheet((panel,), tuple(map(Note, notes)))


def _beside_entries(one: Beside) -> Iterator[Entry]:
    figure, values = one.figure, [ours.value for ours in one.ours]
    form = _form(figure.measure)
    yield Entry(MEASURES[figure.measure] + ("" if figure.baseline == "control" else f" against {figure.baseline}"))
    yield Entry(figure.subject)
    yield Entry(_published(figure))
    yield Entry(_shown_ours(one, form))
    n, planned = (sum(getattr(ours, name) for ours in one.ours) for name in ("n", "planned"))
    yield Entry(f"{len(values)}", note=f"{n}/{planned}" if n < planned else "", partial=n < planned)
    counted = Counter(one.verdicts)
    told = listed(f"{count} {verdict}" if len(counted) > 1 else verdict for verdict, count in counted.items())
    yield Entry(told, bug=bool(counted.keys() & {"below", "above"}))
    yield Entry(figure.source.name)


def _shown_ours(one: Beside, form: Callable[[float], str]) -> str:
    values = [ours.value for ours in one.ours]
    if one.figure.kind == "mean":
        return f"mean {form(float(np.mean(values)))}"
    if len(values) > 1:
        return f"{form(min(values))}–{form(max(values))}"
    low, high = one.ours[0].low, one.ours[0].high
    return form(values[0]) + (f" [{form(low)}–{form(high)}]" if low is not None and high is not None else "")


def _form(measure: str) -> Callable[[float], str]:
    if measure in ("nfe", "more_passes"):
        return "{:.1f}".format
    return "{:.1%}".format if measure in SHARES else "{:.2f}".format


def _published(figure: Figure) -> str:
    """As the source has it: no digit more."""
    ends = (figure.low, figure.high)
    low, high = (None if end is None else f"{end * 100:g}%" if figure.measure in SHARES else str(end) for end in ends)
    match figure.kind:
        case "range":
            return f"{low}–{high}"
        case "at_most":
            return f"≤ {high}"
        case "at_least":
            return f"≥ {low}"
        case "mean":
            return f"mean {low}"
    return str(low)


def published_as_dict(found: Sequence[Beside], unmet: Sequence[Figure]) -> dict[str, Any]:
    """Plain values, for --json; `unmet` are the figures that speak of none of our cells."""
    return {
        "figures": [
            {
                **_plain(one.figure),
                "ours": [{field.name: getattr(ours, field.name) for field in fields(Ours)} for ours in one.ours],
                "verdicts": one.verdicts,
            }
            for one in found
        ],
        "unmet": [_plain(figure) for figure in unmet],
    }


def _plain(figure: Figure) -> dict[str, Any]:
    source = {name: getattr(figure.source, name) for name in ("name", "title", "where", "date")}
    names = ("measure", "kind", "low", "high", "unmasking", "baseline", "says")
    return {name: getattr(figure, name) for name in names} | dict(figure.conditions) | {"source": source}
