"""One order model, another target: the bundled one drafts for a target of other width and tokenizer."""

import pytest

from orchestrator import config as configs
from orchestrator.grid import decode_spec
from orchestrator.plan import backend, make_plan
from workers.work import MethodTask, SampleTask
from workers.worker import Worker

PROMPTS = 3


@pytest.fixture(scope="module")
def records() -> dict[str, list[dict]]:
    """Records by method of the first prompts of arith, at T = 0 and budget 8."""
    config, source = configs.load("transfer", ["budgets=[8]", f"limit={PROMPTS}"])
    plan = make_plan(config, source, backend())
    model = plan.models["tiny-sdar-words"]
    worker = Worker(model)
    methods = tuple(MethodTask(name, spec, 8) for (_, name), spec in plan.drafters.items())
    found: dict[str, list[dict]] = {name: [] for _, name in plan.drafters}
    for row in plan.tasks["arith"].rows[:PROMPTS]:
        spec = decode_spec(config, model, 0.0, 0)
        for record in worker.run(SampleTask("", model, "arith", row.id, row.prompt, spec, None, methods)):
            found[record["cell"]].append(record)
    return found


def test_the_second_target_is_another_one():
    config, source = configs.load("transfer", ["models=[tiny-sdar,tiny-sdar-words]"])
    first, second = (Worker(spec) for spec in make_plan(config, source, backend()).models.values())
    assert first.target.model.config.hidden_size != second.target.model.config.hidden_size
    assert first.prompt_ids("Mia has 3 pens.") != second.prompt_ids("Mia has 3 pens.")


def test_the_first_targets_order_model_drafts_losslessly(records):
    for record in records["spot"] + records["spot-edge"]:
        assert record["status"] == "ok" and record["identical"] and record["nfe"] < record["control_nfe"] / 2


def test_it_needs_fewer_passes_than_the_stale_order(records):
    for learned, stale in zip(records["spot"], records["stale"], strict=True):
        assert learned["row"] == stale["row"] and learned["nfe"] < stale["nfe"]
