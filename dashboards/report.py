"""One self-contained page about a sweep, finished or not: it needs no server, no network and no JavaScript.

python -c 'from pathlib import Path; from dashboards.report import write_report; write_report(Path("runs/first"))'
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dashboards import plots
from orchestrator import results, tables
from orchestrator.ledger import Sweep
from orchestrator.progress import duration
from workers.store import Place, open_store

SHOWN_SAMPLES = 20  # of each (model, task, T, seed): the page is to be mailed, the ledger has the rest
_FIGURES = (
    ("Target passes", "NFE per sample; lower is better.", plots.nfe_by_budget),
    ("Speed", "What the saved passes bring; numbers are budgets.", plots.throughput_by_nfe),
    ("Depth", "How many drafts in a row are accepted.", plots.survival),
    ("Time", "Where decoding time goes.", plots.time_split),
)


def write_report(folder: Place) -> Place:
    """Write `folder`/report.html, whole or not at all, and return its place. UserError where there is no sweep."""
    sweep, samples = results.load(folder)
    open_store(folder).put("report.html", render(sweep, samples).encode())
    return folder / "report.html"


def render(sweep: Sweep, samples: pd.DataFrame) -> str:
    """The page as a string. The same records give the same page."""
    table = results.summary(sweep, samples)
    rows = results.over_seeds(table, samples)
    merged = rows.to_dict("records")
    return environment().get_template("report.html.j2").render(
        name=sweep.name,
        facts=_facts(table, samples),
        table_style=Markup(tables.HTML_STYLE),
        tables=[Markup(tables.to_html(layout(rows))) for layout in (tables.main, tables.long)],
        verdict=_verdict(merged),
        exceptions=_exceptions(merged),
        groups=_figures(merged),
        browser=list(_browser(sweep, samples)),
        environment=[(key, value) for key, value in sweep.environment.items() if isinstance(value, (str, int, float))],
    )  # fmt: skip


def environment() -> Environment:
    """Where the pages' templates come from; everything is escaped."""
    loader = FileSystemLoader(Path(__file__).parent)
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)


def _facts(table: pd.DataFrame, samples: pd.DataFrame) -> list[tuple[str, str]]:
    done = f"{len(samples)}/{sum(table['planned'])}" if len(table) else "0/0"
    cells = sum(row["n"] + row["failed"] >= row["planned"] for row in table.to_dict("records"))
    facts = [("cells done", f"{cells}/{len(table)}"), ("samples done", done)]
    facts += [("failed", str(sum(table["failed"])))] if len(table) and sum(table["failed"]) else []
    if len(samples):
        first, last = min(samples["started"].dropna()), max(samples["finished"].dropna())
        facts += [
            ("started", time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(first))),
            ("span", duration(last - first)),
        ]
    for name in ("device", "dtype", "threads"):
        values = sorted({str(value) for value in samples[name].dropna()})
        facts += [(name, ", ".join(values))] if values else []
    return facts


def _verdict(merged: list[dict[str, Any]]) -> dict[str, str]:
    rows = [row for row in merged if row["method"] != results.CONTROL]
    total, same, numeric, bugs = (sum(row[name] for row in rows) for name in ("n", "same", "numeric", "bug"))
    if not total:
        return {"kind": "none", "text": "No method to compare with the control yet."}
    text = f"{same} of {total} texts are identical to the control's"
    text += f", {numeric} differ within rounding" if numeric else ""
    if bugs:
        return {"kind": "bad", "text": f"{text}, and {bugs} for no numeric reason: a bug."}
    return {"kind": "good", "text": f"{text}."}


def _exceptions(merged: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The methods of which some text differs from the control's."""
    different = [row for row in merged if row["same"] < row["n"]]
    return [row | {"method": results.method_name(row), "temperature": f"{row['temperature']:g}"} for row in different]


def _figures(merged: list[dict[str, Any]]) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """The four figures of every (model, task, T) that has a number to draw."""
    palette = plots.colours(merged)
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in merged:
        if row["n"]:
            groups.setdefault(f"{row['model']} · {row['task']} · T {row['temperature']:g}", []).append(row)
    return [
        (title, [(heading, caption, draw(rows, palette)) for heading, caption, draw in _FIGURES])
        for title, rows in groups.items()
    ]


# ---------------------------------------------------------------------------------------------------------- samples


def _browser(sweep: Sweep, samples: pd.DataFrame) -> Iterator[tuple[str, int, int, list[dict[str, Any]]]]:
    """For each (model, task, T), at its first seed: title, number shown, number there is, the samples."""
    order = {cell.key: index for index, cell in enumerate(sweep.cells)}
    for (model, task, temperature), group in samples.groupby(["model", "task", "temperature"], sort=False):
        seed = min(group["seed"])
        rows = list(dict.fromkeys(group[group["seed"] == seed]["row"]))
        shown = group[(group["seed"] == seed) & group["row"].isin(rows[:SHOWN_SAMPLES])].to_dict("records")
        shown.sort(key=lambda record: (rows.index(record["row"]), order[record["cell"]]))
        found = [_sample(row, list(records)) for row, records in groupby(shown, key=lambda record: record["row"])]
        yield f"{model} · {task} · T {temperature:g} · seed {seed}", len(found), len(rows), found


def _sample(row: str, records: list[dict[str, Any]]) -> dict[str, Any]:
    """One data-set row as every method decoded it; its text is the control's, or the first there is."""
    text = next((record["text"] for record in records if isinstance(record["text"], str)), None)
    scored = next((record for record in records if record["correct"] is not None), {})
    mark = _choose(scored.get("correct"), "yes", "no", "unknown")
    methods = [_decoded(record, text) for record in records]
    return {"row": row, "text": text, "answer": scored.get("answer"), "mark": mark, "nfe": _nfe_line(records),
            "methods": methods}  # fmt: skip


def _nfe_line(records: list[dict[str, Any]]) -> str:
    """`control 60, spot 8 20`: the control and the best honest method."""
    good = [r for r in records if r["status"] == "ok" and not results.is_oracle(r["method"])]
    control = [r for r in good if r["method"] == results.CONTROL]
    others = [r for r in good if r["method"] != results.CONTROL]
    best = [min(others, key=lambda r: r["nfe"])] if others else []
    return " → ".join(f"{_name(record)}: {record['nfe']:g}" for record in control + best)


def _name(record: dict[str, Any]) -> str:
    return results.method_name(record) + (f" {record['budget']}" if record["budget"] else "")


def _choose(correct: bool | None, yes: str, no: str, unknown: str) -> str:
    return unknown if correct is None else yes if correct else no


def _decoded(record: dict[str, Any], text: str | None) -> dict[str, Any]:
    good, drafted = record["status"] == "ok", record["drafted_passes"]
    different = good and isinstance(record["text"], str) and record["text"] != text
    return {
        "name": _name(record),
        "nfe": f"{record['nfe']:g}" if good else "failed",
        "accepted": f"{record['accepted']:g} / {drafted:g}" if good and drafted else "–",
        "seconds": f"{record['seconds']:.2f}" if good and record["seconds"] else "–",
        "correct": _choose(record["correct"], "✓", "✗", "–"),
        "same": (record["difference"] or ("identical" if record["identical"] else "–")) if good else record["error"],
        "other_text": record["text"] if different else None,
    }
