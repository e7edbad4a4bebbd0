"""The same sweep on real Ray actors, one of which dies: the result is the one of the run in this process."""

import pytest

from orchestrator.config import Workers
from orchestrator.errors import UserError
from orchestrator.executors import RayExecutor, connect
from orchestrator.ledger import Ledger
from orchestrator.scoring import RayScorers
from tests.orchestrator.conftest import drive, plan_of
from tests.orchestrator.fakes import DeadlyJudge, Fakes, FakeTask

pytestmark = pytest.mark.ray


@pytest.mark.filterwarnings("ignore")
def test_an_actor_that_exits_costs_its_poison_sample_and_nothing_else(tmp_path):
    plan = plan_of(Fakes(), "limit=6", "budgets=[0,4]")
    poison = plan.grid.rows[plan.grid.cells[0].group][2]
    fakes, said = Fakes(deadly=frozenset({("spot", poison)}), exits=True), []
    outcome = drive(
        fakes,
        tmp_path / "ray",
        "limit=6",
        "budgets=[0,4]",
        said=said,
        make_executor=lambda: RayExecutor(fakes.make_worker, Workers(), 2),
    )
    drive(Fakes(), tmp_path / "inline", "limit=6", "budgets=[0,4]")
    on_ray, inline = Ledger(tmp_path / "ray").results(), dict(Ledger(tmp_path / "inline").results())
    failed = {sample for sample, record in on_ray.items() if record["status"] == "failed"}
    assert [(cell.drafter, row) for cell, row, _ in outcome.failed] == [("spot", poison)]
    assert "worker died" in outcome.failed[0][2]
    assert outcome.exit_code == 1
    assert on_ray.keys() == inline.keys()
    assert all(_result(on_ray[sample]) == _result(inline[sample]) for sample in on_ray.keys() - failed)


@pytest.mark.filterwarnings("ignore")
def test_a_scorer_that_dies_and_a_process_that_dies_with_it_cost_their_texts_an_error_each(tmp_path):
    fakes = Fakes(task=FakeTask("fake", size=9, fatal="r7"))
    outcome = drive(
        fakes,
        tmp_path,
        "limit=9",
        "budgets=[0,4]",
        make_executor=lambda: RayExecutor(fakes.make_worker, Workers(), 1, 1),
        make_scorers=lambda: RayScorers(DeadlyJudge, Workers(), 1, 1),
    )
    assert (outcome.exit_code, outcome.texts.scored, outcome.texts.errors) == (0, 7, 2)
    scores = {score["row"]: score for score in Ledger(tmp_path).scores().values()}
    assert scores["r7"]["error"] == "the scorer ended its process (exit code 3)"
    assert "died" in scores["r8"]["error"]
    assert [scores[f"r{number}"]["correct"] for number in range(7)] == [True, False] * 3 + [True]


def _result(record):
    return {name: value for name, value in record.items() if name != "attempt"}  # a neighbour of the poison has more


@pytest.mark.parametrize(("failures", "starts"), [(0, 1), (1, 2), (2, 2)])
def test_a_ray_that_does_not_start_is_started_once_more(failures, starts, monkeypatch):
    calls = []

    def init(**options):
        calls.append(options)
        if len(calls) <= failures:
            raise Exception("the processes of another driver are still ending")

    monkeypatch.setattr("ray.init", init)
    if failures < 2:
        connect(Workers(), 2)
    else:
        with pytest.raises(UserError, match="Ray did not start here"):
            connect(Workers(), 2)
    assert len(calls) == starts
