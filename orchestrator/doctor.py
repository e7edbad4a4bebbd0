"""Whether a grid would run here: what it needs of this machine, a line each, and what to do about what is wrong.

    python launch.py doctor                                                    # the quickstart's needs
    python launch.py doctor my-grid.yaml store=s3://my-bucket/sweeps workers.device=cuda

Decodes nothing and starts no Ray; a cluster at `workers.address` is connected to. Looks at this machine alone: on a
cluster, run it on the head node and, with `workers.device=cuda` and no address, on a worker. design.md §5.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from orchestrator.config import Config, Source
from orchestrator.errors import UserError
from orchestrator.executors import OBJECT_STORE_BYTES, check_room, one_line

GB = 1e9
ROOM_GB = 2.0  # that a sweep's ledger and report, or Ray's logs, may take
FULLEST = 0.95  # of a disk, all but what is free for us: Ray starts nothing more beyond (local_fs_capacity_threshold)
ANSWER_SECONDS = 10.0
SHARED_MEMORY = Path("/dev/shm")
SECRET = re.compile(r"(?<=://)[^/@\s]+@")  # user:password@ of an address


@dataclass(frozen=True)
class Finding:
    """One line. `state` is "ok", "bad", or "note" for what is wrong but of no use to this grid."""

    name: str
    state: str
    said: str

    @property
    def line(self) -> str:
        """The finding as it is printed."""
        return f"{self.state:5}{self.name:9}{self.said}"


class Wrong(Exception):
    """What is wrong, and the remedy."""

    def __init__(self, wrong: str, remedy: str) -> None:
        super().__init__(f"{wrong.rstrip('.')}; {remedy}")


def examine(config: Config, source: Source) -> Iterator[Finding]:
    """A finding a check, in the order in which one rests on another."""
    needs_gpu = config.workers.device == "cuda" and config.workers.address is None
    programs = [name for name, entry in config.task.items() if entry.get("sandbox")]
    yield _finding("driver", needs_gpu, lambda: driver(needs_gpu))
    yield _finding("torch", needs_gpu, lambda: torch_build(needs_gpu))
    yield _finding("GPU", needs_gpu, lambda: gpus(needs_gpu))
    yield _finding("Ray", True, lambda: ray_room(config, source))
    yield _finding("store", True, lambda: store(config.store))
    yield _finding("MLflow", True, lambda: mlflow(config.mlflow))
    yield _finding("hub", True, lambda: hub(config))
    yield _finding("sandbox", bool(programs), lambda: sandbox(config.task, programs))
    yield _finding("disk", True, lambda: disk(config))
    yield _finding("memory", config.workers.address is None, shared_memory)


def _finding(name: str, matters: bool, check: Callable[[], str]) -> Finding:
    try:
        state, said = "ok", check()
    except (Wrong, UserError) as error:
        state, said = "bad" if matters else "note", str(error)
    except Exception as error:  # the border: whatever a broken installation raises
        state, said = "bad", f"{one_line(error)}; install the project anew, with: clusters/setup.sh"
    return Finding(name, state, SECRET.sub("", " ".join(said.split())))


# ---- the device


def driver(needed: bool) -> str:
    """What nvidia-smi says."""
    asked = ["nvidia-smi", "--query-gpu=driver_version,name,memory.total", "--format=csv,noheader"]
    try:
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=30)
    except FileNotFoundError:
        if not needed:
            return "none, and none is needed here"
        raise Wrong("no nvidia-smi", "install NVIDIA's driver, or give the container its GPUs (--gpus all)") from None
    lines = answer.stdout.strip().splitlines()
    if answer.returncode or not lines:
        wrong = (answer.stderr or answer.stdout).strip() or "nvidia-smi lists no GPU"
        raise Wrong(wrong, "load or install NVIDIA's driver again, or give the container its GPUs (--gpus all)")
    return f"{lines[0].partition(',')[0]}, {len(lines)} GPU(s): {lines[0].partition(',')[2].strip()}"


def torch_build(needed: bool) -> str:
    """The build, which has CUDA or has not."""
    import torch

    if torch.version.cuda:
        return f"{torch.__version__}, built for CUDA {torch.version.cuda}"
    if not needed:
        return f"{torch.__version__}, built for the CPU"
    release = torch.__version__.partition("+")[0]
    remedy = f"pip install --force-reinstall torch=={release} from an index that has the CUDA build"
    raise Wrong(f"{torch.__version__} is built for the CPU alone", remedy)


def gpus(needed: bool) -> str:
    """That every GPU multiplies."""
    import torch

    if not needed and not torch.cuda.is_available():
        return "none, and none is needed here"
    if not torch.cuda.is_available():
        remedy = "see the lines above; the driver must be as new as torch's CUDA, and CUDA_VISIBLE_DEVICES not empty"
        raise Wrong("torch sees no GPU", remedy)
    found = []
    for index in range(torch.cuda.device_count()):
        name, (free, _) = torch.cuda.get_device_name(index), torch.cuda.mem_get_info(index)
        try:
            ones = torch.ones(64, 64, device=f"cuda:{index}")
            torch.cuda.synchronize(index)
            assert float((ones @ ones).sum()) == 64**3
        except Exception as error:
            wrong = f"{name} (number {index}) does not multiply ({one_line(error)})"
            raise Wrong(wrong, "if another process fills it, end that; else reset it, or leave it out") from None
        found.append(f"{name}, {free / GB:.0f} GB free")
    return "; ".join(found)


def ray_room(config: Config, source: Source) -> str:
    """That there is room for the workers, on the cluster or here."""
    import ray

    count = check_room(config, source)
    where = f"at {config.workers.address}" if config.workers.address else "started with the sweep"
    return f"{ray.__version__}, {where}; room for {count} worker(s)"


# ---- what is written to and read from


def store(where: str) -> str:
    """That a file of one's own can be written, read and deleted; on S3, that of two writers of one name one wins."""
    from workers.store import S3Store, open_store

    content = b"launch.py doctor"
    try:
        mine = open_store(f"{where}/doctor-{uuid4().hex}")
        mine.put("probe", content)
        same = mine.get("probe") == content
        twice = isinstance(mine, S3Store) and mine.create("probe", content) is not None
        mine.clear()
    except (OSError, ValueError) as error:
        if where.startswith("s3://"):
            remedy = "clusters/aws/account.yaml has the rights that a role needs"
        else:
            remedy = "make it writable, or choose another: store=FOLDER or store=s3://BUCKET/PREFIX"
        raise Wrong(f"{where}: {getattr(error, 'strerror', None) or error}", remedy) from None
    if twice:
        raise Wrong(f"{where}: If-None-Match is not heeded, so two drivers could share a sweep", "use another server")
    if not same:
        raise Wrong(f"{where}: what is read is not what was written", "choose another store")
    return f"{where}: written, read and deleted"


