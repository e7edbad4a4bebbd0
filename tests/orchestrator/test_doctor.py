"""`launch.py doctor`: with each thing broken in turn its line, and no other, turns and says what to do."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from launch import main
from orchestrator import doctor
from orchestrator.config import ROOT, load

pytest_plugins = ["tests.s3"]
NAMES = ["driver", "torch", "GPU", "Ray", "store", "MLflow", "hub", "sandbox", "disk", "memory"]


@pytest.fixture(autouse=True)
def sound(monkeypatch, tmp_path):
    """A machine without a GPU on which nothing is wrong, whatever this one is like."""
    monkeypatch.setattr("workers.sandbox.check", lambda mode: None)
    monkeypatch.setattr(doctor, "ROOM_GB", 0.0)
    monkeypatch.setattr(doctor, "FULLEST", 1.0)
    monkeypatch.setattr(doctor, "OBJECT_STORE_BYTES", 0)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


def examined(tmp_path, *overrides):
    """The findings by name; every overridden thing but the store is the quickstart's."""
    config, source = load("quickstart", [f"store={tmp_path / 'runs'}", *overrides])
    return {finding.name: finding for finding in doctor.examine(config, source)}


def turned(found):
    return {name: finding.line for name, finding in found.items() if finding.state == "bad"}


def test_on_a_sound_machine_every_line_is_ok(tmp_path):
    found = examined(tmp_path)
    assert list(found) == NAMES
    assert {finding.state for finding in found.values()} == {"ok"}
    assert not any((tmp_path / "runs").glob("doctor*"))


