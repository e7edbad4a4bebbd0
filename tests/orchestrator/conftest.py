"""Shared by the orchestrator's tests: plans over the fake backend, and drivers that run them in this process."""

from collections.abc import Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config import load
from orchestrator.driver import Driver, NoMirror, Outcome
from orchestrator.executors import InlineExecutor
from orchestrator.ledger import Ledger
from orchestrator.plan import Plan, make_plan
from orchestrator.scoring import LocalScorers
from tests.orchestrator.fakes import FakeJudge, Fakes

SMALL = ("limit=3", "drafters=[spot,stale]", "budgets=[0,4,8]", "temperatures=[0]", "mlflow=null")


class Quiet:
    """A view that keeps what it was shown."""

    def __init__(self) -> None:
        self.shown: list[Any] = []

    def update(self, progress: Any) -> None:
        self.shown.append(progress)


def plan_of(fakes: Fakes, *overrides: str, store: Path = Path("unused")) -> Plan:
    """The quickstart grid, made small, over `fakes`."""
    config, source = load("quickstart", [*SMALL, f"store={store}", *overrides])
    return make_plan(config, source, fakes.backend())


def drive(fakes: Fakes, folder: Path, *overrides: str, **options: Any) -> Outcome:
    """Run the small grid in this process over the ledger in `folder`."""
    plan, said = plan_of(fakes, *overrides), options.pop("said", [])
    retry, fail_fast = options.pop("retry_failed", False), options.pop("fail_fast", False)
    settings = {"mirror": NoMirror(), "view": Quiet(), "clock": count(100.0).__next__, **options}
    settings.setdefault("make_executor", partial(InlineExecutor, fakes.make_worker, settings.pop("workers", 2)))
    settings.setdefault("make_scorers", partial(LocalScorers, FakeJudge, 1))
    with Ledger.write(folder, 0.0) as ledger:
        return Driver(plan, ledger, say=said.append, **settings).run(retry, fail_fast)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "sweep"


def samples(tasks: Sequence[Any]) -> list[tuple[str, str]]:
    """(cell, row) of every method that the tasks ask for."""
    return [(m.cell, t.row) for t in tasks for m in (t.control, *t.methods) if m is not None]
