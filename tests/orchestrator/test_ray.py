"""The same sweep on real Ray actors, one of which dies: the result is the one of the run in this process."""

import os
import time

import pytest
import ray

from orchestrator.config import Workers
from orchestrator.errors import UserError
from orchestrator.executors import OBJECT_STORE_BYTES, RayExecutor, Started, connect
from orchestrator.fleet import places
from orchestrator.ledger import Ledger
from orchestrator.scoring import RayScorers
from tests.orchestrator.conftest import drive, plan_of
from tests.orchestrator.fakes import DeadlyJudge, Fakes, FakeTask

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def one_ray():
    """A Ray for all tests of this file, which none of them ends. Its two GPUs are a word: nothing here uses one."""
    here = {"num_cpus": 5, "num_gpus": 2, "include_dashboard": False, "log_to_driver": False}
    os.environ |= {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_worker_niceness": "0"}
    ray.init(address="local", object_store_memory=OBJECT_STORE_BYTES, logging_level="ERROR", **here)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray, "shutdown", lambda: None)
        yield
    ray.shutdown()


@pytest.mark.usefixtures("one_ray")
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


@pytest.mark.usefixtures("one_ray")
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


@pytest.mark.usefixtures("one_ray")
def test_a_worker_that_hangs_is_ended_and_its_job_is_to_blame(tmp_path):
    plan = plan_of(Fakes(), "limit=2", "budgets=[0]", "retries=1")
    poison = plan.grid.rows[plan.grid.cells[0].group][0]
    fakes = Fakes(hanging=frozenset({("none", poison)}))
    workers = Workers(hang_timeout=2.0)
    asked = ("limit=2", "budgets=[0]", "retries=1")
    outcome = drive(fakes, tmp_path, *asked, make_executor=lambda: RayExecutor(fakes.make_worker, workers, 1))
    (failed,) = [record for record in Ledger(tmp_path).results().values() if record["status"] == "failed"]
    assert (outcome.exit_code, outcome.ran, failed["row"], failed["cause"]) == (1, 2, poison, "hung")
    assert failed["error"] == "no pass and no delivery for 2 s (workers.hang_timeout)"


@pytest.mark.usefixtures("one_ray")
def test_a_model_whose_loading_never_ends_is_given_up_in_good_time(tmp_path):
    fakes = Fakes(unloadable=frozenset({"tiny-sdar"}), endless=True)
    workers = Workers(load_timeout=2.0)
    outcome = drive(fakes, tmp_path, "retries=1", make_executor=lambda: RayExecutor(fakes.make_worker, workers, 1))
    assert (outcome.exit_code, outcome.ran) == (3, 0)
    assert outcome.given_up == {"tiny-sdar": "its model is not loaded after 2 s (workers.load_timeout)"}


@pytest.mark.usefixtures("one_ray")
@pytest.mark.parametrize(("per_gpu", "fit"), [(1, 2), (2, 4)])
def test_as_many_workers_run_at_once_as_shares_of_two_gpus_there_are(per_gpu, fit):
    """Five are asked for; Ray gives none of them a part of one GPU and a part of another."""
    workers = Workers(device="cuda", per_gpu=per_gpu)
    assert places({"CPU": 5, "GPU": 2}, workers) == fit
    model, started = Fakes().resolve_model("m", {"family": "sdar", "path": "m", "block_length": 8}), 0
    executor = RayExecutor(Fakes().make_worker, workers, 5)
    for worker in range(5):
        executor.start(worker, model)
    until = time.monotonic() + 60
    while started < fit and time.monotonic() < until:
        started += sum(isinstance(event, Started) for event in executor.wait(0.5))
    assert started == fit
    assert ray.available_resources().get("GPU", 0) == 0
    assert not any(isinstance(event, Started) for event in executor.wait(0.5))
    executor.close()


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
