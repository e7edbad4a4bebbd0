"""Records in, numbers out: samples, one summary row a cell, one a cell over its seeds. design.md §5 "Numbers".

    sweep, samples = results.load(place("runs/first"))
    rows = results.over_seeds(results.summary(sweep, samples), samples)

Everything is computed from the ledger's records; nothing is stored. Where a number does not exist (an acceptance
without a drafted pass, a time ratio without an identical text) it is None, never NaN and never zero. What the numbers
look like is orchestrator/tables.py's.

A ratio is one of sums, over the samples that both sides have. Its interval is a 95 % bootstrap over prompts: rows are
drawn with replacement, the seeds of a row together, so three seeds of one prompt do not count as three prompts. That
of an accuracy is Wilson's, since a bootstrap of nothing but right answers knows of no wrong one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from orchestrator import grid
from orchestrator.config import COMMAND_LINE, listed
from orchestrator.errors import UserError
from orchestrator.grid import Cell
from orchestrator.ledger import Ledger, Record, Sweep, read_sweep
from workers.store import Place

AXES = ("model", "task", "drafter", "method", "budget", "temperature", "seed", "gen_length", "stop")
CONTROL = grid.CONTROL.name  # the drafter and the method of a cell without drafts
_FIELDS = ("cell", "row", "status", "error", "text", "text_sha", "length", "nfe", "cache_passes", "drafted",
           "drafted_passes", "accepted", "accepted_by_depth", "control_nfe", "control_seconds", "control_sha",
           "identical", "difference", "device", "dtype", "threads", "node", "started", "finished",
           "peak_bytes", "per_gpu")  # fmt: skip
_PAIR = ("pair", "pair_nfe", "pair_seconds", "pair_same")  # what a sample's ratios are against
_FLOATS = ("length", "nfe", "cache_passes", "drafted", "drafted_passes", "accepted", "control_nfe", "identical",
           "correct", "per_gpu", "peak_bytes", "seconds", *_PAIR[1:])  # fmt: skip
_SCORE_FIELDS = {"correct": "correct", "answer": "answer", "scored_at": "started"}
_PHASES = ("prefill", "target", "draft", "rest")
_RESAMPLES = 1000
# The columns that are averaged over seeds; `NAME_low` and `NAME_high` exist for the three with an interval.
MEASURES = ("nfe", "nfe_ratio", "throughput_ratio", "acceptance", "accepted_share", "accuracy", "identical",
            "tokens_per_second", "cache_passes", "oracle_share", *(f"time_{phase}" for phase in _PHASES))  # fmt: skip
_COUNTS = ("n", "planned", "failed", "scored", "same", "numeric", "bug", "shared", "wins", "ties", "losses")
PAIRED = ("nfe_ratio", "throughput_ratio")
RATIOS = (*PAIRED, "accuracy")  # those with an interval
_Z = 1.959963984540054  # of a normal distribution, 95 % lie within so many deviations
RANKED = {"nfe": 1, "throughput_ratio": 2}  # the measures that methods compete in: the decimals they are printed with


def is_oracle(method: str) -> bool:
    """Whether a drafting method is a diagnostic that has seen the answer: untimed, never the best of a group."""
    return method.startswith("oracle")


def method_name(row: Mapping[str, Any]) -> str:
    """What a method is called everywhere: its drafter, "control", or with a dagger where it has seen the answer."""
    return f"{_called(row['drafter'])} †" if is_oracle(row["method"]) else _called(row["drafter"])


def _called(drafter: str) -> str:
    return "control" if drafter == CONTROL else drafter


def knows(cell: Cell) -> str | None:
    """What an oracle cell knows of the answer: "positions", "tokens" or "both"; None for any other cell."""
    return oracle_knowledge(cell.method, dict(cell.drafter_options))


def oracle_knowledge(method: str, options: Mapping[str, Any]) -> str | None:
    """The same of a drafter's method and options."""
    return str(options.get("knows", "both")) if is_oracle(method) else None


