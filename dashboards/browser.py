"""What the report page's sample browser and replay show: a choice of a sweep's samples, small enough for a page.

Bugs, rounding differences and failures come first, up to MOST_ODD a cell and half of SAMPLE_BYTES, then the first ROWS
rows of every cell, row after row, until these are full; replays, a cell of every group in turn, until REPLAY_BYTES are.
The page gives `data` to browser.js.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from orchestrator import results
from orchestrator.ledger import Sweep

ROWS = 20
MOST_ODD = 5
SAMPLE_BYTES = 3_500_000
REPLAY_BYTES = 2_000_000
Replays = Callable[[str, str], Mapping[str, Any] | None]
"""By cell key and row id: the replay (workers/replay.py) that a record keeps, None where it has none."""
_AXES = ("model", "task", "temperature", "seed")
_ODD = ("bug", "numeric", "failed")


@dataclass(frozen=True)
class Shown:
    """`data` for browser.js, plain values: axes, cells, texts, samples, replays. And how many there are of what.

    A cell is [model, task, T, seed, method, budget]; a sample [cell, row, state, nfe, control's nfe, accepted, drafted
    passes, seconds, correct, answer, text, control's text, error, replay], its texts and replay as numbers, null for
    none. `places` has a sample's number by (cell key, row).
    """

    data: Mapping[str, Any]
    samples: int
    of_samples: int
    replays: int
    places: Mapping[tuple[str, str], int]


def shown(sweep: Sweep, samples: pd.DataFrame, replays: Replays) -> Shown:
    """What is shown of `samples` (`results.frame`)."""
    made = _Data()
    texts = {
        (task, row, sha): text
        for task, row, sha, text in samples[["task", "row", "text_sha", "text"]].itertuples(index=False)
        if isinstance(text, str)
    }
    for most, positions in zip((SAMPLE_BYTES // 2, SAMPLE_BYTES), _choice(sweep, samples), strict=True):
        for position in positions:
            if made.size > most:
                break
            record = samples.iloc[position].to_dict()
            made.add(record, texts.get((record["task"], record["row"], record["control_sha"])))
    made.replay(replays)
    data = {
        "axes": [*_AXES, "method", "budget"],
        "cells": made.cells,
        "texts": list(made.texts),
        "samples": made.samples,
        "replays": made.replays,
    }
    return Shown(data, len(made.samples), len(samples), len(made.replays), made.places)


def state(record: Mapping[str, Any]) -> str:
    """identical, numeric, bug or failed; "different" where a text differs and nobody has said why."""
    if record["status"] != "ok":
        return "failed"
    return record["difference"] or ("identical" if record["identical"] else "different")


def embedded(data: Any) -> str:
    """`data` as JSON that can stand in a script element: it has no `<`, so no tag can begin in it."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _choice(sweep: Sweep, samples: pd.DataFrame) -> tuple[list[int], list[int]]:
    """Positions in `samples`, the most wanted first: of those that are odd, and of the first rows."""
    cells = {cell.key: number for number, cell in enumerate(sweep.cells)}
    groups = {axes: number for number, axes in enumerate(dict.fromkeys(_group(cell) for cell in sweep.cells))}
    group = {cell.key: groups[_group(cell)] for cell in sweep.cells}
    first = {ids: {row: at for at, row in enumerate(ids[:ROWS])} for ids in set(sweep.rows.values())}
    seen: Counter[tuple[str, str]] = Counter()
    odd, usual = [], []
    fields = zip(*(samples[name] for name in ("cell", "row", "status", "difference")), strict=True)
    for position, (cell, row, status, difference) in enumerate(fields):
        kind = difference or ("failed" if status != "ok" else None)
        if kind:
            seen[cell, kind] += 1
        if kind and seen[cell, kind] <= MOST_ODD:
            odd.append((_ODD.index(kind), seen[cell, kind], group[cell], cells[cell], position))
        elif (at := first[sweep.rows[cell]].get(row)) is not None:
            usual.append((at, group[cell], cells[cell], position))
    return [place[-1] for place in sorted(odd)], [place[-1] for place in sorted(usual)]


def _group(cell: Any) -> tuple[Any, ...]:
    return tuple(getattr(cell, name) for name in _AXES)


class _Data:
    """What has been chosen so far, and about how many bytes it takes. Texts are kept once, under a number."""

    def __init__(self) -> None:
        self.size = 0
        self.cells: list[list[Any]] = []
        self.texts: dict[str, int] = {}
        self.samples: list[list[Any]] = []
        self.replays: list[dict[str, Any]] = []
        self.places: dict[tuple[str, str], int] = {}
        self._cells: dict[str, int] = {}

    def add(self, record: Mapping[str, Any], control: str | None) -> None:
        """Append a sample and what it needs; `control` is the text of its control."""
        key = record["cell"]
        if key not in self._cells:
            self._cells[key] = len(self.cells)
            self.cells.append([*(record[name] for name in _AXES), results.method_name(dict(record)), record["budget"]])
        line = [
            self._cells[key], record["row"], state(record), record["nfe"], record["control_nfe"], record["accepted"],
            record["drafted_passes"], record["seconds"] and round(record["seconds"], 4), record["correct"],
            record["answer"], self._text(record["text"]), None if record["identical"] else self._text(control),
            record["error"], None,
        ]  # fmt: skip
        self.places[key, record["row"]] = len(self.samples)
        self.samples.append(line)
        self.size += len(embedded(line).encode())

    def replay(self, replays: Replays) -> None:
        """Give samples their replays while there is room: the first row and cell of every group, then the next."""
        turns: Counter[tuple[Any, ...]] = Counter()
        order = []
        for (cell, row), number in self.places.items():
            group = tuple(self.cells[self._cells[cell]][: len(_AXES)])
            order.append((turns[group], number, cell, row))
            turns[group] += 1
        room = REPLAY_BYTES
        for _, number, cell, row in sorted(order, key=lambda entry: entry[:2]):
            kept = replays(cell, row)
            if kept is None:
                continue
            room -= len(embedded(kept).encode())
            if room < 0:
                return
            self.samples[number][-1] = len(self.replays)
            self.replays.append({**kept, "prompt": self._text(kept["prompt"])})

    def _text(self, text: str | None) -> int | None:
        if text is None:
            return None
        if text not in self.texts:
            self.texts[text] = len(self.texts)
            self.size += len(embedded(text).encode())
        return self.texts[text]
