"""spot-auto beside SPOT at fixed budgets: is its throughput that of the best of them, on this machine?

    python benchmarks/spot_auto.py                         # 40 prompts of arith, budgets 1 to 20, T = 0
    python benchmarks/spot_auto.py limit=16 temperatures=[0,1]

Prints, and writes to benchmarks/results/spot-auto.md, the measured pass-cost curve, the time of every budget, and the
paired ratio of spot-auto to the best fixed one with a bootstrap interval over prompts. The methods decode each prompt
back to back, in turned order.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from decode import machine  # noqa: E402

from orchestrator import config as configs  # noqa: E402
from orchestrator.grid import decode_spec  # noqa: E402
from orchestrator.plan import backend, make_plan  # noqa: E402
from orchestrator.results import Terms, ratio  # noqa: E402
from spot.drafters.spot_auto import SpotAuto  # noqa: E402
from workers.work import MethodTask, SampleTask  # noqa: E402
from workers.worker import Worker  # noqa: E402

GRID = ["drafters=[spot,spot-auto]", "budgets=[1,2,4,8,20]", "limit=40", "name=spot-auto"]


def main(overrides: list[str]) -> None:
    config, source = configs.load("methods", [*GRID, *overrides])
    plan = make_plan(config, source, backend())
    model, task = config.models[0], config.tasks[0]
    worker, rows = Worker(plan.models[model]), plan.tasks[task].rows[: config.limit]
    budgets = [int(budget) for budget in config.budgets if budget]
    auto = MethodTask("spot-auto", plan.drafters[model, "spot-auto"], max(budgets))
    methods = [auto, *(MethodTask(f"spot b{n}", plan.drafters[model, "spot"], n) for n in budgets)]
    lines = [f"# spot-auto\n\n`python benchmarks/spot_auto.py {' '.join(overrides)}`\n\n{machine()}.\n"]
    for temperature in config.temperatures:
        spec = decode_spec(config, plan.models[model], temperature, config.seeds[0])
        tasks = [SampleTask("", plan.models[model], task, row.id, row.prompt, spec, None) for row in rows]
        seconds = np.array([_seconds(worker, task, methods, turn) for turn, task in enumerate(tasks)])
        lines += _report(worker, tasks[0], methods, seconds, temperature)
    print("\n" + "\n".join(lines))
    (ROOT / "benchmarks" / "results" / "spot-auto.md").write_text("\n".join(lines) + "\n")


def _seconds(worker: Worker, task: SampleTask, methods: list[MethodTask], turn: int) -> list[float]:
    """Seconds of decoding `task` by each method."""
    if turn == 0:
        for method in methods:  # so that nothing is measured or loaded in what is timed
            worker.decode(task, method)
    print(f"\rprompt {turn + 1}", end="", file=sys.stderr, flush=True)
    found: dict[int, float] = {}
    for place in range(len(methods)):
        number = (place + turn) % len(methods)
        found[number] = sum(worker.decode(task, methods[number]).seconds.values())
    return [found[number] for number in range(len(methods))]


def _report(
    worker: Worker, task: SampleTask, methods: list[MethodTask], seconds: np.ndarray, temperature: float
) -> Iterator[str]:
    drafter = worker.drafter(task, methods[0])
    assert isinstance(drafter, SpotAuto) and drafter.cost is not None
    budgets = drafter.cost.seconds.drafts
    curve = ", ".join(f"{n}: {1000 * drafter.cost.seconds(n):.1f}" for n in budgets)
    accepted = ", ".join(f"{n}: {drafter.cost.accepted(n):.2f}" for n in budgets)
    yield f"## T = {temperature:g}, {len(seconds)} prompts\n\nms of a pass by number of drafts: {curve}\n"
    yield f"drafts accepted a drafted pass: {accepted}\n"
    sureness = ", ".join(
        f"{drafter.cost.best_budget(bound, budgets[-1])} from {bound:.2f}" for bound, _ in drafter.cost.sureness
    )
    yield f"budget by the first draft's mass: {sureness}\n"
    yield "| method | ms a prompt |\n| --- | ---: |"
    for method, total in zip(methods, seconds.sum(0), strict=True):
        yield f"| {method.cell} | {1000 * total / len(seconds):.0f} |"
    best = 1 + int(seconds[:, 1:].sum(0).argmin())
    speed, low, high = ratio([Terms(np.arange(len(seconds)), seconds[:, best], seconds[:, 0])])
    yield f"\nThroughput over {methods[best].cell}, the best fixed budget: {speed:.3f} ({low:.3f}–{high:.3f})\n"


if __name__ == "__main__":
    main(sys.argv[1:])