def mlflow(uri: str | None) -> str:
    """That the server, or the database, answers. A SQLite file is made by the first sweep, and its folder."""
    if uri is None:
        return "none is kept (mlflow: null)"
    if uri.startswith("sqlite:///"):
        return _sqlite(uri)
    try:
        (_server if uri.startswith("http") else _database)(uri)
    except ModuleNotFoundError as error:
        raise Wrong(f"{uri}: {error}", f"pip install {error.name}, the database's driver") from None
    except Exception as error:  # whatever a client or a database driver raises
        remedy = "start it (clusters/mlflow.sh), or sweep on and bring it up later with: launch.py sync NAME"
        raise Wrong(f"{uri} does not answer ({one_line(error)})", remedy) from None
    return f"{uri} answers"


def _sqlite(uri: str) -> str:
    file = Path(uri.removeprefix("sqlite:///")).absolute()
    there, remedy = _there(file), "choose another, mlflow=sqlite:///FILE, or null for none"
    if there.is_dir() == (there == file):
        raise Wrong(f"{uri}: {there} is {'a folder' if there == file else 'no folder'}", remedy)
    if not os.access(there, os.W_OK):
        raise Wrong(f"{uri}: {there} is read-only", remedy)
    return f"{uri}, {'there' if there == file else 'made by the first sweep'}"


def _there(path: Path) -> Path:
    """`path`, or the nearest above it that exists."""
    return next(place for place in (path, *path.parents) if place.exists())


def _server(uri: str) -> None:
    import requests

    requests.get(f"{uri.rstrip('/')}/health", timeout=ANSWER_SECONDS).raise_for_status()


def _database(uri: str) -> None:
    from sqlalchemy import create_engine

    create_engine(uri).connect().close()


