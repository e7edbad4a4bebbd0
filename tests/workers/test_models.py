"""What the catalogue's listing says of the checkpoints on this machine."""

from pathlib import Path

from workers.models import held

COMMIT, OTHER = "a" * 40, "b" * 40


def put(cache: Path, repo: str, commit: str, **files: int) -> None:
    """A revision in the cache; `files` are sizes in bytes by stem, of weights and of config.json."""
    folder = cache / f"models--{repo.replace('/', '--')}"
    snapshot = folder / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text(commit)
    for stem, size in files.items():
        with (snapshot / ("config.json" if stem == "config" else f"{stem}.safetensors")).open("wb") as file:
            file.truncate(size)


def where(cache: Path, path: str, revision: str | None = None, size: dict | None = None) -> str:
    return held({"m": {"path": path, "revision": revision, "size": size}}, cache)["m"]


def test_a_folder_is_a_folder_wherever_one_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert where(tmp_path, "assets/tiny-sdar") == where(tmp_path, str(tmp_path)) == "folder"


def test_a_checkpoint_in_the_cache_is_there_with_the_size_of_its_weights(tmp_path):
    put(tmp_path, "someone/model", COMMIT, one=10**9, two=5 * 10**8, config=10**8)
    assert {where(tmp_path, "someone/model", revision) for revision in (None, COMMIT, "main")} == {"cached (1.5 GB)"}


def test_half_a_download_is_said_to_be_half(tmp_path):
    put(tmp_path, "someone/model", COMMIT, one=10**9)
    assert where(tmp_path, "someone/model", size={"gigabytes": 3.9}) == "partly cached (1.0 of 3.9 GB)"
    assert where(tmp_path, "someone/model", size={"gigabytes": 1.02}) == "cached (1.0 GB)"


def test_another_revision_or_a_config_alone_is_no_checkpoint(tmp_path):
    put(tmp_path, "someone/model", COMMIT, one=10**9)
    put(tmp_path, "someone/planned", COMMIT, config=100)
    assert where(tmp_path, "someone/model", OTHER) == "not cached"
    assert where(tmp_path, "someone/planned") == where(tmp_path, "someone/else") == "not cached"


def test_without_a_cache_nothing_is_cached(tmp_path):
    assert where(tmp_path / "none", "someone/model") == "not cached"
