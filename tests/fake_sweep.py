"""A sweep made by hand, for tests of what is computed from records: no model, no Ray, no ledger."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.grid import Cell
from orchestrator.ledger import Ledger, Sweep, write_sweep

ENVIRONMENT = {"python": "3.11.2", "torch": "2.9", "device": "cpu", "threads": 1, "commit": None}
START = 1_700_000_000.0  # unix seconds of the first record


@dataclass(frozen=True)
class FakeCell:
    """The attributes of `ledger.Cell` that results, tracking and report read."""

    key: str
    drafter: str = "none"
    budget: int = 0
    model: str = "tiny"
    task: str = "arith"
    temperature: float = 0.0
    seed: int = 0
    gen_length: int = 64
    stop: str = "eos"
    drafter_options: tuple[tuple[str, Any], ...] = ()

    @property
    def method(self) -> str:
        return self.drafter

    @property
    def label(self) -> str:
        return "control" if self.drafter == "none" else f"{self.drafter}-{self.budget}"


@dataclass(frozen=True)
class FakeSweep:
    """The attributes of `ledger.Sweep`."""

    cells: tuple[FakeCell, ...]
    rows: dict[str, tuple[str, ...]]
    name: str = "first"
    config: dict[str, Any] = field(default_factory=lambda: {"store": "runs", "mlflow": None})
    environment: dict[str, Any] = field(default_factory=lambda: ENVIRONMENT)


def sweep(*cells: FakeCell, rows: int = 2) -> FakeSweep:
    """A sweep in which every cell plans the rows r0, r1, ..."""
    return FakeSweep(cells, {cell.key: tuple(f"r{i}" for i in range(rows)) for cell in cells})


def _number(row: str) -> int:
    return int("".join(filter(str.isdigit, row)))


def decode(cell: str, row: str, nfe: int, control_nfe: int, /, **changes: Any) -> dict[str, Any]:
    """A decode record; half the control's time, one second, eight tokens, unless `changes` say otherwise."""
    record = {
        "kind": "decode", "sweep": "first", "cell": cell, "row": row, "attempt": 1, "status": "ok", "error": None,
        "text": None, "text_sha": f"sha-{row}", "tokens": None, "length": 8, "nfe": nfe, "cache_passes": 1,
        "steps": control_nfe, "drafted": 0, "drafted_passes": 0, "accepted": 0, "accepted_by_depth": [],
        "control_nfe": control_nfe, "control_seconds": 2.0, "control_sha": f"sha-{row}", "identical": True,
        "difference": None, "seconds": {"prefill": 0.125, "target": 0.5, "draft": 0.25, "rest": 0.125},
        "device": "cpu", "dtype": "float32", "threads": 1, "node": "head",
        "started": START + _number(row), "finished": START + _number(row) + 1.0,
    }  # fmt: skip
    return record | changes


def control(cell: str, row: str, nfe: int, /, **changes: Any) -> dict[str, Any]:
    """The control's own record: it is paired with itself."""
    seconds = {"prefill": 0.25, "target": 1.5, "draft": 0.0, "rest": 0.25}
    return decode(cell, row, nfe, nfe, text=f"text of {row}", tokens=[1, 2], seconds=seconds, **changes)


def score(row: str, correct: bool, **changes: Any) -> dict[str, Any]:
    """A score of the text that every record of `row` shares by default."""
    record = {"kind": "score", "task": "arith", "row": row, "text_sha": f"sha-{row}", "scorer": "v1",
              "correct": correct, "answer": "42", "error": None, "started": START + 100.0}  # fmt: skip
    return record | changes


def real_cell(drafter: str = "none", budget: int = 0, **changes: Any) -> Cell:
    """A cell as the grid makes it."""
    fields = {
        "model": "tiny", "family": "sdar", "model_revision": "aa", "block_length": 8, "dtype": "float32",
        "task": "arith", "data_revision": "bb", "drafter": drafter, "method": drafter, "drafter_sha": None,
        "drafter_options": (), "budget": budget, "temperature": 0.0, "seed": 0, "gen_length": 64, "stop": "eos",
    }  # fmt: skip
    return Cell(**fields | changes)


def on_disk(folder: Path, *cells: Cell, rows: int = 2, records: Iterable[dict] = ()) -> Sweep:
    """A real sweep in `folder`/first with real segments."""
    planned = {cell.key: tuple(f"r{i}" for i in range(rows)) for cell in cells}
    made = Sweep(folder / "first", "first", {"store": str(folder), "mlflow": None}, cells, planned, ENVIRONMENT)
    made.folder.mkdir(parents=True, exist_ok=True)
    write_sweep(made)
    append(made, records)
    return made


def append(made: Sweep, records: Iterable[dict]) -> None:
    """Write records as the driver would."""
    with Ledger.write(made.folder, now=0.0) as ledger:
        for record in records:
            ledger.append(record)