# ---------------------------------------------------------------------------------------------------------- samples


def frame(sweep: Sweep, decodes: Iterable[Record], scores: Iterable[Record]) -> pd.DataFrame:
    """One row a (cell, data-set row) of the plan that has a decode record: axes, measurements and `correct`.

    `decodes` are the ledger's, one a (cell, row). `seconds` is the decoding time, `seconds_PHASE` its
    parts, all in seconds. Scores join by (task, row, text_sha), the latest one wins; `correct` is None where there is
    none. Texts that a record left out because they equal the control's are put back. `pair_nfe`, `pair_seconds` (None
    for an oracle, which is untimed) and `pair_same` are what the sample's ratios are against: its control (`against`
    changes it).
    """
    cells = {cell.key: cell for cell in sweep.cells}
    planned = {ids: frozenset(ids) for ids in sweep.rows.values()}
    names = [*AXES, "label", *_FIELDS, "seconds", *(f"seconds_{phase}" for phase in _PHASES)]
    columns: dict[str, list[Any]] = {name: [] for name in names}
    shared: dict[str, str] = {}
    for record in decodes:
        if record["row"] in planned.get(sweep.rows.get(record["cell"], ()), ()):
            for name, value in _sample(cells[record["cell"]], record).items():
                columns[name].append(shared.setdefault(value, value) if isinstance(value, str) else value)
    samples = pd.DataFrame({name: pd.Series(column, dtype=object) for name, column in columns.items()})
    return _paired(_join_scores(_restore_texts(samples), scores), "control",
                   samples[["control_nfe", "control_seconds"]], samples["identical"])  # fmt: skip


def load(folder: Place) -> tuple[Sweep, pd.DataFrame]:
    """The sweep in `folder` and its samples as `frame` gives them. UserError where there is no sweep."""
    sweep, records = read_sweep(folder), Ledger(folder)
    return sweep, frame(sweep, records.decodes(), records.scores().values())


def _sample(cell: Cell, record: Record) -> dict[str, Any]:
    seconds = record.get("seconds") or {}
    return {
        **axes(cell),
        "label": cell.label,
        **{name: record.get(name) for name in _FIELDS},
        "seconds": sum(seconds.values()) if seconds else None,
        **{f"seconds_{phase}": seconds.get(phase) for phase in _PHASES},
    }


def axes(cell: Cell) -> dict[str, Any]:
    """The grid coordinates of a cell, by name."""
    return {name: getattr(cell, name) for name in AXES}


def _text_keys(samples: pd.DataFrame) -> list[tuple[str, str, str]]:
    return list(zip(samples["task"], samples["row"], samples["text_sha"], strict=True))


def _restore_texts(samples: pd.DataFrame) -> pd.DataFrame:
    keys = _text_keys(samples)
    known = {key: text for key, text in zip(keys, samples["text"], strict=True) if isinstance(text, str)}
    return samples.assign(text=pd.Series([known.get(key) for key in keys], index=samples.index, dtype=object))


def _join_scores(samples: pd.DataFrame, scores: Iterable[Record]) -> pd.DataFrame:
    latest = {(s["task"], s["row"], s["text_sha"]): s for s in sorted(scores, key=lambda s: s.get("started") or 0)}
    found = [latest.get(key, {}) for key in _text_keys(samples)]
    columns = {name: [score.get(field) for score in found] for name, field in _SCORE_FIELDS.items()}
    return samples.assign(**{name: pd.Series(v, index=samples.index, dtype=object) for name, v in columns.items()})


def _paired(samples: pd.DataFrame, name: str, costs: pd.DataFrame, same: pd.Series) -> pd.DataFrame:
    """`costs` are the passes and the seconds of each sample's pair, `same` whether its text is the sample's."""
    timed = samples["method"].map(is_oracle).ne(True)
    passes, seconds = (costs[column].astype(object) for column in costs)
    return samples.assign(pair=name, pair_nfe=passes, pair_seconds=seconds.where(timed, None), pair_same=same)


