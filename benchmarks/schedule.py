"""The schedule on paper: the paper's grids, about 550,000 records, on a thousand simulated GPUs.

    python benchmarks/schedule.py             # without failures, then with them, then on a mixed fleet
    python benchmarks/schedule.py --gpus 64

Prints how long the sweep takes against the least that it could (all work and one load a GPU, spread evenly), how often
models are loaded, and what a record costs the schedule. Times of passes and loads are round guesses for an A100; only
their proportions matter here. `--noise` is how far a task's length strays from what was foretold (log-normal).
"""

import argparse
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.schedule import Schedule
from orchestrator.simulate import Device, Faults, Run, simulate
from workers.work import DecodeSpec, DrafterSpec, MethodTask, ModelSpec, SampleTask, Work

FIRST_WAVE = 20
ROWS = {"gsm8k": 350, "math500": 350, "mbpp": 350, "humaneval": 164}
SPEEDUP = 3.0  # of a method's passes over the control's


@dataclass(frozen=True)
class Target:
    """Seconds a pass, seconds to load, and the GPU memory it needs in GB."""

    pass_seconds: float
    load_seconds: float
    memory: int


TARGETS = {
    "sdar-8b": Target(0.035, 60, 24),
    "sdar-4b": Target(0.022, 40, 16),
    "sdar-1.7b": Target(0.014, 25, 8),
    "llada2-mini": Target(0.030, 90, 40),
    "llada-8b": Target(0.040, 60, 24),
    "dream-7b": Target(0.038, 55, 24),
    "sdar-8b-b16": Target(0.033, 60, 24),
    "sdar-8b-b64": Target(0.040, 60, 24),
}
# model -> (methods beside the control, temperatures, seeds, tokens), a line a grid
GRIDS = (
    *((model, 10, (0, 1), 3, 256) for model in ("sdar-8b", "sdar-4b", "sdar-1.7b", "llada2-mini")),  # the main tables
    ("sdar-8b", 2, (0, 1), 3, 256),  # another target's drafter
    *((model, 10, (0,), 3, 256) for model in ("llada-8b", "dream-7b")),  # transfer
    ("sdar-8b", 8, (0,), 3, 256),  # ablations
    *((model, 4, (0,), 3, 256) for model in ("sdar-8b-b16", "sdar-8b-b64")),  # block lengths
    ("sdar-8b", 6, (0,), 1, 256),  # oracles
    ("sdar-8b", 4, (0,), 3, 512),
    ("sdar-8b", 4, (2, 4), 3, 256),
    ("sdar-8b", 4, (0,), 3, 255),  # threshold decoding
)


def waves() -> list[list[Work]]:
    """The sample tasks of all grids: the first rows of every group, then the rest."""
    first: list[Work] = []
    rest: list[Work] = []
    for grid, (model, methods, temperatures, seeds, tokens) in enumerate(GRIDS):
        for task, temperature, seed in ((t, c, s) for t in ROWS for c in temperatures for s in range(seeds)):
            tasks = list(_group(grid, model, methods, tokens, task, temperature, seed))
            first += tasks[:FIRST_WAVE]
            rest += tasks[FIRST_WAVE:]
    return [first, rest]


def _group(
    grid: int, model: str, methods: int, tokens: int, task: str, temperature: int, seed: int
) -> Iterator[SampleTask]:
    spec, drafter = ModelSpec(model, "sdar", model, "", 32), DrafterSpec("spot", "spot")
    decode, cell = DecodeSpec(tokens, temperature, seed), f"{grid}-{model}-{task}-{temperature}-{seed}"
    drafted = tuple(MethodTask(f"{cell}-{number}", drafter, 8) for number in range(methods))
    for row in range(ROWS[task]):
        yield SampleTask("paper", spec, task, str(row), "", decode, MethodTask(cell, None, 0), drafted)


def seconds(work: Work) -> float:
    """How long a task is foretold to take."""
    assert isinstance(work, SampleTask)
    passes = work.decode.gen_length * (1 + len(work.methods) / SPEEDUP)
    return TARGETS[work.model.name].pass_seconds * passes


def records(work: Work) -> list[tuple[str, str]]:
    """The (cell, row) that a task records."""
    assert isinstance(work, SampleTask)
    return [(method.cell, work.row) for method in (work.control, *work.methods) if method is not None]


def fits(model: str, kind: str) -> bool:
    """A kind is its memory in GB."""
    return TARGETS[model].memory <= int(kind or 80)


def run(devices: list[Device], faults: Faults, noise: float, seed: int) -> Run:
    work, chance = waves(), random.Random(seed)
    taken = {id(task): seconds(task) * chance.lognormvariate(0, noise) for wave in work for task in wave}
    schedule = Schedule(work, fits=fits, cost=seconds)

    def actual(task: Work) -> float:
        return taken.get(id(task)) or seconds(task)  # a task that is tried again is another object

    return simulate(schedule, devices, lambda model: TARGETS[model].load_seconds, actual, faults, seed)


def report(title: str, devices: list[Device], run: Run) -> None:
    expected = Counter(record for wave in waves() for task in wave for record in records(task))
    done = Counter(record for job in run.done for record in records(job.task))
    condemned = Counter(record for job in run.condemned for record in records(job.task))
    once = done + condemned == expected and max(expected.values()) == 1
    print(f"{title}: {len(devices)} GPUs, {len(run.done)} sample tasks, {done.total()} records")
    print(f"  every record once: {once}; condemned {condemned.total()}; workers that died {run.deaths}")
    print(f"  loads {run.loads.total()}, {run.loads.total() / len(devices):.3f} a GPU")
    print(f"  schedule {run.decided / done.total() * 1e6:.1f} µs a record, {run.events} events")
    print(f"  makespan {run.makespan:.0f} s", end="")
    if all(device == Device() for device in devices):
        average = sum(TARGETS[m].load_seconds * n for m, n in run.loads.items()) / run.loads.total()
        least = run.busy / len(devices) + average
        print(f", {run.makespan / least:.3f} of (work + one load a GPU) / GPUs = {least:.0f} s", end="")
    print()


def mixed(gpus: int, chance: random.Random) -> list[Device]:
    """Three kinds, a fifth of them late, a tenth preempted."""
    found = []
    for number in range(gpus):
        kind, speed = (("80", 2.0), ("40", 1.0), ("24", 0.5))[number % 3]
        joins = chance.uniform(0, 900) if number % 5 == 0 else 0.0
        found.append(Device(kind, speed, joins, joins + chance.uniform(60, 1800) if number % 10 == 1 else float("inf")))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=1000)
    parser.add_argument("--noise", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    alike = [Device()] * asked.gpus
    report("no failures", alike, run(alike, Faults(), asked.noise, asked.seed))
    poison = {("1-sdar-4b-gsm8k-0-0-3", "17"), ("0-sdar-8b-mbpp-1-2-5", "300")}
    faults = Faults(3600.0, 0.02, lambda task: not poison.isdisjoint(records(task)))
    report("a failure a GPU an hour, 2 % of loads fail, two poison samples", alike,
           run(alike, faults, asked.noise, asked.seed))  # fmt: skip
    fleet = mixed(asked.gpus, random.Random(asked.seed))
    report("three kinds, late and preempted, failing", fleet, run(fleet, faults, asked.noise, asked.seed))


if __name__ == "__main__":
    main()
