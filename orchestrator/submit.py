"""Sweeps that need this machine no longer: a Ray job, whose driver runs on the cluster's head node.

    python launch.py submit my-grid.yaml store=s3://my-bucket/sweeps --address http://HEAD:8265
    python launch.py logs my-grid          # follow it; Ctrl-C ends the looking, not the sweep
    python launch.py stop my-grid          # as Ctrl-C does with `run`; `submit` again goes on

Code, configs and assets travel with the job, and the checkpoints of the grid's drafters; tests, data, targets' weights,
results and keys stay here. Nothing of this machine's environment does: the cluster has credentials of its own. `status`
and `report` read the store, not the job.
"""

import os
import platform
import shlex
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit
from zipfile import ZipFile

from orchestrator.config import COMMAND_LINE, ROOT, Config, Source, find_grid
from orchestrator.errors import UserError
from orchestrator.executors import CONNECT_SECONDS, one_line
from orchestrator.grid import points

LEFT_HERE = ("/tests", "/benchmarks", "/docs", "/runs", "/data", "/.git", "/.ci", "/.venv", "/venv", "/*.egg-info")
SECRETS = (".env", ".env.*", "*.pem", "*.key", ".netrc", ".aws", "credentials*.json")
CACHES = ("__pycache__", ".*_cache", ".hypothesis")
POLL_SECONDS = 0.5
STOP_SECONDS = "60"  # that a stopped driver has for what is in flight (`workers.grace` is less)


def connect(address: str) -> Any:
    """A client of the jobs of the cluster at `address`, its dashboard's. UserError where none answers."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(COMMAND_LINE, "--address", f"{address!r}: http://HEAD:8265, Ray's dashboard, expected")
    from ray.job_submission import JobSubmissionClient

    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname, port), CONNECT_SECONDS).close()
        return JobSubmissionClient(address)
    except Exception as error:  # refused, no Ray behind it, a token wanted
        remedy = "forward the port first (ray dashboard CLUSTER.yaml, or kubectl port-forward svc/HEAD-SERVICE 8265)"
        raise UserError(COMMAND_LINE, "--address", f"no Ray at {address} ({one_line(error)}); {remedy}") from None


def check_versions(client: Any) -> None:
    """Raise UserError unless the cluster has this machine's Ray, and its Python but for the last number."""
    import ray

    answer = client._do_request("GET", "/api/v0/cluster_metadata")  # the client has no method for it
    theirs = answer.json()["data"]
    pairs = {
        "Ray": (ray.__version__, theirs["rayVersion"]),
        "Python": (_minor(platform.python_version()), _minor(theirs["pythonVersion"])),
    }
    for what, (here, there) in pairs.items():
        if here != there:
            wrong = f"{what} {here} here, {there} on the cluster; install {what} {there} here, or {here} there"
            raise UserError(COMMAND_LINE, "--address", wrong)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def submit(client: Any, grid: str, config: Config, source: Source, overrides: Sequence[str]) -> str:
    """Start the sweep of `grid` on the cluster, and return the job's id. UserError if it is at work there already."""
    file = find_grid(grid)
    assert file is not None  # it was loaded
    if not file.resolve().is_relative_to(ROOT):
        raise UserError(str(file), "", f"a grid that is shipped lies in the project, {ROOT}; copy it to configs/grid")
    if "://" not in config.store and not Path(config.store).is_absolute():
        wrong = f"{config.store!r} would be lost with the job; s3://BUCKET/PREFIX, or the head node's own /FOLDER"
        raise source.error("store", f"{wrong}, expected")
    if (config.mlflow or "").startswith("sqlite:///") and not (config.mlflow or "").startswith("sqlite:////"):
        wrong = f"{config.mlflow!r} would be lost with the job; the address of a server (clusters/mlflow.sh), or null"
        raise source.error("mlflow", f"{wrong}, expected")
    if job := _running(client, config.name):
        wrong = f"{config.name} is at work on the cluster as {job.submission_id}; follow it with: launch.py logs"
        raise UserError(COMMAND_LINE, "submit", wrong)
    asked = [str(file.resolve().relative_to(ROOT)), *overrides]
    if not any(text.startswith("workers.address=") for text in overrides):
        asked.append("workers.address=auto")
    try:
        with TemporaryDirectory() as folder:
            started: str = client.submit_job(
                entrypoint=shlex.join(["bash", "clusters/driver.sh", config.name, *asked]),
                submission_id=f"{config.name}-{time.strftime('%Y%m%d-%H%M%S')}",
                metadata={"sweep": config.name, "store": config.store},
                runtime_env={
                    "working_dir": str(pack(config, source, Path(folder))),
                    "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": STOP_SECONDS},
                },
            )
    except (RuntimeError, ValueError, OSError) as error:  # no agent yet, a lost connection
        wrong = f"the cluster takes no job ({one_line(error)}); one that has just started does so in a minute"
        raise UserError(COMMAND_LINE, "--address", wrong) from None
    return started