def hub(config: Config) -> str:
    """That what is not on this machine can be had from the hub, with the rights that it takes."""
    missing = list(_missing(config))
    if not missing:
        return "nothing to fetch: models and data are on this machine"
    from huggingface_hub import HfApi

    for what, kind, name, revision in missing:
        try:
            HfApi().repo_info(name, repo_type=kind, revision=revision, timeout=ANSWER_SECONDS)
        except Exception as error:  # offline, unknown, gated, a proxy's word
            remedy = (
                "hf auth login for a gated one; without a network copy a filled Hugging Face cache here (HF_HOME), "
                "or name a local file or folder: task.NAME.path=FILE, model.NAME.path=FOLDER"
            )
            raise Wrong(f"{what} ({name}) is not here, and the hub gives none ({one_line(error)})", remedy) from None
    return f"answers for what is not here yet: {', '.join(name for _, _, name, _ in missing)}"


def _missing(config: Config) -> Iterator[tuple[str, str, str, str | None]]:
    """What is neither a folder nor cached: (what it is, its kind, its name on the hub, its revision)."""
    for name in _uncached(config):
        yield f"model {name}", "model", config.model[name]["path"], config.model[name].get("revision")
    for name, entry in config.task.items():
        asked = entry.get("hub")
        if asked and not entry.get("path") and not Path(asked).is_dir() and not _data_cached(asked):
            yield f"task {name}", "dataset", asked, entry.get("revision")


def _uncached(config: Config) -> list[str]:
    from workers.models import held
    from workers.weights import is_s3

    hubs = {name: entry for name, entry in config.model.items() if not is_s3(entry["path"])}
    entries = {name: {"revision": None, "size": None, **entry} for name, entry in hubs.items()}
    return [name for name, where in held(entries).items() if where.startswith(("not", "partly"))]


def _data_cached(name: str) -> bool:
    from datasets.config import HF_DATASETS_CACHE

    return (Path(HF_DATASETS_CACHE) / name.replace("/", "___")).is_dir()


# ---- the machine


def sandbox(tasks: Mapping[str, Any], programs: list[str]) -> str:
    """That model-written programs can be shut in, in the way their tasks ask for."""
    from workers.sandbox import check

    modes = sorted({tasks[name]["sandbox"] for name in programs}) or ["bubblewrap"]
    for mode in modes:
        try:
            check(mode)
        except ValueError as error:
            raise Wrong(*str(error).removeprefix("sandbox: ").rsplit("; ", 1)) from None
    return f"{' and '.join(modes)} contain{'s' * (len(modes) == 1)} a program that tries to get out"


def disk(config: Config) -> str:
    """Room for the ledger, for Ray's session and for the weights that are still to come."""
    from huggingface_hub.constants import HF_HUB_CACHE

    weights = sum((config.model[name].get("size") or {}).get("gigabytes", 0.0) for name in _uncached(config))
    places = {} if "://" in config.store else {config.store: (ROOM_GB, "store=FOLDER")}
    places[tempfile.gettempdir()] = (ROOM_GB, "TMPDIR=FOLDER, RAY_TMPDIR=FOLDER")
    if weights:
        places[HF_HUB_CACHE] = (weights, "HF_HOME=FOLDER")
    said = []
    for place, (least, remedy) in places.items():
        total, _, free = shutil.disk_usage(_there(Path(place).absolute()))
        full = 1 - free / total
        said.append(f"{place}: {free / GB:.1f} GB free, {full:.0%} full")
        if free < least * GB or full > FULLEST:
            wrong = f"{said[-1]}; {least:.0f} GB wanted, and Ray wants it at most {FULLEST:.0%} full"
            raise Wrong(wrong, f"make room, or use another disk: {remedy}")
    return ", ".join(said)


def shared_memory() -> str:
    """Room for Ray's object store. A container has 64 MB unless it is given more."""
    if not SHARED_MEMORY.is_dir():
        return "no /dev/shm on this system"
    free = shutil.disk_usage(SHARED_MEMORY).free
    if free < OBJECT_STORE_BYTES:
        wrong = f"{SHARED_MEMORY}: {free / 1e6:.0f} MB free, {OBJECT_STORE_BYTES / 1e6:.0f} MB wanted by Ray"
        raise Wrong(wrong, "docker run --shm-size=1g; on Kubernetes, an emptyDir of medium Memory there")
    pages, size = os.sysconf("SC_AVPHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return f"{pages * size / GB:.0f} GB free; {SHARED_MEMORY}: {free / GB:.1f} GB free"