def test_the_exit_code_says_whether_all_is_well(tmp_path, capsys):
    assert main(["doctor", "quickstart", f"store={tmp_path}"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(NAMES)
    assert main(["doctor", "quickstart", f"store={tmp_path}", "mlflow=http://127.0.0.1:9", "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [finding["name"] for finding in findings if finding["state"] == "bad"] == ["MLflow"]


def test_a_grid_that_cannot_be_is_refused_before_anything_is_looked_at(capsys):
    assert main(["doctor", "quickstart", "limt=3"]) == 2
    assert "limt" in capsys.readouterr().err


def test_a_store_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    lines = turned(examined(tmp_path, f"store={tmp_path / 'file' / 'runs'}", "mlflow=null"))
    assert list(lines) == ["store"]
    assert "Not a directory; make it writable, or choose another: store=FOLDER" in lines["store"]


@pytest.mark.parametrize(("heeds", "lines"), [(True, []), (False, ["store"])])
def test_a_store_on_s3_has_to_let_one_writer_win(tmp_path, monkeypatch, heeds, lines):
    from workers.store import S3Store

    files = {}
    monkeypatch.setattr(S3Store, "put", lambda self, name, data: files.update({name: data}))
    monkeypatch.setattr(S3Store, "get", lambda self, name: files[name])
    monkeypatch.setattr(S3Store, "create", lambda self, name, data: None if heeds and name in files else "etag")
    monkeypatch.setattr(S3Store, "clear", lambda self: files.clear())
    found = turned(examined(tmp_path, "store=s3://bucket/sweeps", "mlflow=null"))
    assert list(found) == lines
    assert all("two drivers could share a sweep" in line for line in found.values())


@pytest.mark.parametrize(
    ("fault", "where", "said"),
    [
        (None, "s3://bucket/sweeps", None),
        (None, "s3://nowhere/sweeps", "NoSuchBucket"),
        ("wrong", "s3://bucket/sweeps", "InvalidAccessKeyId"),
        ("expired", "s3://bucket/sweeps", "the credentials have expired; renew them"),
    ],
)
def test_a_store_on_s3_that_cannot_be_written_says_what_s3_says(fault, where, said, tmp_path, s3):
    s3.fault = lambda method, path: fault
    lines = turned(examined(tmp_path, f"store={where}", "mlflow=null"))
    assert list(lines) == (["store"] if said else [])
    for line in lines.values():
        assert said in line and "clusters/aws/account.yaml has the rights that a role needs" in line


@pytest.mark.parametrize(("file", "said"), [("file/mlflow.db", "file is no folder"), ("folder", "folder is a folder")])
def test_an_mlflow_database_that_no_sweep_could_make(file, said, tmp_path):
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "folder").mkdir()
    lines = turned(examined(tmp_path, f"mlflow=sqlite:///{tmp_path / file}"))
    assert list(lines) == ["MLflow"]
    assert f"{said}; choose another, mlflow=sqlite:///FILE" in lines["MLflow"]
    assert not turned(examined(tmp_path, f"mlflow=sqlite:///{tmp_path / 'folder/deeper/mlflow.db'}"))


def test_an_mlflow_that_does_not_answer(tmp_path):
    lines = turned(examined(tmp_path, "mlflow=http://127.0.0.1:9"))
    assert list(lines) == ["MLflow"]
    assert "http://127.0.0.1:9 does not answer" in lines["MLflow"]
    assert "start it (clusters/mlflow.sh)" in lines["MLflow"]


def test_a_database_without_its_driver_or_its_server(tmp_path):
    lines = turned(examined(tmp_path, "mlflow=postgresql://someone@127.0.0.1:9/mlflow"))
    assert list(lines) == ["MLflow"]
    assert "someone" not in lines["MLflow"]


def test_no_sandbox_matters_to_a_grid_that_runs_programs_alone(tmp_path, monkeypatch):
    def missing(mode):
        raise ValueError(f"sandbox: no {mode} was found; install bubblewrap 0.8 or later")

    monkeypatch.setattr("workers.sandbox.check", missing)
    assert examined(tmp_path)["sandbox"].line == (
        "note sandbox  no bubblewrap was found; install bubblewrap 0.8 or later"
    )
    mbpp = ["tasks=[mbpp]", f"task.mbpp.path={ROOT / 'tests/data/mbpp.jsonl'}"]
    assert list(turned(examined(tmp_path, *mbpp))) == ["sandbox"]


def test_a_model_and_data_that_are_neither_here_nor_to_be_had(tmp_path, monkeypatch):
    monkeypatch.setattr("workers.models._cached_repos", lambda cache: {})
    monkeypatch.setattr(doctor, "_data_cached", lambda name: False)
    lines = turned(examined(tmp_path, "models=[sdar-8b]"))
    assert list(lines) == ["hub"]
    assert "model sdar-8b (" in lines["hub"]
    assert "is not here, and the hub gives none" in lines["hub"]
    assert "HF_HOME" in lines["hub"]
    lines = turned(examined(tmp_path, "tasks=[gsm8k]"))
    assert "task gsm8k (openai/gsm8k)" in lines["hub"]
    assert not turned(examined(tmp_path, "tasks=[gsm8k]", "task.gsm8k.path=tests/data/gsm8k.jsonl"))


@pytest.mark.parametrize(("attribute", "value"), [("ROOM_GB", 1e9), ("FULLEST", 0.0)])
def test_a_full_disk(tmp_path, monkeypatch, attribute, value):
    monkeypatch.setattr(doctor, attribute, value)
    lines = turned(examined(tmp_path))
    assert list(lines) == ["disk"]
    assert "make room, or use another disk: store=FOLDER" in lines["disk"]


def test_a_disk_that_is_kept_from_us_is_as_full_as_ray_takes_it_for(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "FULLEST", 0.95)
    monkeypatch.setattr("shutil.disk_usage", lambda place: (100 * 10**9, 10 * 10**9, 4 * 10**9))
    assert "4.0 GB free, 96% full" in turned(examined(tmp_path))["disk"]


def test_weights_that_are_still_to_come_need_room(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "_uncached", lambda config: list(config.model))
    monkeypatch.setattr("huggingface_hub.HfApi.repo_info", lambda *_, **__: None)
    lines = turned(examined(tmp_path, "models=[sdar-8b]", "model.sdar-8b.size.gigabytes=1e9"))
    assert list(lines) == ["disk"]
    assert "HF_HOME=FOLDER" in lines["disk"]


def test_too_little_shared_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "OBJECT_STORE_BYTES", 10**18)
    lines = turned(examined(tmp_path))
    assert list(lines) == ["memory"]
    assert "docker run --shm-size=1g" in lines["memory"]


def test_without_a_gpu_what_a_gpu_needs_turns_line_by_line(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.version.cuda", None)
    lines = turned(examined(tmp_path, "workers.device=cuda"))
    assert list(lines) == ["driver", "torch", "GPU", "Ray"]
    assert "install NVIDIA's driver" in lines["driver"]
    assert "built for the CPU alone; pip install --force-reinstall torch==" in lines["torch"]
    assert "workers.device=cpu decodes on the CPU" in lines["Ray"]


def test_a_driver_that_is_broken_says_what_nvidia_smi_says(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n")
    smi.chmod(0o755)
    monkeypatch.setattr("torch.version.cuda", "13.0")
    lines = turned(examined(tmp_path, "workers.device=cuda"))
    assert "version mismatch; load or install NVIDIA's driver again" in lines["driver"]
    assert "torch" not in lines
    smi.write_text("#!/bin/sh\necho '580.65, NVIDIA H200, 143771 MiB'\n")
    assert examined(tmp_path)["driver"].line == "ok   driver   580.65, 1 GPU(s): NVIDIA H200, 143771 MiB"


def test_a_gpu_that_does_not_multiply_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.version.cuda", "13.0")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda index: "NVIDIA H200")
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda index: (140 * 10**9, 150 * 10**9))
    monkeypatch.setattr("torch.cuda.synchronize", lambda index: None)
    made = torch.ones
    monkeypatch.setattr("torch.ones", lambda *shape, device: made(*shape))
    assert examined(tmp_path, "workers.device=cuda")["GPU"].line == (
        "ok   GPU      NVIDIA H200, 140 GB free; NVIDIA H200, 140 GB free"
    )

    def lost(*shape, device):
        if device == "cuda:1":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return made(*shape)

    monkeypatch.setattr("torch.ones", lost)
    line = turned(examined(tmp_path, "workers.device=cuda"))["GPU"]
    assert "NVIDIA H200 (number 1) does not multiply (RuntimeError: CUDA error" in line
    assert "else reset it, or leave it out" in line


def test_a_cluster_that_does_not_answer(tmp_path):
    lines = turned(examined(tmp_path, "workers.address=127.0.0.1:9"))
    assert list(lines) == ["Ray"]
    assert "ray start --head" in lines["Ray"]


def test_a_package_that_does_not_work_is_a_line_too(tmp_path, monkeypatch):
    def broken(where):
        raise ImportError("libcudart.so.13: cannot open shared object file")

    monkeypatch.setattr(doctor, "store", broken)
    assert (
        "libcudart.so.13: cannot open shared object file; install the project anew"
        in (turned(examined(tmp_path))["store"])
    )


@pytest.mark.service("bubblewrap")
def test_really_a_read_only_store_no_bwrap_no_memory_no_disk_and_no_server(tmp_path):
    """In a container that is so poor: read-only but for a tiny /tmp, with 1 MB of shared memory."""
    bwrap = shutil.which("bwrap", path=os.defpath)
    poor = "--ro-bind / / --proc /proc --dev /dev --size 1000000 --tmpfs /dev/shm --size 1000000 --tmpfs /tmp"
    here = [word for place in {str(ROOT), sys.prefix} for word in ("--ro-bind", place, place)]  # may be under /tmp
    grid = ["tasks=[mbpp]", "task.mbpp.path=tests/data/mbpp.jsonl", "store=runs/nowhere", "mlflow=http://127.0.0.1:9"]
    ran = subprocess.run(
        [bwrap, *poor.split(), *here, sys.executable, "launch.py", "doctor", "quickstart", *grid],
        cwd=ROOT,
        env={"PATH": str(Path(sys.executable).parent), "HOME": "/tmp", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    bad = {line.split()[1]: line for line in ran.stdout.splitlines() if line.startswith("bad")}
    assert (ran.returncode, list(bad)) == (1, ["store", "MLflow", "sandbox", "disk", "memory"]), ran.stderr
    assert "Read-only file system" in bad["store"]
    assert "no bwrap was found; install bubblewrap" in bad["sandbox"]
    assert "/tmp: 0.0 GB free" in bad["disk"]
