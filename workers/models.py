"""Which of the catalogue's checkpoints are on this machine: folders, and what the hub's cache holds. No network."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import CachedRepoInfo, CacheNotFound, scan_cache_dir

from workers.weights import is_s3
from workers.worker import locate

PARTLY = 0.95  # of the published size; published sizes are rounded


def held(entries: Mapping[str, Mapping[str, Any]], cache: Path | None = None) -> dict[str, str]:
    """By model: `folder`, `cached (16.4 GB)`, `partly cached (4.9 of 16.4 GB)`, `not cached` or `on S3`.

    `cache` is the hub's own folder by default.
    """
    repos = _cached_repos(cache)
    return {name: _held(str(entry["path"]), entry["revision"], entry["size"], repos) for name, entry in entries.items()}


def _held(path: str, revision: str | None, size: Mapping[str, Any] | None, repos: Mapping[str, CachedRepoInfo]) -> str:
    if is_s3(path):
        return "on S3"
    if Path(locate(path)).is_dir():
        return "folder"
    there = _weights(repos[path], revision) / 1e9 if path in repos else 0.0
    whole = (size or {}).get("gigabytes", 0.0)
    if there and there < PARTLY * whole:
        return f"partly cached ({there:.1f} of {whole:.1f} GB)"
    return f"cached ({there:.1f} GB)" if there else "not cached"


def _weights(repo: CachedRepoInfo, revision: str | None) -> int:
    """The bytes of the weights at `revision`, a commit, branch or tag, or of the largest revision there is."""
    return max(
        (
            sum(file.size_on_disk for file in held.files if file.file_name.endswith(".safetensors"))
            for held in repo.revisions
            if revision is None or revision == held.commit_hash or revision in held.refs
        ),
        default=0,
    )


def _cached_repos(cache: Path | None) -> dict[str, CachedRepoInfo]:
    try:
        found = scan_cache_dir(cache).repos
    except (CacheNotFound, ValueError):  # no folder, or a file
        return {}
    return {repo.repo_id: repo for repo in found if repo.repo_type == "model"}
