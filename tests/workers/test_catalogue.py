"""Every entry of configs/drafter decodes through a worker, by both step rules, and changes no text."""

import pytest

from orchestrator import config as configs
from orchestrator.grid import decode_spec
from orchestrator.plan import Plan, backend, make_plan
from workers.work import MethodTask, SampleTask
from workers.worker import Worker

NAMES = configs.known("drafter")
RULES = {
    "single": ["temperatures=[0]"],
    "threshold": [
        "temperatures=[0.8]",
        "decode.unmasking=threshold",
        "decode.threshold=0.9999",
        "decode.layout=concat",
    ],
}


def plan(rule: str) -> Plan:
    asked = [f"drafters=[{','.join(NAMES)}]", "budgets=[4]", "decode.gen_length=40", *RULES[rule]]
    return make_plan(*configs.load("quickstart", asked), backend())


@pytest.fixture(scope="module")
def worker() -> Worker:
    return Worker(plan("single").models["tiny-sdar"])


@pytest.fixture(scope="module", params=RULES)
def records(request, worker) -> dict[str, dict]:
    """Records of one row by drafter."""
    planned = plan(request.param)
    methods = tuple(MethodTask(name, planned.drafters["tiny-sdar", name], 4) for name in NAMES)
    row, model = planned.tasks["arith"].rows[0], planned.models["tiny-sdar"]
    spec = decode_spec(planned.config, model, planned.config.temperatures[0], 0)
    task = SampleTask("", model, "arith", row.id, row.prompt, spec, MethodTask("control", None, 0), methods)
    return {record["cell"]: record for record in worker.run(task)}


@pytest.mark.parametrize("name", NAMES)
def test_a_drafter_of_the_catalogue_changes_no_text(records, name):
    record = records[name]
    assert (record["status"], record["error"]) == ("ok", None)
    assert record["identical"] and record["nfe"] <= records["control"]["nfe"]
    assert record["nfe"] + record["accepted"] == record["steps"] == records["control"]["steps"]


def test_peak_memory_is_recorded(records):
    assert all(record["peak_bytes"] is None or record["peak_bytes"] > 10**7 for record in records.values())
