"""One file a model family. Checkpoints are local folders or hub ids; the authors' code is never run."""

import hashlib
import json
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import torch

from spot.targets.protocol import Target

_FILES = ["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model"]


def families() -> list[str]:
    return sorted({m.name for m in iter_modules(__path__)} - {"protocol"})


def load(family: str, folder: Path, block_length: int, dtype: torch.dtype, device: str) -> Target:
    return import_module(f"spot.targets.{family}").load(folder, block_length, dtype, device)


def resolve(family: str, path: str, revision: str | None) -> str:
    """What a checkpoint is: the sha256 of a local folder's configuration and weights, or the hub's commit.

    Loads no weights. Raises ValueError, in one line, for an unknown family or a checkpoint that is not there.
    """
    if family not in families():
        raise ValueError(f"family: no family {family!r}; there are {', '.join(families())}")
    if Path(path).is_dir():
        return _folder_sha(Path(path))
    if path.count("/") != 1 or path.startswith((".", "/")):
        raise ValueError(f"path: no folder {path}, and it is not a hub id either")
    return _hub_commit(path, revision)


def fetch(path: str, revision: str) -> Path:
    """The local folder of a checkpoint; a hub id is downloaded at its resolved commit, or found in the cache."""
    if Path(path).is_dir():
        return Path(path)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(path, revision=revision, allow_patterns=_FILES))


def _folder_sha(folder: Path) -> str:
    files = [folder / "config.json", *sorted(folder.glob("model*.safetensors"))]
    if not files[0].is_file() or len(files) < 2:
        raise ValueError(f"path: {folder} has no config.json with model*.safetensors beside it")
    json.loads(files[0].read_text())
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:16]


def _hub_commit(path: str, revision: str | None) -> str:
    from huggingface_hub import HfApi, snapshot_download

    try:
        return HfApi().model_info(path, revision=revision).sha
    except Exception as online:  # the hub client, the network and the proxy each raise their own
        try:
            return Path(snapshot_download(path, revision=revision, local_files_only=True)).name
        except Exception:
            reason = str(online).splitlines()[0] if str(online) else type(online).__name__
            raise ValueError(f"path: {path} is neither a folder nor to be had from the hub ({reason})") from None
