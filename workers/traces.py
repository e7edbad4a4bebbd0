"""Collects draft-free traces on several processes, a safetensors shard each, and trains an order model on them."""

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

import torch

from spot.decoder import Settings
from spot.order_model import save_order_model
from spot.training.order import OrderSettings, accuracy, calibrate, train_order_model
from spot.training.traces import Trace, collect, load_traces, save_traces
from workers.tasks import Row
from workers.work import ModelSpec
from workers.worker import Worker

SHARD = 50  # prompts
HELD_OUT = 10  # one prompt in ten


def train_drafter(
    model: ModelSpec, task: str, rows: Sequence[Row], gen_length: int, settings: OrderSettings, out: Path
) -> Iterator[str]:
    """Trace, train, calibrate, write `out`; yields lines of progress and, last, the held-out accuracy.

    Shards are kept beside `out` until it is written, so that an interrupted collection goes on where it stopped.
    """
    prompts = [row.prompt for row in rows]
    asked = hashlib.sha256(repr((model.revision, gen_length, prompts)).encode()).hexdigest()[:16]
    folder = out.with_suffix(f".traces-{asked}")
    split = max(1, len(rows) // HELD_OUT)
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(cores)
    yield from _collect_all(model, prompts[:split], gen_length, folder / "held-out", cores)
    yield from _collect_all(model, prompts[split:], gen_length, folder / "train", cores)
    held_out, traces = _load_all(folder / "held-out"), _load_all(folder / "train")
    yield f"{len(traces)} blocks to train on, {len(held_out)} held out"
    order = train_order_model(traces, settings, lambda line: print(line, flush=True))
    calibrate(order, held_out)
    found = accuracy(order, held_out)
    made_of = {"model": model.name, "revision": model.revision, "task": task, "prompts": len(rows)}
    save_order_model(order, out, {**made_of, "settings": asdict(settings), "held_out_accuracy": found})
    shutil.rmtree(folder)
    yield from accuracy_table(found)


def accuracy_table(found: dict[str, list[float]]) -> Iterator[str]:
    """Next-commit accuracy by number of hypothetical commits, in percent."""
    yield "held-out next-commit accuracy, % by number of hypothetical commits"
    yield f"{'':18}" + "".join(f"{depth:6}" for depth in range(len(found["order_model"])))
    for name, shares in found.items():
        yield f"{name:18}" + "".join(f"{100 * share:6.1f}" for share in shares)


def _collect_all(model: ModelSpec, prompts: list[str], gen_length: int, folder: Path, cores: int) -> Iterator[str]:
    folder.mkdir(parents=True, exist_ok=True)
    shards = [(folder / f"{i:05d}.safetensors", prompts[i : i + SHARD]) for i in range(0, len(prompts), SHARD)]
    missing = [(path, shard) for path, shard in shards if not path.exists()]
    if not missing:
        return
    with ProcessPoolExecutor(cores, get_context("spawn"), initializer=_start, initargs=(model, gen_length)) as pool:
        for done, _ in enumerate(pool.map(_collect_shard, *zip(*missing, strict=True)), start=1):
            yield f"{folder.name} traces: {done}/{len(missing)} shards of {SHARD} prompts"


def _load_all(folder: Path) -> list[Trace]:
    return [trace for path in sorted(folder.glob("*.safetensors")) for trace in load_traces(path)]


_worker: Worker
_settings: Settings


def _start(model: ModelSpec, gen_length: int) -> None:
    global _worker, _settings
    _worker, _settings = Worker(model), Settings(gen_length)


def _collect_shard(path: Path, prompts: list[str]) -> None:
    traces = collect(_worker.target, [_worker.prompt_ids(prompt) for prompt in prompts], _settings)
    save_traces(traces, path.with_suffix(".partial"))
    path.with_suffix(".partial").rename(path)