def pack(config: Config, source: Source, folder: Path) -> Path:
    """A zip in `folder` of what travels. UserError for a file of the grid that does not, and for more than Ray takes.

    It is packed here, as Ray would leave out the drafters' checkpoints: .gitignore has them, and nothing overrules it.
    """
    from ray._private.ray_constants import DASHBOARD_CLIENT_MAX_SIZE as MOST
    from ray._private.runtime_env.packaging import create_package

    package = folder / "project.zip"
    create_package(str(ROOT), package, include_gitignore=True, excludes=[*LEFT_HERE, *SECRETS, *CACHES])
    with ZipFile(package, "a", strict_timestamps=False) as archive:
        for name in _checkpoints(config, source):
            if name not in archive.namelist():
                archive.write(ROOT / name, name)
        _refuse_left_behind(config, source, archive.namelist())
        largest = max(archive.infolist(), key=lambda member: member.file_size)
    if (size := package.stat().st_size) >= MOST:
        of = f"the largest file is {largest.filename}, {largest.file_size / 2**20:.0f} MiB"
        raise UserError(COMMAND_LINE, "submit", f"{size / 2**20:.0f} MiB to ship; Ray takes {MOST >> 20}; {of}")
    return package


def _checkpoints(config: Config, source: Source) -> Iterator[str]:
    """Those of the grid's drafters that lie in the project, by their names there. UserError for one that is not there.

    One with an absolute path, or on S3, is the cluster's to read.
    """
    try:
        combinations, _ = points(config)
    except ValueError as error:
        raise source.error("exclude", str(error).removeprefix("exclude: ")) from None
    for model, drafter in dict.fromkeys((point.model, point.drafter) for point in combinations):
        checkpoint = config.drafter[drafter].get("checkpoint")
        if not isinstance(checkpoint, str) or _is_elsewhere(checkpoint):
            continue
        name = os.path.normpath(checkpoint.replace("{model}", model))
        if name.startswith("..") or not (ROOT / name).is_file():
            wrong = f"no file {name} in the project to ship; an absolute path on shared storage, or s3://BUCKET/FILE,"
            raise source.error(f"drafter.{drafter}.checkpoint", f"{wrong} expected")
        yield name


def _refuse_left_behind(config: Config, source: Source, packed: Sequence[str]) -> None:
    """Raise UserError for a target's folder or a task's file that the job would seek in the project, and not find."""
    targets = {f"model.{name}.path": config.model[name].get("path") for name in config.models}
    targets = {key: path for key, path in targets.items() if path and (Path(path).exists() or (ROOT / path).exists())}
    data = {f"task.{name}.{key}": config.task[name].get(key) for name in config.tasks for key in ("path", "shots_path")}
    for key, path in (targets | data).items():
        if not path or _is_elsewhere(path):
            continue
        name = os.path.normpath(path)
        if not any(member == name or member.startswith(f"{name}/") for member in packed):
            s3 = ", or s3://BUCKET/PREFIX," if key in targets else ""
            raise source.error(
                key, f"{path} does not travel with the job; an absolute path on shared storage{s3} expected"
            )


def _is_elsewhere(path: str) -> bool:
    return "://" in path or Path(path).is_absolute()


def find(client: Any, name: str) -> Any:
    """The newest job of the sweep `name`. UserError if there is none."""
    jobs = _jobs(client)
    found = [job for job in jobs if job.metadata["sweep"] == name]
    if not found:
        known = ", ".join(sorted({job.metadata["sweep"] for job in jobs})) or "none"
        raise UserError(COMMAND_LINE, name, f"no such sweep was submitted to this cluster; submitted: {known}")
    return found[-1]


def follow(client: Any, job: Any, say: Callable[[str], None]) -> None:
    """Pass on what the job says, from its beginning to its end."""
    import asyncio

    async def tail() -> None:
        async for text in client.tail_job_logs(job.submission_id):
            say(text)

    asyncio.run(tail())


def stop(client: Any, job: Any) -> str:
    """Have the driver stop, wait until it has, and return how the job ended."""
    client.stop_job(job.submission_id)
    while (how := ended(client, job)) is None:
        time.sleep(POLL_SECONDS)
    return how


def ended(client: Any, job: Any) -> str | None:
    """How the job ended, None while it has not."""
    status = client.get_job_status(job.submission_id)
    return str(status.value) if status.is_terminal() else None


def _running(client: Any, name: str) -> Any | None:
    return next((job for job in _jobs(client) if job.metadata["sweep"] == name and not job.status.is_terminal()), None)


def _jobs(client: Any) -> list[Any]:
    """The cluster's sweeps, oldest first."""
    jobs = [job for job in client.list_jobs() if "sweep" in (job.metadata or {})]
    return sorted(jobs, key=lambda job: job.start_time or 0)