def against(samples: pd.DataFrame, method: str, base: pd.DataFrame, called: str = "") -> pd.DataFrame:
    """`samples` with ratios against `method` as `base` decoded it, the same sweep's samples or another's.

    `method` is a drafter's name, or "control"; `called` is what tables call it, where it is not the same sweep's. Its
    sample of the same model, task, temperature, seed, length, row and budget (a control has none) is the pair; a sample
    without one has no ratio. Seconds count where both texts are the same: so a method under the threshold rule can be
    measured against the single-position control of another sweep.
    """
    keys = [
        "model",
        "task",
        "temperature",
        "seed",
        "gen_length",
        "stop",
        "row",
        *(["budget"] if method != "control" else []),
    ]
    found = base[(base["drafter"].map(_called) == method) & (base["status"] == "ok")]
    costs = found[["nfe", "seconds", "text_sha"]].add_prefix("base_")
    costs["base_seconds"] = costs["base_seconds"].where(found["method"].map(is_oracle).ne(True), None)
    right = pd.concat([found[keys], costs], axis=1).drop_duplicates(keys)
    joined = samples[keys].merge(right, on=keys, how="left").set_index(samples.index)
    joined = joined.astype(object).where(joined.notna(), None)
    same = joined["base_text_sha"] == samples["text_sha"]
    return _paired(samples, called or method, joined[["base_nfe", "base_seconds"]], same)


def check_method(sweep: Sweep, method: str) -> None:
    """Raises UserError unless `method` is one of the sweep's: a drafter, or "control"."""
    names = list(dict.fromkeys(_called(cell.drafter) for cell in sweep.cells))
    if method not in names:
        raise UserError(COMMAND_LINE, "baseline", f"no method {method!r} in {sweep.name}; it has {listed(names)}")


# ---------------------------------------------------------------------------------------------------------- summary


def summary(sweep: Sweep, samples: pd.DataFrame) -> pd.DataFrame:
    """One row a cell, in the sweep's order, unfinished and empty cells included.

    Columns: cell, axes, label; n (decoded without error), planned, failed, scored, same (texts equal to the
    control's), numeric, bug, shared (timed on a GPU that others used, too), wins, ties and losses (prompts on which it
    needs fewer, as many, more passes than its pair) (counts); MEASURES, of which RATIOS carry a 95 % interval over rows
    (`_low`, `_high`), and oracle_share is the share that the cell recovers of what the position oracle saves
    at its budget, over their common rows, None where the sweep has no such cell; survival, the share of drafted passes
    in which at least 1, 2, ... drafts were accepted; pair, what the first two ratios are against (`against`); prompts,
    a digest of the planned rows.
    """
    parts, looked_at = by_cell(samples), samples["cell"].value_counts()
    there = {cell.key: parts.get(cell.key, nothing()) for cell in sweep.cells}
    oracles = {_place(cell): there[cell.key] for cell in sweep.cells if knows(cell) == "positions"}
    pair = samples["pair"].iloc[0] if len(samples) else "control"
    rows = [
        _summarise(cell, there[cell.key], len(sweep.rows[cell.key]), int(looked_at.get(cell.key, 0)))
        | {"oracle_share": _oracle_share(there[cell.key], oracles.get(_place(cell))), "pair": pair}
        | {"prompts": hashlib.sha256(repr(sorted(sweep.rows[cell.key])).encode()).hexdigest()[:8]}
        for cell in sweep.cells
    ]
    return _none_for_nan(pd.DataFrame(rows))


Part = dict[str, np.ndarray]  # the decoded samples of a cell, without the failed ones: an array a column


