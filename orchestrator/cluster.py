"""What a cluster is and costs, and whether a grid's models find a place there.

    python launch.py plan paper/sdar-8b-t0 cluster=aws-p5e                   # by configs/cluster/aws-p5e.yaml
    python launch.py plan paper/sdar-8b-t0 workers.address=10.0.0.1:6379     # on one that runs

A model has a place where its weights are smaller than the memory of a GPU. What a decoder needs beside them
`launch.py probe` tells.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.config import CONFIGS, Config, known, read_as

RAY_KIND = "accelerator_type:"  # the resource by which Ray names a node's GPUs


@dataclass(frozen=True)
class Cluster:
    """A file of configs/cluster. `gpu` is Ray's word for the kind (H100, A100-40G); a price has a source and a date."""

    gpu: str
    gpus: int
    memory_gigabytes: float
    usd_per_gpu_hour: float | None = None
    source: str | None = None
    date: str | None = None


@dataclass(frozen=True)
class Node:
    """A machine: its GPUs, their kind and memory (None where not known), and its cores."""

    gpus: int
    kind: str | None
    gigabytes: float | None
    cores: float


@dataclass(frozen=True)
class Place:
    """How many workers with `model` there is room for. `why` says, of none, what is missing."""

    model: str
    gigabytes: float | None
    workers: int
    why: str | None


def load(name: str) -> Cluster:
    """The entry `name` of configs/cluster. Raises UserError, naming file and key, for one that is wrong."""
    return read_as(Cluster, CONFIGS / "cluster" / f"{name}.yaml")


def of_file(cluster: Cluster) -> list[Node]:
    """A cluster as one machine."""
    return [Node(cluster.gpus, cluster.gpu, cluster.memory_gigabytes, float("inf"))]


def of_ray(nodes: Sequence[Mapping[str, Any]]) -> list[Node]:
    """The live ones of `ray.nodes()`; a GPU's memory is that of its kind in configs/cluster, the least if several."""
    memory: dict[str, float] = {}
    for cluster in map(load, known("cluster")):
        memory[cluster.gpu] = min(cluster.memory_gigabytes, memory.get(cluster.gpu, float("inf")))
    found = []
    for resources in (node["Resources"] for node in nodes if node["Alive"]):
        kind = next((key.removeprefix(RAY_KIND) for key in resources if key.startswith(RAY_KIND)), None)
        found.append(Node(int(resources.get("GPU", 0)), kind, memory.get(kind or ""), resources.get("CPU", 0)))
    return found


def live() -> list[Node]:
    """The machines of the Ray cluster that is connected to."""
    import ray

    return of_ray(ray.nodes())  # type: ignore[no-untyped-call]


def places(config: Config, models: Sequence[str], nodes: Sequence[Node]) -> list[Place]:
    """Where the models may be, each on its own."""
    return [_place(name, (config.model[name].get("size") or {}).get("gigabytes"), config, nodes) for name in models]


def _place(model: str, gigabytes: float | None, config: Config, nodes: Sequence[Node]) -> Place:
    if config.workers.device == "cpu":
        threads = config.workers.threads
        room = sum(int(min(node.cores, 1e9)) // threads for node in nodes)
        return Place(model, gigabytes, room, None if room else f"no machine has the {threads} cores of workers.threads")
    fitting = sum(node.gpus for node in nodes if (gigabytes or 0) < (node.gigabytes or float("inf")))
    if fitting:
        return Place(model, gigabytes, fitting, None)
    largest = max((node.gigabytes or 0 for node in nodes if node.gpus), default=0)
    why = f"{gigabytes:g} GB of weights, GPUs of {largest:g} GB" if largest else "a GPU is needed, there is none"
    return Place(model, gigabytes, 0, why)


def described(nodes: Sequence[Node]) -> str:
    """`8 × H200 (141 GB), 2 × a GPU of unknown kind`, or "no GPU"."""
    counts: Counter[tuple[str | None, float | None]] = Counter()
    for node in nodes:
        counts[node.kind, node.gigabytes] += node.gpus
    kinds = [
        f"{number} × {kind or 'a GPU of unknown kind'}{f' ({memory:g} GB)' if memory else ''}"
        for (kind, memory), number in counts.items()
        if number
    ]
    return ", ".join(kinds) or "no GPU"


def lines(config: Config, found: Sequence[Place]) -> Iterator[str]:
    """What has no place, and where fewer workers have one than are asked for."""
    for place in found:
        if place.why:
            yield f"{place.model} can never be placed: {place.why}"
        elif isinstance(config.workers.count, int) and place.workers < config.workers.count:
            yield f"{place.model}: {config.workers.count} workers asked for, {place.workers} have room"
