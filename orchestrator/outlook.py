"""What a grid amounts to before it runs: cells, samples, what is there of them, passes, hours, cost, and room.

    python launch.py plan paper/sdar-8b-t0 cluster=aws-p5e

Needs no GPU and no cluster. What this machine has not got (a model on the hub, a checkpoint that is not made yet) is
planned by its name and published size, and named: a run would refuse it. design.md §5.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from orchestrator import cluster as clusters
from orchestrator import estimate as estimates
from orchestrator.cluster import Cluster, Node
from orchestrator.config import Config, Source
from orchestrator.estimate import Estimate, Probe, counted
from orchestrator.executors import reach, wanted_workers
from orchestrator.ledger import Ledger
from orchestrator.plan import Backend, Plan, Results, make_plan
from orchestrator.standing import state_counts, state_dict, states_table
from orchestrator.workload import Workload, count, model_loads


@dataclass(frozen=True)
class Outlook:
    """A planned grid. `nodes` are those of the cluster file, or of the cluster at workers.address, if any."""

    plan: Plan
    workload: Workload
    estimate: Estimate
    workers: int
    loads: int
    cluster: Cluster | None
    nodes: tuple[Node, ...] | None
    unused: tuple[str, ...]

    @property
    def tasks(self) -> int:
        """Sample tasks that are left."""
        return sum(map(sum, self.workload.tasks.values()))

    @property
    def places(self) -> list[clusters.Place]:
        """Where the models have room, as far as it is known what there is."""
        return clusters.places(self.plan.config, list(self.plan.models), self.nodes) if self.nodes is not None else []


def look(config: Config, source: Source, workers: Backend, probes: Sequence[Path] = ()) -> Outlook:
    """Plan `config`. Raises UserError for what is wrong with it; connects to nothing but a cluster that it names."""
    cluster = clusters.load(config.cluster) if config.cluster is not None else None
    plan = make_plan(config, source, workers, by_name=True)
    found, unused = estimates.find(plan, probes)
    results = Ledger(config.folder).results()
    return outlook(plan, results, cluster, _nodes(config, source, cluster), found, unused)


def _nodes(config: Config, source: Source, cluster: Cluster | None) -> tuple[Node, ...] | None:
    if config.workers.address is not None:
        reach(config.workers, source)
        return tuple(clusters.live())
    return tuple(clusters.of_file(cluster)) if cluster is not None else None


def outlook(
    plan: Plan,
    results: Results,
    cluster: Cluster | None = None,
    nodes: tuple[Node, ...] | None = None,
    probes: Mapping[str, Probe] | None = None,
    unused: Sequence[str] = (),
) -> Outlook:
    """What `plan` comes to, given the `results` that are there."""
    workload = count(plan.grid.cells, plan.rows, results)
    workers = _workers(plan.config, nodes)
    estimate = estimates.estimate(plan, workload, results, probes or {})
    loads = model_loads(plan, workload, workers)
    return Outlook(plan, workload, estimate, workers, loads, cluster, nodes, tuple(unused))


def _workers(config: Config, nodes: tuple[Node, ...] | None) -> int:
    """The asked-for number; by `auto` one a GPU that there is, or as many as this machine has room for."""
    gpus = sum(node.gpus for node in nodes or ())
    if config.workers.count == "auto" and config.workers.device == "cuda" and gpus:
        return gpus
    return wanted_workers(config.workers) or 1


def printed(found: Outlook, alone: bool = True) -> Iterator[RenderableType]:
    """What a terminal shows; of one grid of several, no table and nothing that is said of all of them at the end."""
    plan, workload = found.plan, found.workload
    if alone:
        yield from (f"unresolved: {line}" for line in plan.unresolved)
        yield states_table(workload.states)
    words = ", ".join(f"{number} {word}" for word, number in state_counts(workload.states).items() if number)
    yield (
        f"{len(plan.cells):,} cells ({words}), {plan.samples:,} samples, "
        f"{workload.left:,} to run in {found.tasks:,} sample tasks"
    )
    if found.tasks:
        loads, workers = counted(found.loads, "model load"), counted(found.workers, "worker")
        yield f"about {loads} by {workers}"
        yield from estimates.lines(found.estimate, found.workers, found.cluster)
    if found.nodes is not None and alone:
        yield f"cluster: {clusters.described(found.nodes)}"
    if found.nodes is not None:
        yield from clusters.lines(plan.config, found.places)
    yield from found.unused


def as_dict(found: Outlook) -> dict[str, Any]:
    """What `plan --json` says of a grid."""
    plan, estimate, price = found.plan, found.estimate, found.cluster and found.cluster.usd_per_gpu_hour
    hours = None if estimate.seconds is None else estimate.seconds / 3600
    most_hours = None if estimate.most_seconds is None else estimate.most_seconds / 3600
    return {
        "sweep": plan.config.name,
        "folder": str(plan.config.folder),
        "notes": list(plan.grid.notes),
        "unresolved": list(plan.unresolved),
        "cells": len(plan.cells),
        "samples": plan.samples,
        "left": found.workload.left,
        "sample_tasks": found.tasks,
        "states": state_counts(found.workload.states),
        "workers": found.workers,
        "model_loads": found.loads,
        "passes": estimate.passes,
        "most_passes": estimate.most_passes,
        "passes_by": list(estimate.of_passes),
        "worker_hours": hours,
        "most_worker_hours": most_hours,
        "hours_by": list(estimate.of_seconds),
        "untimed": list(estimate.untimed),
        "cluster": found.cluster and asdict(found.cluster),
        "usd": hours * price if hours is not None and price else None,
        "most_usd": most_hours * price if most_hours is not None and price else None,
        "places": [asdict(place) for place in found.places],
        "table": [state_dict(state) for state in found.workload.states],
    }


SUMMED = ("cells", "samples", "left", "sample_tasks", "model_loads", "passes", "most_passes")
KNOWN = ("worker_hours", "most_worker_hours", "usd", "most_usd")  # summed where they are known


def total(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Several grids' `as_dict`, summed. What nobody timed is in no sum of hours: it is in `untimed`."""
    states: Counter[str] = Counter()
    for grid in found:
        states.update(grid["states"])
    known = {key: [grid[key] for grid in found if grid[key] is not None] for key in KNOWN}
    return {
        **{key: sum(grid[key] for grid in found) for key in SUMMED},
        "states": dict(states),
        **{key: sum(values) if values else None for key, values in known.items()},
        "untimed": sorted({model for grid in found for model in grid["untimed"]}),
        "unresolved": list(dict.fromkeys(line for grid in found for line in grid["unresolved"])),
    }


def total_lines(summed: Mapping[str, Any], grids: int) -> Iterator[str]:
    """The sum for a terminal."""
    yield from (f"unresolved: {line}" for line in summed["unresolved"])
    yield (
        f"{counted(grids, 'grid')}: {summed['cells']:,} cells, {summed['samples']:,} samples, "
        f"{summed['left']:,} to run in {summed['sample_tasks']:,} sample tasks"
    )
    yield f"{summed['passes']:,.0f} target passes, at most {summed['most_passes']:,.0f}"
    if summed["worker_hours"] is not None:
        cost = f", {summed['usd']:,.2f} USD, at most {summed['most_usd']:,.2f}" if summed["usd"] is not None else ""
        yield f"{summed['worker_hours']:.1f} worker-hours, at most {summed['most_worker_hours']:.1f}{cost}"
    if summed["untimed"]:
        yield f"not timed, and in no hours: {', '.join(summed['untimed'])} (launch.py probe)"
