"""One self-contained page about a sweep, finished or not: no server, no network; JavaScript for its samples alone.

python -c 'from pathlib import Path; from dashboards.report import write_report; write_report(Path("runs/first"))'

Its size is bounded, whatever the sweep's: what it leaves out it says.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dashboards import browser, plots
from dashboards.predict import Prediction, predictions
from orchestrator import config, results, tables
from orchestrator.ledger import Ledger, Sweep, read_sweep
from orchestrator.progress import duration
from workers.store import Place, open_store

MOST_GROUPS = 12  # (model, task, T) with figures: up to eight of 20 kilobytes each
MOST_LINES = 2000  # of the table
MOST_DIFFERENT = 50  # samples listed whose text is not the control's
NO_ACCURACY = pd.DataFrame(columns=["model", "task", "temperature", "measure", "by", "at", "share"])


@dataclass(frozen=True)
class Figure:
    """A picture with what it says."""

    heading: str
    caption: str
    svg: str


def write_report(folder: Place) -> Place:
    """Write `folder`/report.html, whole or not at all, and return its place. UserError where there is no sweep.

    Where the sweep has been analysed (`launch.py analyze`), its findings are on the page, too.
    """
    sweep, ledger = read_sweep(folder), Ledger(folder)
    samples = results.frame(sweep, ledger.decodes(), ledger.scores().values())

    def replays(cell: str, row: str) -> Mapping[str, Any] | None:
        found: Mapping[str, Any] | None = ledger.results()[cell, row].get("replay")
        return found

    open_store(folder).put("report.html", render(sweep, samples, replays, analysed(sweep)).encode())
    return folder / "report.html"


def analysed(sweep: Sweep) -> pd.DataFrame:
    """Table `accuracy` of the sweep's analysis (orchestrator/analysis.py); empty where there is none."""
    file = Path(config.here(str(sweep.folder.parent))) / sweep.folder.name / "analysis" / "accuracy.csv"
    return pd.read_csv(file) if file.is_file() else NO_ACCURACY


