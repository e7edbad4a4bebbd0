"""The machines of a cluster, and how many workers each has room for. design.md §5.

Arithmetic, and the two questions to Ray that it needs: which nodes are alive, and which the autoscaler may start.
"""

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from orchestrator.config import Workers

Machine = Mapping[str, float]  # its resources, as Ray names them: CPU, GPU, accelerator_type:A100
LAUNCHED = Path("~/ray_bootstrap_config.yaml")  # on Kubernetes, clusters/kuberay/cluster.yaml puts one there
ANY_NUMBER = 10_000  # of machines, where the autoscaler knows no bound


def bundle(workers: Workers) -> dict[str, float]:
    """What one worker takes of a machine. Several on a GPU take an equal share each."""
    return {"CPU": workers.threads, **({"GPU": 1 / workers.per_gpu} if workers.device == "cuda" else {})}


def places(machine: Machine, workers: Workers) -> int:
    """How many workers a machine has room for: none has a part of one GPU and a part of another."""
    by_core = int(machine.get("CPU", 0)) // workers.threads
    return min(by_core, int(machine.get("GPU", 0)) * workers.per_gpu) if workers.device == "cuda" else by_core


def kind(machine: Machine) -> str:
    """Ray's name for its accelerators, "" if there are none."""
    return next((name.partition(":")[2] for name in machine if name.startswith("accelerator_type:")), "")


class Fleet:
    """Which worker has its place on which node."""

    def __init__(self, workers: Workers) -> None:
        self._workers, self._numbers = workers, count()
        self._nodes: dict[int, str] = {}

    def node(self, worker: int) -> str:
        """The node's id."""
        return self._nodes[worker]

    def update(self, nodes: Mapping[str, Machine]) -> tuple[dict[int, str], list[int]]:
        """Given the live nodes by id: the workers that join, with their kinds, and those that leave.

        They fill one node after the other, up to `workers.count`; a number is never used twice.
        """
        gone = [worker for worker, node in self._nodes.items() if node not in nodes]
        for worker in gone:
            del self._nodes[worker]
        came = {}
        for node, machine in nodes.items():
            free = places(machine, self._workers) - sum(held == node for held in self._nodes.values())
            wanted = self._workers.count - len(self._nodes) if isinstance(self._workers.count, int) else free
            for _ in range(min(free, wanted)):
                worker = next(self._numbers)
                self._nodes[worker], came[worker] = node, kind(machine)
        return came, gone


def live_nodes() -> dict[str, Machine]:
    """The resources of the cluster's live nodes by id; those that are about to be taken away are none."""
    import ray

    draining = ray._private.state.state.get_draining_nodes()
    return {
        node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"] and node["NodeID"] not in draining
    }


def startable(workers: Workers) -> list[Machine]:
    """The machines that the cluster's autoscaler may start, the live ones of its kinds included; none without one."""
    if workers.address is None:
        return []
    import ray

    config: Any = ray._private.state.state.get_cluster_config()
    if config is None:
        return _launched()
    found: list[Machine] = []
    for group in config.node_group_configs:
        found += [dict(group.resources)] * (group.max_count if group.max_count >= 0 else ANY_NUMBER)
    return found


def _launched() -> list[Machine]:
    """By the file that `ray up` leaves on a head node, whose autoscaler reports to nobody what it may start."""
    file = LAUNCHED.expanduser()
    config = yaml.safe_load(file.read_text()) if file.is_file() else {}
    kinds = config.get("available_node_types", {})
    return [
        machine
        for name, kind in kinds.items()
        if name != config["head_node_type"]
        for machine in [kind["resources"]] * kind.get("max_workers", 0)
    ]
