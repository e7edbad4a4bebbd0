"""Published checkpoints: a configuration, and safetensors shards whose tensors all have a place in a stock model.

Names and shapes are checked against the shards' headers before anything is loaded; then each tensor goes straight to
the device and into its place, so that host memory never holds more than the model, in the dtype asked for, and a shard.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import PreTrainedModel

INDEX = "model.safetensors.index.json"
DTYPES = ("BF16", "F16", "F32", "F64")  # quantised weights need more than their values
_MEMINFO, _CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Part:
    """Where `rows` (from, to) of a published tensor go: to tensor `name` of the stock model, at index `at` of it."""

    name: str
    rows: tuple[int, int | None] = (0, None)
    at: tuple[int | slice, ...] = ()


Parts = Mapping[str, tuple[Part, ...]]
"""The parts of every tensor that a checkpoint has, by its published name."""


def read_config(folder: Path, model_type: str) -> dict[str, Any]:
    """config.json. Raises ValueError where it is none, or that of another architecture."""
    file = folder / "config.json"
    try:
        published = json.loads(file.read_text())
    except ValueError:
        raise ValueError(f"{file}: not JSON") from None
    if not isinstance(published, dict) or published.get("model_type") != model_type:
        found = published.get("model_type") if isinstance(published, dict) else None
        raise ValueError(f"{file}: model_type {found!r}; {model_type!r} expected")
    return published


def expect(published: Mapping[str, Any], **values: Any) -> None:
    """Raises ValueError where a key of config.json is there and has another value than what the family is built for."""
    for key, value in values.items():
        if published.get(key, value) != value:
            raise ValueError(f"{key} {published[key]!r}; only {value!r} is known")


def find_shards(folder: Path) -> list[Path]:
    """The shards that the index names, or all model*.safetensors. Raises ValueError where there are none."""
    index = folder / INDEX
    if index.is_file():
        try:
            names = sorted({str(name) for name in json.loads(index.read_text())["weight_map"].values()})
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(f"{index}: no index of shards") from None
        missing = [name for name in names if not (folder / name).is_file()]  # a link to nowhere is missing too
        if missing:
            raise ValueError(f"{folder}: no shard {missing[0]} ({len(missing)} of {len(names)} missing)")
        return [folder / name for name in names]
    return sorted(folder.glob("model*.safetensors"))


def check(folder: Path, model: PreTrainedModel, parts: Parts) -> None:
    """Raises ValueError naming a tensor that is missing, not expected, there twice or of a wrong shape, or a bad shard.

    `model` is on the meta device. Reads the shards' headers alone.
    """
    found: dict[str, tuple[list[int], Path]] = {}
    for shard in find_shards(folder):
        for name, shape in _shapes(shard):
            if name in found:
                raise ValueError(f"{shard}: tensor {name!r} is in {found[name][1].name} too")
            found[name] = (shape, shard)
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    for problem, names in (("missing", set(parts) - tied - set(found)), ("unexpected", set(found) - set(parts))):
        if names:
            raise ValueError(f"{folder}: {problem} tensor {min(names)!r} ({len(names)} in all)")
    ours = model.state_dict()
    for name, (shape, shard) in found.items():
        if shape != (wanted := _shape(ours, parts[name])):
            raise ValueError(f"{shard}: tensor {name!r} is {shape}; {wanted} expected")


def load_weights(folder: Path, model: PreTrainedModel, parts: Parts, dtype: torch.dtype, device: str) -> None:
    """Move `model` from the meta device to `device` in `dtype`, with the weights of a checkpoint that `check` passed.

    Raises ValueError where memory does not suffice, before anything is loaded.
    """
    model.to(dtype)
    for module in model.modules():
        if hasattr(module, "e_score_correction_bias"):  # a router decides in float32
            module.to(torch.promote_types(dtype, torch.float32))
    _check_memory(folder, model, device)
    model.to_empty(device=device)
    rotary = model.model.rotary_emb
    model.model.rotary_emb = type(rotary)(model.config).to(device)  # its buffers are not in the checkpoint
    if model.config.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    places = model.state_dict()
    for shard in find_shards(folder):
        with safe_open(shard, "pt", device=device) as tensors:
            for name in tensors.keys():  # noqa: SIM118 (no mapping)
                tensor = tensors.get_tensor(name)
                for part in parts[name]:
                    places[part.name][part.at].copy_(tensor[slice(*part.rows)])


def free_bytes(device: str) -> int | None:
    """Memory that a process may still take on `device`; None where the system does not tell."""
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()  # what torch holds of an earlier model is free
        return torch.cuda.mem_get_info(device)[0]
    if not _MEMINFO.exists():
        return None
    found = re.search(r"MemAvailable:\s+(\d+) kB", _MEMINFO.read_text())
    free = [int(found[1]) * 1024] if found else []
    limit, used = _CGROUP / "memory.max", _CGROUP / "memory.current"
    if limit.exists() and (most := limit.read_text().strip()).isdigit():
        free.append(int(most) - int(used.read_text()) + _reclaimable())
    return min(free, default=None)


def _reclaimable() -> int:
    """Bytes of the container's file cache, which the system gives up when asked."""
    found = re.findall(r"^(?:in)?active_file (\d+)", (_CGROUP / "memory.stat").read_text(), re.MULTILINE)
    return sum(map(int, found))


def _check_memory(folder: Path, model: PreTrainedModel, device: str) -> None:
    tensors, free = [*model.parameters(), *model.buffers()], free_bytes(device)
    needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if free is not None and needed > free:
        has = f"{device} has {free / 1e9:.1f} GB free"
        raise ValueError(f"{folder}: {needed / 1e9:.1f} GB of weights in {model.dtype}, and {has}")


def _shapes(shard: Path) -> Iterator[tuple[str, list[int]]]:
    try:
        with safe_open(shard, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (no mapping)
                stored = tensors.get_slice(name)
                if stored.get_dtype() not in DTYPES:
                    raise ValueError(f"{shard}: tensor {name!r} is {stored.get_dtype()}; {', '.join(DTYPES)} expected")
                yield name, stored.get_shape()
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{shard}: truncated or damaged ({error})") from None


def _shape(ours: Mapping[str, Tensor], parts: tuple[Part, ...]) -> list[int]:
    """The shape of a published tensor whose rows are shared out among `parts`."""
    shapes = [list(ours[part.name][part.at].shape) for part in parts]
    return [sum(shape[0] for shape in shapes), *shapes[0][1:]]