def by_cell(samples: pd.DataFrame) -> dict[str, Part]:
    """The decoded samples of each cell as arrays: numbers as floats with NaN for None, row and text_sha as codes.

    The codes are of all of `samples`: equal where row or text are. Pandas is left here, once and not once a cell.
    """
    good = samples[samples["status"] == "ok"]
    floats = [*_FLOATS, *(f"seconds_{phase}" for phase in _PHASES)]
    arrays = {name: good[name].to_numpy(dtype=float, na_value=np.nan) for name in floats}
    arrays |= {name: pd.factorize(good[name])[0] for name in ("row", "text_sha")}
    arrays |= {name: good[name].to_numpy(dtype=object) for name in ("difference", "accepted_by_depth")}
    places = good.groupby("cell", sort=False).indices if len(good) else {}
    return {cell: {name: array[where] for name, array in arrays.items()} for cell, where in places.items()}


@lru_cache(1)
def nothing() -> Part:
    """A cell without a sample."""
    return {name: np.empty(0) for name in (*_FLOATS, *(f"seconds_{phase}" for phase in _PHASES), "row", "text_sha",
                                           "difference", "accepted_by_depth")}  # fmt: skip


def _place(cell: Cell) -> tuple[Any, ...]:
    """A cell's axes without its drafter: where it may be measured against an oracle."""
    return tuple(value for name, value in axes(cell).items() if name not in ("drafter", "method"))


def _oracle_share(part: Part, oracle: Part | None) -> float | None:
    """(control - method) / (control - position oracle), NFE summed over the rows that both have."""
    if oracle is None:
        return None
    ours, best = common(part, oracle)
    saved, most = (side["control_nfe"] - side["nfe"] for side in (ours, best))
    return _divide(np.nansum(saved), np.nansum(most))


def _none_for_nan(table: pd.DataFrame) -> pd.DataFrame:
    return table.astype(object).where(table.notna(), None)


def _summarise(cell: Cell, part: Part, planned: int, looked_at: int) -> dict[str, Any]:
    n, saved = len(part["nfe"]), part["pair_nfe"] - part["nfe"]
    counts = {
        "n": n,
        "planned": planned,
        "failed": looked_at - n,
        "scored": _count(~np.isnan(part["correct"])),
        "same": _count(part["identical"] == 1),
        "numeric": _count(part["difference"] == "numeric"),
        "bug": _count(part["difference"] == "bug"),
        "shared": _count(part["per_gpu"] > 1),
        "wins": _count(saved > 0),
        "ties": _count(saved == 0),
        "losses": _count(saved < 0),
    }
    identity = {"cell": cell.key, **axes(cell), "label": cell.label}
    means = {name: _mean(part[name]) for name in ("nfe", "cache_passes", "identical")}
    ratios = _with_intervals(_ratios([part]))
    return {**identity, **counts, **ratios, **means, **_acceptance(part), **_times(part)}


def _count(which: np.ndarray) -> int:
    return int(np.count_nonzero(which))


def _acceptance(part: Part) -> dict[str, Any]:
    accepted, drafted, passes = (np.nansum(part[name]) for name in ("accepted", "drafted", "drafted_passes"))
    depths = [sum(column) for column in zip_longest(*map(_as_list, part["accepted_by_depth"]), fillvalue=0)]
    return {
        "acceptance": _divide(accepted, passes),
        "accepted_share": _divide(accepted, drafted),
        "survival": [float(depth / passes) for depth in depths] if passes else None,
    }


def _times(part: Part) -> dict[str, Any]:
    total, peak = np.nansum(part["seconds"]), np.nanmax(part["peak_bytes"], initial=0)
    return {
        "tokens_per_second": _divide(np.nansum(part["length"]), total),
        **{f"time_{phase}": _divide(np.nansum(part[f"seconds_{phase}"]), total) for phase in _PHASES},
        "peak_bytes": int(peak) if peak else None,
    }


def _as_list(value: Any) -> list[float]:
    return list(value) if isinstance(value, (list, tuple)) else []


def _mean(values: np.ndarray) -> float | None:
    return float(np.nan_to_num(values).mean()) if len(values) else None


def _divide(above: float, below: float) -> float | None:
    return float(above / below) if below else None


# ------------------------------------------------------------------------------------------------------------ ratios


