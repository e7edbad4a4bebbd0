"""Brings a released order model, a `.pt` of tensors, into a checkpoint of this project.

    python launch.py import-drafter order_model.pt --out spot-8b.safetensors

The names in the paper's own release are not known here, so none are guessed: a tensor is taken for ours by name and
shape, after wrappers and a prefix common to all names are taken off, or by a file that says which is which.
"""

import hashlib
import json
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from spot.order_model import OrderModel, provenance, save_order_model

WRAPPERS = ("state_dict", "model_state_dict", "model")


def import_order_model(path: Path, out: Path, names: Mapping[str, Any]) -> None:
    """Write the order model in `path` to `out`; `names` maps their tensors' names to ours where these differ.

    Only tensors and plain values are unpickled. The header of `out` has the source's sha256 and the plain values it
    carried, those of one of our own files being its header; where these name the rows it was `trained_on`, so does
    `out`. Raises ValueError, in one line that names every tensor without a place, and OSError.
    """
    tensors, carried = _unwrapped(_load(path))
    carried |= _header(path)
    model = OrderModel()
    weights = _renamed(tensors, names)
    _check(weights, model.state_dict())
    model.load_state_dict({ours: tensor for ours, (_, tensor) in weights.items()})
    sha = hashlib.sha256(path.read_bytes()).hexdigest()
    partial = out.with_name(f"{out.name}.partial")
    trained = {"trained_on": rows} if isinstance(rows := carried.get("trained_on"), dict) else {}
    save_order_model(model, partial, {"imported_from": path.name, "sha256": sha, "carried": carried, **trained})
    partial.replace(out)


def _load(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    try:
        with warnings.catch_warnings(action="ignore"):  # what it thinks of a pickle that it then refuses
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a foreign file makes torch raise whatever its bytes lead to
        said = str(error).split(". ")[0].split("\n")[0]
        raise ValueError(f"not a file of tensors and plain values, and nothing else is unpickled ({said})") from None


def _header(path: Path) -> dict[str, Any]:
    """What one of our own files says of its origin; nothing where it is none."""
    try:
        return dict(provenance(path))
    except (SafetensorError, KeyError, TypeError, ValueError):
        return {}


def _unwrapped(loaded: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors by name, and the plain values beside and around them."""
    carried: dict[str, Any] = {}
    while isinstance(loaded, Mapping):
        carried |= {str(key): value for key, value in loaded.items() if _is_plain(value)}
        tensors = {str(key): value for key, value in loaded.items() if isinstance(value, Tensor)}
        if tensors:
            return tensors, carried
        loaded = next((loaded[key] for key in WRAPPERS if key in loaded), None)
    raise ValueError(f"no tensors by name in it, nor under {', '.join(WRAPPERS)}")


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _renamed(tensors: Mapping[str, Tensor], names: Mapping[str, Any]) -> dict[str, tuple[str, Tensor]]:
    """Our name -> (their name, tensor)."""
    absent = [name for name in names if name not in tensors]
    if absent:
        raise ValueError(f"no such tensors in it: {', '.join(absent)}; it has {', '.join(tensors)}")
    prefix = _common_prefix(tensors)
    ours = {name: str(names.get(name, name.removeprefix(prefix))) for name in tensors}
    twice = [name for name, count in Counter(ours.values()).items() if count > 1]
    if twice:
        raise ValueError(f"more than one tensor for {', '.join(twice)}")
    return {ours[name]: (name, tensor) for name, tensor in tensors.items()}


def _common_prefix(names: Iterable[str]) -> str:
    """The leading parts that all dotted names share, `module.model.` for instance."""
    parts = zip(*(name.split(".")[:-1] for name in names), strict=False)
    return "".join(f"{part[0]}." for part in takewhile(lambda part: len(set(part)) == 1, parts))


def _check(weights: Mapping[str, tuple[str, Tensor]], wanted: Mapping[str, Tensor]) -> None:
    unknown = [f"{name} {_shape(tensor)}" for ours, (name, tensor) in weights.items() if ours not in wanted]
    missing = [f"{ours} {_shape(tensor)}" for ours, tensor in wanted.items() if ours not in weights]
    other = [
        f"{name} {_shape(tensor)} for {ours} {_shape(wanted[ours])}"
        for ours, (name, tensor) in weights.items()
        if ours in wanted and tensor.shape != wanted[ours].shape
    ]
    found = {"tensors without a place": unknown, "tensors that are missing": missing, "of another shape": other}
    wrong = [f"{what}: {', '.join(which)}" for what, which in found.items() if which]
    if wrong:
        raise ValueError("; ".join([*wrong, "name them in a file of `theirs: ours` lines, given with --names"]))


def _shape(tensor: Tensor) -> list[int]:
    return list(tensor.shape)
