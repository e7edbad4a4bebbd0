"""Collects draft-free traces on several processes, a safetensors shard each, for training an order model."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from spot.decoder import Settings
from spot.training.traces import Trace, collect, load_traces, save_traces
from workers.worker import Worker
from workers.work import ModelSpec

SHARD = 50  # prompts


def collect_traces(model: ModelSpec, prompts: list[str], gen_length: int, folder: Path, processes: int) -> list[Trace]:
    """The traces of `prompts` (user turns), in order. Shards already in `folder` are not collected again."""
    folder.mkdir(parents=True, exist_ok=True)
    shards = [prompts[first : first + SHARD] for first in range(0, len(prompts), SHARD)]
    paths = [folder / f"{index:05d}.safetensors" for index in range(len(shards))]
    missing = [(path, shard) for path, shard in zip(paths, shards, strict=True) if not path.exists()]
    with ProcessPoolExecutor(
        processes, get_context("spawn"), initializer=_start, initargs=(model, gen_length)
    ) as pool:
        for done, _ in enumerate(pool.map(_collect_shard, *zip(*missing, strict=True)) if missing else (), start=1):
            print(f"traces: {done}/{len(missing)} shards", flush=True)
    return [trace for path in paths for trace in load_traces(path)]


_worker: Worker
_settings: Settings


def _start(model: ModelSpec, gen_length: int) -> None:
    global _worker, _settings
    _worker, _settings = Worker(model), Settings(gen_length)


def _collect_shard(path: Path, prompts: list[str]) -> None:
    partial_path = path.with_suffix(".partial")
    traces = collect(_worker.target, [_worker.prompt_ids(prompt) for prompt in prompts], _settings)
    save_traces(traces, partial_path)
    partial_path.rename(path)
