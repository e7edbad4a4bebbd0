"""Checkpoints on `s3://`: fetched once a machine, however many actors ask for them. design.md §5.

    folder = fetch("s3://my-bucket/sdar-8b", revision)

They go to `cache_folder()`, into a folder that bears their revision and is there only when it is whole; one process
fetches, the others wait for its lock. A planner needs the small files and the shards' headers alone (`outline`).
"""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from tempfile import NamedTemporaryFile

from spot.targets import FILES
from workers.store import PARTIAL, S3Path, S3Store, Tag, cache_folder, place


def is_s3(path: str) -> bool:
    return path.startswith("s3://")


def outline(address: str) -> tuple[Path, str]:
    """A folder with the small files of a checkpoint and its shards' headers, holes for tensors; and its revision.

    Downloads no weights. Raises ValueError for an address without a checkpoint, OSError as the store does.
    """
    store, tags = S3Store(_at(address)), _files(address)
    revision = _revision(tags)
    whole = cache_folder() / "weights" / revision
    if whole.is_dir():
        return whole, revision
    with _making(whole.with_name(f"{revision}-outline")) as partial:
        if partial:
            for name, tag in tags.items():
                if name.endswith(".safetensors"):
                    _sketch(store, name, tag.size, partial / name)
                else:
                    store.download(name, partial / name)
    return whole.with_name(f"{revision}-outline"), revision


def _sketch(store: S3Store, name: str, size: int, path: Path) -> None:
    """A shard's header, which begins with its own length, and a hole as long as the rest."""
    length = int.from_bytes(store.start(name, 8), "little")
    with path.open("wb") as file:
        file.write(store.start(name, min(8 + length, size)))
        file.truncate(size)


def fetch(address: str, revision: str) -> Path:
    """The checkpoint at `address` as a folder of this machine.

    Raises ValueError where it is not of `revision` any more, OSError as the store does.
    """
    whole = cache_folder() / "weights" / revision
    with _making(whole) as partial:
        if partial:
            _check(address, revision)
            for name in _files(address):
                S3Store(_at(address)).download(name, partial / name)
                _sync(partial / name)
            _check(address, revision)  # it was not replaced meanwhile
    return whole


def fetch_file(address: str, sha: str | None = None) -> Path:
    """The file at `address`, which has this sha256 (its first 16 digits), if that is given.

    Raises ValueError where it has another one, OSError as the store does.
    """
    at, cache = _at(address), cache_folder() / "drafters"
    if sha and (held := cache / sha / at.name).is_file():
        return held
    cache.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=cache, suffix=PARTIAL) as partial:
        S3Store(at.parent).download(at.name, Path(partial.name))  # which puts another file in its place
        found = hashlib.sha256(Path(partial.name).read_bytes()).hexdigest()[:16]
        if sha not in (None, found):
            raise ValueError(f"{address} has changed since it was planned (sha {sha}, now {found}); restore it")
        with _making(cache / found) as folder:
            if folder:
                shutil.copyfile(partial.name, folder / at.name)
    return cache / found / at.name


def _at(address: str) -> S3Path:
    at = place(address)
    assert isinstance(at, S3Path)
    return at


def _files(address: str) -> dict[str, Tag]:
    """What belongs to the checkpoint at `address`."""
    tags = S3Store(_at(address)).tags()
    found = {name: tag for name, tag in tags.items() if any(fnmatch(name, pattern) for pattern in FILES)}
    if "config.json" not in found or not any(name.endswith(".safetensors") for name in found):
        raise ValueError(f"{address} has no config.json with model*.safetensors beside it")
    return found


def _revision(tags: Mapping[str, Tag]) -> str:
    """By the files' ETags: the same weights in a folder, or uploaded in other parts, have another one."""
    lines = "".join(f"{name} {tag.etag} {tag.size}\n" for name, tag in sorted(tags.items()))
    return hashlib.sha256(lines.encode()).hexdigest()[:16]


def _check(address: str, revision: str) -> None:
    if (now := _revision(_files(address))) != revision:
        raise ValueError(f"{address} has changed since it was planned (revision {revision}, now {now}); restore it")


@contextmanager
def _making(folder: Path) -> Iterator[Path | None]:
    """A new folder that becomes `folder` if all goes well; None where that is there already. One process at a time."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            yield None
            return
        partial = folder.with_name(folder.name + PARTIAL)
        shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
        partial.mkdir()
        try:
            yield partial
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _sync(file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