class Terms(NamedTuple):
    """What is summed for the ratio of one seed: a number above and one below for each row, zeros where it has none."""

    rows: np.ndarray
    above: np.ndarray
    below: np.ndarray


class Ratio(NamedTuple):
    """A number and its 95 % interval; None where there is none."""

    value: float | None
    low: float | None
    high: float | None

    @property
    def sign(self) -> int:
        """1 where it is above one for sure, -1 where below, 0 where that is not known: a tie.

        For sure is by the interval; a number without one is taken for what it is.
        """
        if self.value is None:
            return 0
        low, high = (self.value if end is None else end for end in (self.low, self.high))
        return int(low > 1) - int(high < 1)


def terms(part: Part, name: str) -> Terms:
    """Those of one of PAIRED."""
    above, below = (part["pair_nfe"], part["nfe"]) if name == "nfe_ratio" else (part["pair_seconds"], part["seconds"])
    counted = ~np.isnan(above + below) & ((name == "nfe_ratio") | (part["pair_same"] == 1))
    return Terms(part["row"], np.where(counted, above, 0.0), np.where(counted, below, 0.0))


def ratio(seeds: Sequence[Terms], base: Sequence[Terms] = ()) -> Ratio:
    """The mean over seeds of sum(above) / sum(below), each weighted by its samples, and its interval over rows.

    With a `base` of as many terms, of the same seeds and rows, that mean over the base's. A row is drawn with all its
    seeds: in every resample, a row's weight is the same for each. No interval under two rows. The same terms give the
    same interval, always.
    """
    sides = [seeds, base] if base else [seeds]
    known = [pair for pair in zip(*sides, strict=True) if all(side.below.any() for side in pair)]
    if not known:
        return Ratio(None, None, None)
    flat = [seed for side in zip(*known, strict=True) for seed in side]  # one side's seeds after the other's
    weights = np.array([len(pair[0].rows) for pair in known], float)
    shape = (-1, len(sides), len(known))

    def mean(tops: np.ndarray, bottoms: np.ndarray) -> np.ndarray:
        means = np.average((tops / bottoms).reshape(shape), axis=2, weights=weights)  # (resamples, sides)
        return means[:, 0] / means[:, 1] if base else means[:, 0]

    whole_sums = np.array([[seed.above.sum(), seed.below.sum()] for seed in flat])
    if base and not np.all(whole_sums[len(known) :, 0]):
        return Ratio(None, None, None)
    value = float(mean(*whole_sums.T)[0])
    names, places = np.unique(np.concatenate([seed.rows for seed in flat]), return_inverse=True)
    above, below = np.zeros((2, len(names), len(flat)))
    starts = np.cumsum([len(seed.rows) for seed in flat])
    for number, (seed, there) in enumerate(zip(flat, np.split(places, starts[:-1]), strict=True)):
        above[there, number], below[there, number] = seed.above, seed.below
    counts = _resamples(len(names))
    tops, bottoms = counts @ above, counts @ below  # (resamples, sides and seeds)
    usable = (bottoms > 0).all(axis=1)
    if base:
        usable &= (tops[:, len(known) :] > 0).all(axis=1)
    if len(names) < 2 or not usable.any():
        return Ratio(value, None, None)
    low, high = np.percentile(mean(tops[usable], bottoms[usable]), [2.5, 97.5])
    return Ratio(value, float(low), float(high))


def accuracy(seeds: Sequence[Part]) -> Ratio:
    """The share of right texts of those that are scored, and its Wilson interval.

    As if each prompt had one answer, right as often as it is over seeds: seeds of one prompt are not more prompts.
    """
    scored = [~np.isnan(part["correct"]) for part in seeds]
    right = np.concatenate([np.empty(0), *(part["correct"][which] for part, which in zip(seeds, scored, strict=True))])
    rows = {row for part, which in zip(seeds, scored, strict=True) for row in part["row"][which].tolist()}
    if not rows:
        return Ratio(None, None, None)
    share, n = float(right.mean()), len(rows)
    middle = share + _Z**2 / (2 * n)
    half = _Z * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2))
    low, high = ((middle + end) / (1 + _Z**2 / n) for end in (-half, half))
    return Ratio(share, max(min(low, share), 0.0), min(max(high, share), 1.0))  # rounding leaves neither out


