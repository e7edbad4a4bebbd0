"""Records in, numbers out: samples, one summary row a cell, and the tables a paper prints. design.md §5 "Numbers".

    sweep, samples = results.load(place("runs/first"))
    print(results.to_markdown(results.summary(sweep, samples)))

Everything is computed from the ledger's records; nothing is stored. Where a number does not exist (an acceptance
without a drafted pass, a time ratio without an identical text) it is None, never NaN and never zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import zip_longest
from typing import Any

import numpy as np
import pandas as pd
from rich.table import Table
from rich.text import Text

from orchestrator import grid
from orchestrator.grid import Cell
from orchestrator.ledger import Ledger, Record, Sweep, read_sweep
from workers.store import Place

AXES = ("model", "task", "drafter", "method", "budget", "temperature", "seed", "gen_length", "stop")
CONTROL = grid.CONTROL.name  # the drafter and the method of a cell without drafts
_FIELDS = ("cell", "row", "status", "error", "text", "text_sha", "length", "nfe", "cache_passes", "drafted",
           "drafted_passes", "accepted", "accepted_by_depth", "control_nfe", "control_seconds", "control_sha",
           "identical", "difference", "device", "dtype", "threads", "node", "started", "finished",
           "peak_bytes", "per_gpu")  # fmt: skip
_SCORE_FIELDS = {"correct": "correct", "answer": "answer", "scored_at": "started"}
_PHASES = ("prefill", "target", "draft", "rest")
_RESAMPLES = 1000
# The columns that are averaged over seeds; `NAME_low` and `NAME_high` exist for the three with an interval.
MEASURES = ("nfe", "nfe_ratio", "throughput_ratio", "acceptance", "accepted_share", "accuracy", "identical",
            "tokens_per_second", "cache_passes", "oracle_share", *(f"time_{phase}" for phase in _PHASES))  # fmt: skip
_COUNTS = ("n", "planned", "failed", "scored", "same", "numeric", "bug", "shared")


def is_oracle(method: str) -> bool:
    """Whether a drafting method is a diagnostic that has seen the answer: untimed, never the best of a group."""
    return method.startswith("oracle")


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
    none. Texts that a record left out because they equal the control's are put back.
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
    return _join_scores(_restore_texts(samples), scores)


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


# ---------------------------------------------------------------------------------------------------------- summary


def summary(sweep: Sweep, samples: pd.DataFrame) -> pd.DataFrame:
    """One row a cell, in the sweep's order, unfinished and empty cells included.

    Columns: cell, axes, label; n (decoded without error), planned, failed, scored, same (texts equal to the
    control's), numeric, bug, shared (timed on a GPU that others used, too) (counts); MEASURES, of which nfe_ratio,
    throughput_ratio and accuracy carry a bootstrap 95 % interval over rows (`_low`, `_high`), and oracle_share is the
    share that the cell recovers of what the position oracle saves at its budget, over their common rows, None where the
    sweep has no such cell; survival, the share of drafted passes in which at least 1, 2, ... drafts were accepted.
    """
    groups = {cell.key: samples[:0] for cell in sweep.cells} | dict(list(samples.groupby("cell", sort=False)))
    oracles = {_place(cell): groups[cell.key] for cell in sweep.cells if knows(cell) == "positions"}
    rows = [
        _summarise(cell, len(sweep.rows[cell.key]), groups[cell.key])
        | {"oracle_share": _oracle_share(groups[cell.key], oracles.get(_place(cell)))}
        for cell in sweep.cells
    ]
    return _none_for_nan(pd.DataFrame(rows))


def _place(cell: Cell) -> tuple[Any, ...]:
    """A cell's axes without its drafter: where it may be measured against an oracle."""
    return tuple(value for name, value in axes(cell).items() if name not in ("drafter", "method"))


def _oracle_share(samples: pd.DataFrame, oracle: pd.DataFrame | None) -> float | None:
    """(control - method) / (control - position oracle), NFE summed over the rows that both have."""
    if oracle is None:
        return None
    good, best = (part[part["status"] == "ok"].set_index("row") for part in (samples, oracle))
    common = [part.loc[good.index.intersection(best.index)] for part in (good, best)]
    saved, most = (_numbers(part, "control_nfe") - _numbers(part, "nfe") for part in common)
    return _divide(saved.sum(), most.sum())


def _none_for_nan(table: pd.DataFrame) -> pd.DataFrame:
    return table.astype(object).where(table.notna(), None)


def _summarise(cell: Cell, planned: int, samples: pd.DataFrame) -> dict[str, Any]:
    good = samples[samples["status"] == "ok"]
    scored = good[good["correct"].notna()]
    counts = {
        "n": len(good),
        "planned": planned,
        "failed": len(samples) - len(good),
        "scored": len(scored),
        "same": int(good["identical"].eq(True).sum()),
        "numeric": int((good["difference"] == "numeric").sum()),
        "bug": int((good["difference"] == "bug").sum()),
        "shared": int((_numbers(good, "per_gpu") > 1).sum()),
    }
    identity = {"cell": cell.key, **axes(cell), "label": cell.label}
    return {**identity, **counts, **_passes(good), **_acceptance(good), **_times(cell, good), **_quality(good, scored)}


def _passes(good: pd.DataFrame) -> dict[str, Any]:
    nfe, control = _numbers(good, "nfe"), _numbers(good, "control_nfe")
    return {"nfe": _mean(nfe), "cache_passes": _mean(_numbers(good, "cache_passes")),
            **_with_interval("nfe_ratio", control, nfe)}  # fmt: skip


def _acceptance(good: pd.DataFrame) -> dict[str, Any]:
    accepted, drafted, passes = (_numbers(good, name).sum() for name in ("accepted", "drafted", "drafted_passes"))
    depths = [sum(column) for column in zip_longest(*good["accepted_by_depth"].map(_as_list), fillvalue=0)]
    return {
        "acceptance": _divide(accepted, passes),
        "accepted_share": _divide(accepted, drafted),
        "survival": [depth / passes for depth in depths] if passes else None,
    }


def _times(cell: Cell, good: pd.DataFrame) -> dict[str, Any]:
    seconds, same = _numbers(good, "seconds"), good["identical"].eq(True)
    control = np.where(same, _numbers(good, "control_seconds"), 0.0)
    timed = np.where(same & (not is_oracle(cell.method)), seconds, 0.0)
    total, peaks = seconds.sum(), good["peak_bytes"].dropna()
    return {
        **_with_interval("throughput_ratio", control, timed),
        "tokens_per_second": _divide(_numbers(good, "length").sum(), total),
        **{f"time_{phase}": _divide(_numbers(good, f"seconds_{phase}").sum(), total) for phase in _PHASES},
        "peak_bytes": int(peaks.max()) if len(peaks) else None,
    }


def _quality(good: pd.DataFrame, scored: pd.DataFrame) -> dict[str, Any]:
    right = _numbers(scored, "correct")
    return {**_with_interval("accuracy", right, np.ones_like(right)), "identical": _mean(_numbers(good, "identical"))}


def _numbers(samples: pd.DataFrame, column: str) -> np.ndarray:
    return np.nan_to_num(samples[column].to_numpy(dtype=float, na_value=np.nan))


def _as_list(value: Any) -> list[float]:
    return list(value) if isinstance(value, (list, tuple)) else []


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None


def _divide(above: float, below: float) -> float | None:
    return float(above / below) if below else None


def _with_interval(name: str, above: np.ndarray, below: np.ndarray) -> dict[str, float | None]:
    """The ratio of sums and its interval; all None when the denominator is empty."""
    low, high = ratio_interval(above, below)
    return {name: _divide(above.sum(), below.sum()), f"{name}_low": low, f"{name}_high": high}


def ratio_interval(above: np.ndarray, below: np.ndarray) -> tuple[float | None, float | None]:
    """Bootstrap 95 % interval of sum(above) / sum(below), resampling rows; (None, None) under two rows."""
    if len(above) < 2 or not below.any():
        return None, None
    sums = _resamples(len(above)) @ np.stack([above, below], axis=1)  # (resamples, 2)
    ratios = sums[:, 0][sums[:, 1] > 0] / sums[:, 1][sums[:, 1] > 0]
    low, high = np.percentile(ratios, [2.5, 97.5])
    return float(low), float(high)


@lru_cache(maxsize=32)
def _resamples(rows: int) -> np.ndarray:
    """How often each row is drawn in each resample (resamples, rows). The same draws for every cell of that size."""
    return np.random.default_rng(0).multinomial(rows, np.full(rows, 1 / rows), size=_RESAMPLES).astype(float)


def over_seeds(table: pd.DataFrame) -> pd.DataFrame:
    """`summary` with cells that differ by seed alone merged: mean of each measure, and `_sd` beside it.

    The deviation is the sample one (n - 1) and None where fewer than two seeds have the measure. Counts are summed.
    Intervals over rows are kept for a single seed and dropped for several, where the deviation takes their place.
    """
    keys = [name for name in AXES if name != "seed"]
    if table.empty:
        return table
    return _none_for_nan(pd.DataFrame([_merge(group) for _, group in table.groupby(keys, sort=False, dropna=False)]))


def _merge(group: pd.DataFrame) -> dict[str, Any]:
    merged = group.iloc[0].to_dict()
    merged.update({name: int(group[name].sum()) for name in _COUNTS}, seeds=len(group))
    for name in MEASURES:
        values = pd.to_numeric(group[name]).dropna()
        merged[name] = values.mean() if len(values) else None
        merged[f"{name}_sd"] = values.std() if len(values) > 1 else None
    if len(group) > 1:
        merged.update({name: None for name in merged if name.endswith(("_low", "_high"))}, cell=None, seed=None)
    merged["survival"] = _mean_survival(group["survival"])
    return merged


def _mean_survival(curves: pd.Series) -> list[float] | None:
    known = [curve for curve in curves if curve is not None]
    if not known:
        return None
    return [sum(column) / len(known) for column in zip_longest(*known, fillvalue=0.0)]


# ----------------------------------------------------------------------------------------------------------- tables

_HEADINGS = {"model": "model", "task": "task", "method": "method", "budget": "budget", "temperature": "T", "nfe": "NFE",
             "nfe_ratio": "NFE ratio", "throughput_ratio": "throughput ratio", "acceptance": "acceptance",
             "oracle_share": "oracle share", "accuracy": "accuracy", "identical": "identical",
             "done": "n/N"}  # fmt: skip
_NARROW = {"budget": "bud-\nget", "nfe_ratio": "NFE\nratio", "throughput_ratio": "thr.\nratio",
           "acceptance": "accept-\nance", "oracle_share": "oracle\nshare", "accuracy": "accu-\nracy",
           "identical": "iden-\ntical"}  # fmt: skip
_SPREAD = ("nfe", "nfe_ratio", "throughput_ratio", "acceptance", "accuracy")  # shown with a deviation over seeds
_FORMATS = {"nfe": "{:.1f}", "nfe_ratio": "{:.2f}", "throughput_ratio": "{:.2f}", "acceptance": "{:.2f}",
            "oracle_share": "{:.0%}", "accuracy": "{:.1%}", "identical": "{:.1%}"}  # fmt: skip
_WORDS = ("model", "task", "method")  # set flush left
_NOTHING = "–"
_SHARED = " ‡"


def display_rows(
    table: pd.DataFrame, plus_minus: str = " ± ", spread: tuple[str, ...] = _SPREAD
) -> list[dict[str, Any]]:
    """The lines every table prints: formatted strings by column, plus `best`, `partial` and `bug` flags.

    Seeds are merged; the columns in `spread` show the deviation over them. `best` marks the highest NFE ratio of a
    (model, task, T, budget) where methods compete.
    """
    merged = over_seeds(table)
    best = _best(merged)
    rows = enumerate(merged.to_dict("records"))
    return [_display(row, plus_minus, spread) | {"best": index in best} for index, row in rows]


def _best(merged: pd.DataFrame) -> set[int]:
    if merged.empty:
        return set()
    rivals = merged.reset_index(drop=True)
    honest = (rivals["method"] != CONTROL) & ~rivals["method"].map(is_oracle) & rivals["nfe_ratio"].notna()
    rivals = rivals[honest]
    groups = rivals.groupby(["model", "task", "temperature", "budget"])["nfe_ratio"]
    return {int(pd.to_numeric(group).idxmax()) for _, group in groups if len(group) > 1}


def _display(row: dict[str, Any], plus_minus: str, spread: tuple[str, ...]) -> dict[str, Any]:
    shown = {name: _number(row, name, plus_minus if name in spread else None) for name in _FORMATS}
    if row["numeric"]:
        shown["identical"] += f" ({row['numeric']})"
    if row["shared"]:
        shown["throughput_ratio"] += _SHARED
    done = f"{row['n']}/{row['planned']}" + (f" {row['failed']}✗" if row["failed"] else "")
    names = {"model": row["model"], "task": row["task"], "method": method_name(row), "budget": f"{row['budget']:g}",
             "temperature": f"{row['temperature']:g}"}  # fmt: skip
    return {**names, **shown, "done": done, "partial": row["n"] < row["planned"], "bug": row["bug"]}


def method_name(row: dict[str, Any]) -> str:
    """What a method is called everywhere: its drafter, "control", or with a dagger where it has seen the answer."""
    if row["method"] == CONTROL:
        return "control"
    return f"{row['drafter']} †" if is_oracle(row["method"]) else row["drafter"]


def _number(row: dict[str, Any], name: str, plus_minus: str | None) -> str:
    if row[name] is None:
        return _NOTHING
    text, deviation = _FORMATS[name].format(row[name]), row.get(f"{name}_sd")
    if deviation is None or plus_minus is None:
        return text
    return text.rstrip("%") + plus_minus + _FORMATS[name].format(deviation)


def _columns(rows: list[dict[str, Any]]) -> list[str]:
    """Model and task are columns only where they tell rows apart, the oracle's share only where there is one."""
    constant = {name for name in ("model", "task") if len({row[name] for row in rows}) <= 1}
    return [name for name in _HEADINGS if name not in constant and (name != "oracle_share" or has_oracle(rows))]


def has_oracle(rows: list[dict[str, Any]]) -> bool:
    """Whether any of `display_rows` is measured against a position oracle."""
    return any(row["oracle_share"] != _NOTHING for row in rows)


def table(summarised: pd.DataFrame) -> Table:
    """The paper table for a terminal, readable at 80 columns; yellow where incomplete, red at a losslessness bug.

    With several models or tasks, each pair has a title line of its own, which costs no column.
    """
    rows = display_rows(summarised, plus_minus="±", spread=("nfe_ratio", "throughput_ratio", "accuracy"))
    names = [name for name in _columns(rows) if name not in ("model", "task")]
    shown = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", caption=_caption(rows), caption_justify="left")
    for name in names:
        heading = _NARROW.get(name, _HEADINGS[name])
        shown.add_column(heading, justify="left" if name in _WORDS else "right", overflow="fold", vertical="bottom")
    sections: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        sections.setdefault(" · ".join((row["model"], row["task"])), []).append(row)
    for title, members in sections.items():
        if len(sections) > 1:
            shown.add_row(Text(title, style="cyan"))
        for row in members:
            shown.add_row(*(_styled(row, name) for name in names), end_section=row is members[-1])
    return shown


def _styled(row: dict[str, Any], name: str) -> Text:
    bad = "red" if name == "identical" and row["bug"] else "yellow" if name == "done" and row["partial"] else ""
    return Text(row[name], style="bold" if name == "nfe_ratio" and row["best"] else bad)


def _caption(rows: list[dict[str, Any]]) -> str | None:
    notes = []
    if any("(" in row["identical"] for row in rows):
        notes.append("(k): k texts differ from the control within rounding.")
    if any(row["bug"] for row in rows):
        notes.append("Red: a text differs from the control for no numeric reason.")
    if any("†" in row["method"] for row in rows):
        notes.append("† diagnostic: has seen the answer, untimed.")
    if any(_SHARED in row["throughput_ratio"] for row in rows):
        notes.append("‡ timed on a GPU that other workers used, too.")
    return " ".join(notes) or None


def to_csv(summarised: pd.DataFrame) -> str:
    """Every column of `summary` in full precision, one line a cell."""
    return summarised.to_csv(index=False, lineterminator="\n")


def to_markdown(summarised: pd.DataFrame) -> str:
    """The paper table as Markdown."""
    rows = display_rows(summarised)
    names = _columns(rows)
    rule = [":---" if name in _WORDS else "---:" for name in names]
    lines = [[_HEADINGS[name] for name in names], rule]
    lines += [[f"**{row[name]}**" if name == "nfe_ratio" and row["best"] else row[name] for name in names]
              for row in rows]  # fmt: skip
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def to_latex(summarised: pd.DataFrame) -> str:
    r"""The paper table as a booktabs `tabular`; needs `\usepackage{booktabs}` only."""
    rows = display_rows(summarised, plus_minus=r" $\pm$ ")
    names = _columns(rows)
    spec = "".join("l" if name in _WORDS else "r" for name in names)
    head = " & ".join(_HEADINGS[name] for name in names)
    body = [" & ".join(_latex_cell(row, name) for name in names) for row in rows]
    lines = [rf"\begin{{tabular}}{{{spec}}}", r"\toprule", rf"{head} \\", r"\midrule",
             *(rf"{line} \\" for line in body), r"\bottomrule", r"\end{tabular}"]  # fmt: skip
    return "\n".join(lines) + "\n"


_LATEX = {"%": r"\%", "_": r"\_", "&": r"\&", "#": r"\#", "–": "--", "†": r"$\dagger$", "‡": r"$\ddagger$",
          "✗": r" failed", "γ": r"$\gamma$", "τ": r"$\tau$"}  # fmt: skip


def _latex_cell(row: dict[str, Any], name: str) -> str:
    text = "".join(_LATEX.get(letter, letter) for letter in row[name])
    return rf"\textbf{{{text}}}" if name == "nfe_ratio" and row["best"] else text
