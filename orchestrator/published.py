"""What papers report, as data: configs/published/*.yaml, a figure a line with its source and date.

    from orchestrator.published import read
    figures = read(Path("configs/published/spot.yaml"))

A figure is a measure and what is said of it: `value: 5.4`, `range: [3.2, 4.7]` over what the conditions leave open,
`mean:` over that, `at_most: 6.8`, `at_least: 0.9`. Conditions are the lists that a cell's values must be in: models,
tasks, drafters ("control" for draft-free decoding), budgets, temperatures, gen_lengths, thresholds; what is not told
holds for any, but the commit rule: one position a pass, unless `unmasking: threshold` or `thresholds` say otherwise.
`baseline` is what a ratio is against, draft-free decoding by default. `says` quotes the source; a `derived` figure
stands in none, says how it was worked out, and is there for `plan` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator import config as configs
from orchestrator.config import CONFIGS, shown
from orchestrator.errors import UserError
from orchestrator.grid import Cell

FOLDER = CONFIGS / "published"
# Measures, and what tells of them; passes_saved is 1 - NFE / the baseline's, more_passes is NFE - the baseline's.
MEASURES = {"nfe": "NFE", "nfe_ratio": "NFE ratio", "throughput_ratio": "throughput ratio", "accuracy": "accuracy",
            "oracle_share": "oracle share", "passes_saved": "passes saved", "more_passes": "more passes",
            "next_commit_accuracy": "next-commit accuracy", "stale_token_accuracy": "stale-token accuracy"}  # fmt: skip
SHARES = ("accuracy", "oracle_share", "passes_saved", "next_commit_accuracy", "stale_token_accuracy")  # of one
KINDS = ("value", "range", "mean", "at_most", "at_least")
CONDITIONS = {"models": "model", "tasks": "task", "drafters": "drafter", "budgets": "budget",
              "temperatures": "temperature", "gen_lengths": "gen_length", "thresholds": "threshold"}  # fmt: skip
_WORDS = ("models", "tasks", "drafters")  # conditions that are names; the others are numbers


@dataclass(frozen=True)
class Source:
    """Where a figure stands, and of when it is; `name` is what the file calls it."""

    name: str
    title: str
    where: str
    date: str


@dataclass(frozen=True)
class Figure:
    """One published figure. `low` and `high` are equal but for a range; None where the source gives no such end.

    A whole number of the file is one here, so that 55 is not printed as 55.0.
    """

    measure: str
    kind: str
    low: float | None
    high: float | None
    conditions: Mapping[str, tuple[Any, ...]]
    unmasking: str
    baseline: str
    source: Source
    says: str
    derived: str

    def is_of(self, cell: Cell) -> bool:
        """Whether the cell is one that the figure speaks of."""
        rule = "single" if cell.threshold is None else "threshold"
        values = {axis: getattr(cell, name) for axis, name in CONDITIONS.items()}
        values["drafters"] = "control" if cell.is_control else cell.drafter
        return rule == self.unmasking and all(values[axis] in told for axis, told in self.conditions.items())

    @property
    def subject(self) -> str:
        """`sdar-8b · mbpp · spot-gamma · T 1 · 512 tokens`: its conditions."""
        forms = {"budgets": "b{}", "temperatures": "T {}", "gen_lengths": "{} tokens", "thresholds": "τ {}"}
        told = [
            forms.get(axis, "{}").format(", ".join(map(_plain, values))) for axis, values in self.conditions.items()
        ]
        rule = ["threshold"] if self.unmasking == "threshold" and "thresholds" not in self.conditions else []
        return " · ".join([*told, *rule])


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def every() -> list[Figure]:
    """The figures of all files of configs/published."""
    return [figure for path in sorted(FOLDER.glob("*.yaml")) for figure in read(path)]


def named(name: str) -> list[Figure] | None:
    """The figures of `published`, which is all, or of a file: a path, or one of configs/published.

    None for what names a sweep: no file.yaml, or a grid's. UserError for a file.yaml that is not there.
    """
    if name == "published":
        return every()
    if not name.endswith(".yaml"):
        return None
    path = next((path for path in (Path(name), FOLDER / name) if path.is_file()), None)
    if path is None:
        files = sorted(path.name for path in FOLDER.glob("*.yaml"))
        raise UserError(
            configs.COMMAND_LINE, name, f"no such file; of published figures there are {configs.listed(files)}"
        )
    return read(path) if configs.read(path).keys() & {"sources", "figures"} else None


def read(path: Path) -> list[Figure]:
    """Raises UserError, with the file and the key, for a file of another form."""
    found = configs.read(path)
    for key in found.keys() - {"sources", "figures"}:
        raise _wrong(path, key, "unknown key; `sources` and `figures` are known")
    sources, figures = found.get("sources"), found.get("figures")
    if not isinstance(sources, dict) or not isinstance(figures, list):
        missing = "figures" if isinstance(sources, dict) else "sources"
        raise _wrong(path, missing, "a mapping of sources and a list of figures expected")
    known = {str(name): _source(path, str(name), entry) for name, entry in sources.items()}
    return [_figure(path, f"figures[{number}]", entry, known) for number, entry in enumerate(figures)]


def _wrong(path: Path, key: str, wrong: str) -> UserError:
    return UserError(shown(path), key, wrong)


def _source(path: Path, name: str, entry: Any) -> Source:
    names = ("title", "where", "date")
    if not isinstance(entry, dict) or entry.keys() != set(names):
        raise _wrong(path, f"sources.{name}", "title, where and date expected")
    return Source(name, *(str(entry[key]) for key in names))


def _figure(path: Path, key: str, entry: Any, sources: Mapping[str, Source]) -> Figure:
    if not isinstance(entry, dict):
        raise _wrong(path, key, f"{entry!r}: a mapping expected, as {{measure: nfe_ratio, value: 5.4, source: page}}")
    others = {"measure", "baseline", "source", "says", "derived", "unmasking"}
    for name in entry.keys() - {*others, *KINDS, *CONDITIONS}:
        raise _wrong(
            path, f"{key}.{name}", f"unknown key; known: {configs.listed(sorted({*others, *KINDS, *CONDITIONS}))}"
        )
    _one_of(path, f"{key}.measure", entry.get("measure"), MEASURES)
    source = str(entry.get("source"))
    _one_of(path, f"{key}.source", source, sources)
    kinds = [kind for kind in KINDS if kind in entry]
    if len(kinds) != 1:
        raise _wrong(path, key, f"{configs.listed(kinds)}: exactly one of {configs.listed(KINDS)} expected")
    kind = kinds[0]
    low, high = _ends(path, f"{key}.{kind}", kind, entry[kind])
    conditions = {axis: _values(path, f"{key}.{axis}", axis, entry[axis]) for axis in CONDITIONS if axis in entry}
    unmasking = entry.get("unmasking", "threshold" if "thresholds" in conditions else "single")
    _one_of(path, f"{key}.unmasking", unmasking, configs.UNMASKING)
    texts = (str(entry.get(name, default)) for name, default in (("says", ""), ("derived", "")))
    baseline = str(entry.get("baseline", "control"))
    return Figure(entry["measure"], kind, low, high, conditions, unmasking, baseline, sources[source], *texts)


def _one_of(path: Path, key: str, value: Any, known: Any) -> None:
    if not isinstance(value, str) or value not in known:
        raise _wrong(path, key, f"{value!r}; one of {configs.listed(known)} expected")


def _ends(path: Path, key: str, kind: str, value: Any) -> tuple[float | None, float | None]:
    ends = value if kind == "range" else [value]
    if not isinstance(ends, list) or not all(
        isinstance(end, int | float) and not isinstance(end, bool) for end in ends
    ):
        raise _wrong(path, key, f"{value!r}: {'[least, most]' if kind == 'range' else 'a number'} expected")
    if kind == "range" and (len(ends) != 2 or ends[0] > ends[1]):
        raise _wrong(path, key, f"{value!r}: [least, most] expected")
    return (None if kind == "at_most" else ends[0]), (None if kind == "at_least" else ends[-1])


def _values(path: Path, key: str, axis: str, value: Any) -> tuple[Any, ...]:
    kind, words = (str, "names") if axis in _WORDS else (int | float, "numbers")
    if not isinstance(value, list) or not value or not all(isinstance(one, kind) for one in value):
        raise _wrong(path, key, f"{value!r}: a list of {words} expected")
    return tuple(value)