def _ratios(seeds: Sequence[Part]) -> dict[str, Ratio]:
    """RATIOS of a cell's seeds."""
    paired = {name: ratio([terms(part, name) for part in seeds]) for name in PAIRED}
    return {**paired, "accuracy": accuracy(seeds)}


def ratio_interval(above: np.ndarray, below: np.ndarray) -> tuple[float | None, float | None]:
    """That interval of sum(above) / sum(below), of a number each a row."""
    return ratio([Terms(np.arange(len(above)), above, below)])[1:]


@lru_cache(maxsize=16)
def _resamples(rows: int) -> np.ndarray:
    """How often each row is drawn in each resample (resamples, rows). The same draws for every cell of that size."""
    drawn = np.random.default_rng(0).integers(rows, size=(_RESAMPLES, rows))
    places = drawn + rows * np.arange(_RESAMPLES)[:, None]
    return np.bincount(places.ravel(), minlength=_RESAMPLES * rows).reshape(_RESAMPLES, rows).astype(float)


def _with_intervals(ratios: Mapping[str, Ratio]) -> dict[str, float | None]:
    """`NAME`, `NAME_low`, `NAME_high` for each."""
    return {f"{name}{end}": value for name, found in ratios.items()
            for end, value in zip(("", "_low", "_high"), found, strict=True)}  # fmt: skip


# ------------------------------------------------------------------------------------------------- cells over seeds


def over_seeds(table: pd.DataFrame, samples: pd.DataFrame | None = None) -> pd.DataFrame:
    """`summary` with cells that differ by seed alone merged: mean of each measure, and `_sd` beside it.

    A seed weighs by its samples: an unfinished one is not worth a whole one, and n < planned says that it is there.
    The deviation is the sample one (n - 1) and None where fewer than two seeds have the measure, or one of them not all
    of its samples. Counts are summed. `cells` are the keys of those merged, by seed; `own_prompts` is whether they plan
    different rows, which their deviation is then also one over. RATIOS of several seeds have an interval where
    `samples` are given.

    `nfe_rank` and `throughput_ratio_rank` are "best" for the best of a (model, task, temperature, budget) in which
    several methods are complete; "tied" for one that cannot be told from it: as printed, or (with `samples`) by the
    95 % interval of their paired ratio over common rows. The control, oracles and incomplete cells do not compete.
    """
    keys = [name for name in AXES if name != "seed"]
    if table.empty:
        return table
    parts = by_cell(samples) if samples is not None else {}
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in table.to_dict("records"):
        groups.setdefault(tuple(row[name] for name in keys), []).append(row)
    merged = [_merge(group, parts) for group in groups.values()]
    _rank(merged, parts)
    return _none_for_nan(pd.DataFrame(merged))


def _merge(group: list[dict[str, Any]], parts: Mapping[str, Part]) -> dict[str, Any]:
    merged = group[0] | {name: sum(row[name] for row in group) for name in _COUNTS} | {"seeds": len(group)}
    merged["cells"] = {row["seed"]: row["cell"] for row in group}
    merged["own_prompts"] = len({row["prompts"] for row in group}) > 1
    for name in MEASURES:
        known = [row for row in group if row[name] is not None]
        count = "scored" if name == "accuracy" else "n"
        weights, whole = [row[count] for row in known], all(row[count] == row["planned"] for row in known)
        values = [row[name] for row in known]
        merged[name] = float(np.average(values, weights=weights)) if known else None
        merged[f"{name}_sd"] = float(np.std(values, ddof=1)) if len(known) > 1 and whole else None
    if len(group) > 1:
        there = [parts[cell] for cell in merged["cells"].values() if cell in parts]
        for name, found in _ratios(there).items():
            merged.update({f"{name}_low": found.low, f"{name}_high": found.high})
        merged.update(cell=None, seed=None)
    merged["survival"] = _mean_survival(group)
    return merged


