"""One file a model family. Checkpoints are local folders or hub ids; the authors' code is never run."""

import hashlib
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from transformers import PreTrainedModel

from spot.targets.checkpoint import check, find_shards, load_weights, read_config
from spot.targets.protocol import Target, TargetConfig

FAMILIES = ("dream", "llada", "llada2", "sdar")
FILES = ["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model"]
_PROMPT_FILES = ("*token*.json", "vocab.*", "merges.txt", "*.jinja", "*.model")  # what decides how a prompt is read


class Unreachable(ValueError):
    """A hub id that may be right: the hub did not answer, and the cache has no such checkpoint."""


def load(
    family: str,
    folder: Path,
    block_length: int,
    dtype: torch.dtype,
    device: str,
    mask_id: int | None = None,
    stop_ids: tuple[int, ...] | None = None,
) -> Target:
    """A checkpoint folder as a target. `mask_id` and `stop_ids` None are the checkpoint's own.

    Raises ValueError, in one line, for a checkpoint that is not the family's, is damaged, or does not fit in memory.
    """
    module = _module(family)
    published = read_config(folder, module.MODEL_TYPE)
    model = _skeleton(module, folder, published)
    config = _target_config(module, folder, published, block_length, mask_id, stop_ids, model.config.vocab_size)
    check(folder, model, parts := module.parts(model))
    load_weights(folder, model, parts, dtype, device)
    return module.target(model, config)


def exact(family: str) -> bool:
    """Whether the family's prefix cache is exact, so that drafts may cross a block's edge."""
    return _module(family).BLOCK_CAUSAL


def resolve(
    family: str,
    path: str,
    revision: str | None,
    mask_id: int | None = None,
    stop_ids: tuple[int, ...] | None = None,
) -> str:
    """What a checkpoint is: the sha256 of a local folder's configuration, weights and tokenizer, or the hub's commit.

    Loads no weights. Raises ValueError, in one line, for an unknown family, a checkpoint that is not there (Unreachable
    where it may be on the hub), or a local one whose configuration or tensors are not the family's, or that has no such
    tokens.
    """
    _check_family(family)
    if Path(path).is_dir():
        return _folder_revision(family, Path(path), mask_id, stop_ids)
    if path.count("/") != 1 or path.startswith((".", "/")):
        raise ValueError(f"path: no folder {path}, and it is not a hub id either")
    return _hub_commit(path, revision)


def check_folder(
    family: str, folder: Path, mask_id: int | None = None, stop_ids: tuple[int, ...] | None = None
) -> None:
    """Raises what `resolve` raises for a local checkpoint. Of the shards, reads the headers alone."""
    _check_family(family)
    module = _module(family)
    if not (folder / "config.json").is_file() or not find_shards(folder):
        raise ValueError(f"path: {folder} has no config.json with model*.safetensors beside it")
    try:
        published = read_config(folder, module.MODEL_TYPE)
        model = _skeleton(module, folder, published)
        check(folder, model, module.parts(model))
        _target_config(module, folder, published, 1, mask_id, stop_ids, model.config.vocab_size)
    except ValueError as wrong:
        about_entry = str(wrong).startswith(("mask_id: ", "stop_ids: "))
        raise ValueError(str(wrong) if about_entry else f"path: {wrong}") from None


def fetch(path: str, revision: str) -> Path:
    """The local folder of a checkpoint; a hub id is downloaded at its resolved commit, or found in the cache."""
    if Path(path).is_dir():
        return Path(path)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(path, revision=revision, allow_patterns=FILES))


def _check_family(family: str) -> None:
    if family not in FAMILIES:
        raise ValueError(f"family: no family {family!r}; there are {', '.join(FAMILIES)}")


def _module(family: str) -> ModuleType:
    return import_module(f"spot.targets.{family}")


def _skeleton(module: ModuleType, folder: Path, published: dict[str, Any]) -> PreTrainedModel:
    """The stock model, on the meta device."""
    try:
        with torch.device("meta"):
            return module.build(published)
    except KeyError as missing:
        raise ValueError(f"{folder / 'config.json'}: no {missing.args[0]}") from None
    except Exception as wrong:  # transformers raises what it likes over a value of a wrong type
        reason = " ".join(str(wrong).split())
        raise ValueError(f"{folder / 'config.json'}: {reason}") from None


def _target_config(
    module: ModuleType,
    folder: Path,
    published: dict[str, Any],
    block_length: int,
    mask_id: int | None,
    stop_ids: tuple[int, ...] | None,
    vocabulary: int,
) -> TargetConfig:
    file, theirs = folder / "config.json", published.get("mask_token_id")
    mask = next(token for token in (mask_id, theirs, module.MASK_ID) if token is not None)
    whose = "mask_id" if mask_id is not None else f"{file}: mask_token_id" if theirs is not None else f"{file}: mask id"
    stops = published.get("eos_token_id") if stop_ids is None else stop_ids
    if stops is None or stops == []:
        raise ValueError(f"{file}: no eos_token_id; stop_ids of the model's entry must say it")
    stops = list(stops) if isinstance(stops, list | tuple) else [stops]
    stop = f"{file}: eos_token_id" if stop_ids is None else "stop_ids"
    for name, token in ((whose, mask), *((stop, token) for token in stops)):
        if type(token) is not int or not 0 <= token < vocabulary:
            raise ValueError(f"{name}: {token!r} is no token of a vocab_size {vocabulary}")
    return TargetConfig(block_length, mask, frozenset(stops), module.BLOCK_CAUSAL)


def _folder_revision(
    family: str, folder: Path, mask_id: int | None = None, stop_ids: tuple[int, ...] | None = None
) -> str:
    check_folder(family, folder, mask_id, stop_ids)
    digest = hashlib.sha256()
    prompts = sorted({file for pattern in _PROMPT_FILES for file in folder.glob(pattern)})
    for file in [folder / "config.json", *find_shards(folder), *prompts]:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:16]


def _hub_commit(path: str, revision: str | None) -> str:
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import OfflineModeIsEnabled, RepositoryNotFoundError, RevisionNotFoundError

    try:
        return HfApi().model_info(path, revision=revision).sha
    except Exception as online:  # the hub client, the network and the proxy each raise their own
        try:
            return Path(snapshot_download(path, revision=revision, local_files_only=True)).name
        except Exception:
            reason = str(online).splitlines()[0] if str(online) else type(online).__name__
            reason = "offline" if isinstance(online, OfflineModeIsEnabled) else reason
            denied = isinstance(online, RepositoryNotFoundError | RevisionNotFoundError)
            kind = ValueError if denied else Unreachable
            raise kind(f"path: {path} is neither a folder nor to be had from the hub ({reason})") from None