def render(
    sweep: Sweep,
    samples: pd.DataFrame,
    replays: browser.Replays = lambda cell, row: None,
    accuracy: pd.DataFrame = NO_ACCURACY,
) -> str:
    """The page as a string. The same records give the same page."""
    table = results.summary(sweep, samples)
    rows = results.over_seeds(table, samples)
    merged = rows.to_dict("records")
    shown = browser.shown(sweep, samples, replays)
    script = (Path(__file__).parent / "browser.js").read_text(encoding="utf-8")
    groups = _groups(merged)
    return environment().get_template("report.html.j2").render(
        name=sweep.name,
        facts=_facts(table, samples),
        table_style=Markup(tables.HTML_STYLE),
        main=Markup(tables.to_html(tables.main(rows[:MOST_LINES]))),
        long=Markup(tables.to_html(tables.long(rows[:MOST_LINES]))),
        oracles=any(results.is_oracle(row["method"]) for row in merged),
        lines=len(rows),
        most_lines=MOST_LINES,
        verdict=_verdict(merged),
        lossless=_lossless(merged),
        different=_different(samples, shown),
        differing=sum(row["n"] - row["same"] for row in merged),
        groups=[_Group(number, *group, samples, accuracy).page() for number, group in enumerate(groups[:MOST_GROUPS])],
        of_groups=len(groups),
        unfinished=any(row["n"] < row["planned"] for _, part, _ in groups for row in part),
        analyze=f"python launch.py analyze {sweep.name}",
        analysed=len(accuracy) > 0,
        shown=shown,
        data=Markup(browser.embedded(shown.data)),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
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


def _lossless(merged: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A line a method: its samples, and how many texts are the control's, differ within rounding, or are a bug."""
    lines: dict[str, dict[str, Any]] = {}
    for row in merged:
        if row["method"] != results.CONTROL:
            method = results.method_name(row)
            line = lines.setdefault(
                method, {"method": method} | dict.fromkeys(("n", "same", "numeric", "bug", "failed"), 0)
            )
            for name in ("n", "same", "numeric", "bug", "failed"):
                line[name] += row[name]
    return list(lines.values())


def _different(samples: pd.DataFrame, shown: browser.Shown) -> list[dict[str, Any]]:
    """The samples whose text is not the control's, bugs first, with their place in the browser: MOST_DIFFERENT."""
    found = samples[samples["status"].eq("ok") & ~samples["identical"].eq(True)]
    records = sorted(found.to_dict("records"), key=lambda record: browser.state(record) != "bug")
    return [
        {
            "method": _name(record),
            "place": f"{record['model']} · {record['task']} · T {record['temperature']:g} · seed {record['seed']}",
            "row": record["row"],
            "kind": browser.state(record),
            "at": shown.places.get((record["cell"], record["row"])),
        }
        for record in records[:MOST_DIFFERENT]
    ]


def _name(row: dict[str, Any]) -> str:
    return results.method_name(row) + (f" {row['budget']}" if row["budget"] else "")


# ---------------------------------------------------------------------------------------------------------- figures


def _groups(merged: list[dict[str, Any]]) -> list[tuple[tuple[str, str, float], list[dict[str, Any]], dict[str, str]]]:
    """(model, task, T), its rows that have a number to draw, and a colour a method, the same everywhere."""
    palette = plots.colours(merged)
    groups: dict[tuple[str, str, float], list[dict[str, Any]]] = {}
    for row in merged:
        if row["n"]:
            groups.setdefault((row["model"], row["task"], row["temperature"]), []).append(row)
    return [(place, rows, palette) for place, rows in groups.items()]


@dataclass(frozen=True)
class _Group:
    """What the figures of one (model, task, T) are made of; `number` tells their ids from those of other groups."""

    number: int
    place: tuple[str, str, float]
    rows: list[dict[str, Any]]
    palette: dict[str, str]
    samples: pd.DataFrame
    accuracy: pd.DataFrame

    def page(self) -> dict[str, Any]:
        """Its title and figures."""
        model, task, temperature = self.place
        here = self._here(self.samples)
        predicted = predictions(here)
        scored = any(row["accuracy"] is not None for row in self.rows)
        spread = any(row["nfe_sd"] for row in self.rows if row["method"] != results.CONTROL)  # one of 0 has no bar
        bars = f"; bars are {tables.deviation(self.rows)}" if spread else ""
        figures = [
            Figure(
                "Target passes", f"NFE per sample; lower is better{bars}.", plots.nfe_by_budget(self.rows, self.palette)
            ),
            Figure("Throughput", _said(predicted), plots.throughput_by_budget(self.rows, self.palette, predicted)),
            Figure(
                "Speed", "What the saved passes bring; numbers are budgets.",
                plots.throughput_by_nfe(self.rows, self.palette),
            ),
            Figure("Depth", "How many drafts in a row are accepted.", plots.survival(self.rows, self.palette)),
            Figure("Time", "Where decoding time goes.", plots.time_split(self.rows, self.palette)),
        ]  # fmt: skip
        if scored:
            said = "Right answers, with their 95 % Wilson intervals over prompts; the band is the control's."
            figures.append(Figure("Accuracy", said, plots.accuracy(self.rows, self.palette)))
        for by, heading, said in _MOTIVATION:
            lines = self._here(self.accuracy)
            if len(lines := lines[lines["by"] == by]):
                figures.append(Figure(heading, said, plots.right_by(by, lines)))
        own = [replace(figure, svg=plots.with_own_ids(figure.svg, f"g{self.number}-")) for figure in figures]
        return {"title": f"{model} · {task} · T {temperature:g}", "figures": own}

    def _here(self, lines: pd.DataFrame) -> pd.DataFrame:
        model, task, temperature = self.place
        return lines[lines["model"].eq(model) & lines["task"].eq(task) & lines["temperature"].eq(temperature)]


_MOTIVATION = (
    (
        "block",
        "What and where, by block",
        "How often the stale table names the next token, and each ranking the next position to commit.",
    ),
    ("depth", "What and where, by depth", "The same after that many further, true commits."),
)


def _said(predicted: dict[str, Prediction]) -> str:
    """What the lines of the throughput figure are, and their best budgets."""
    if not predicted:
        return "Against the control, paired."
    best = [f"{name} {budget} ({ratio:.2f}×)" for name, (budget, ratio) in ((n, p.best) for n, p in predicted.items())]
    said = (
        "Points: measured, paired, with their intervals. Lines: predicted between the smallest and the largest decoded"
    )
    said += f" budget; best of these (★, with its budget): {', '.join(best)}"
    pays = any(prediction.best[1] > 1 for prediction in predicted.values())
    ends = [{line.budgets[0], line.budgets[-1]} - {1} for line in predicted.values()]  # no budget is below 1
    at_an_end = any(line.best[0] in own for line, own in zip(predicted.values(), ends, strict=True))
    misses = [prediction.miss for prediction in predicted.values() if prediction.miss is not None]
    said += "." if pays else "; none pays here."
    said += " Where that is the smallest or the largest decoded, a better one may lie beyond." if at_an_end else ""
    return said + (f" A decoded one between others, left out, is predicted within {max(misses):.0%}." if misses else "")