def _mean_survival(group: list[dict[str, Any]]) -> list[float] | None:
    """Weighed as acceptance is, whose parts by depth they are."""
    known = [row for row in group if row["survival"] is not None]
    if not known:
        return None
    columns = zip_longest(*(row["survival"] for row in known), fillvalue=0.0)
    return [float(np.average(column, weights=[row["n"] for row in known])) for column in columns]


def _rank(merged: list[dict[str, Any]], parts: Mapping[str, Part]) -> None:
    """Add what `over_seeds` says of ranks."""
    fields: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in merged:
        row.update({f"{name}_rank": None for name in RANKED})
        if row["method"] != CONTROL and not is_oracle(row["method"]) and row["n"] == row["planned"]:
            field = tuple(row[name] for name in AXES if name not in ("drafter", "method", "seed"))
            fields.setdefault(field, []).append(row)
    for rivals in fields.values():
        for name, digits in RANKED.items():
            known = [row for row in rivals if row[name] is not None]
            if len(known) < 2:
                continue
            best = (min if name == "nfe" else max)(known, key=lambda row: row[name])
            best[f"{name}_rank"] = "best"
            for row in known:
                alike = round(row[name], digits) == round(best[name], digits)
                if row is not best and (alike or _is_tied(best, row, name, parts)):
                    row[f"{name}_rank"] = "tied"


def _is_tied(best: dict[str, Any], row: dict[str, Any], name: str, parts: Mapping[str, Part]) -> bool:
    cost = "nfe" if name == "nfe" else "seconds"
    keys = [(best["cells"][seed], row["cells"][seed]) for seed in best["cells"] if seed in row["cells"]]
    found = ratio([cost_terms(parts[a], parts[b], cost) for a, b in keys if a in parts and b in parts])
    return found.low is not None and found.sign == 0


def tally(rows: pd.DataFrame) -> dict[str, dict[str, tuple[int, int, int]]]:
    """In how many complete cells of `over_seeds` each method wins, ties and loses against a complete pair.

    By method name, and by nfe_ratio and throughput_ratio. A win is a ratio whose 95 % interval lies above 1, a loss one
    below, and a tie one that holds 1.
    """
    found: dict[str, dict[str, tuple[int, int, int]]] = {}
    complete = [row for row in rows.to_dict("records") if met(row) == row["n"] == row["planned"]]
    for method in dict.fromkeys(map(method_name, complete)):
        own = [row for row in complete if method_name(row) == method]
        for name in PAIRED:
            signs = [_of_row(row, name).sign for row in own if row[name] is not None]
            found.setdefault(method, {})[name] = (signs.count(1), signs.count(0), signs.count(-1))
    return found


def met(row: Mapping[str, Any]) -> int:
    """How many samples of a line of `summary` or `over_seeds` have a pair: its ratios are over these."""
    return int(row["wins"] + row["ties"] + row["losses"])


def _of_row(row: Mapping[str, Any], name: str) -> Ratio:
    return Ratio(row[name], row[f"{name}_low"], row[f"{name}_high"])


def common(ours: Part, base: Part) -> tuple[Part, Part]:
    """The samples of the rows that two cells both decoded, in the same order; codes of both are of one `by_cell`."""
    _, here, there = np.intersect1d(ours["row"], base["row"], assume_unique=True, return_indices=True)
    pairs = (ours, here), (base, there)
    first, second = ({name: array[where] for name, array in part.items()} for part, where in pairs)
    return first, second


def cost_terms(ours: Part, base: Part, cost: str) -> Terms:
    """Base over ours, "nfe" or "seconds", over common rows; seconds where both texts are the same."""
    ours, base = common(ours, base)
    counted = (ours["text_sha"] == base["text_sha"]) | (cost == "nfe")
    return Terms(ours["row"], *(np.where(counted, np.nan_to_num(part[cost]), 0.0) for part in (base, ours)))
