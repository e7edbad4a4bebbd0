"""Submitting a sweep: what is shipped, what is refused, and a driver that needs this machine no longer."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from launch import main
from orchestrator import submit as jobs
from orchestrator.config import ROOT, load
from orchestrator.errors import UserError
from orchestrator.ledger import Ledger

GRID = "configs/grid/quickstart.yaml"


class FakeClient:
    """The part of Ray's client that is used, over jobs in a list."""

    def __init__(self, ray=None, python=None, submitted=(), there=None):
        import platform

        import ray as here

        self.versions = {"rayVersion": ray or here.__version__, "pythonVersion": python or platform.python_version()}
        self.jobs = [job(*one) for one in submitted]
        self.asked, self.there = None, there

    def _do_request(self, method, path):
        assert (method, path) == ("GET", "/api/v0/cluster_metadata")
        return SimpleNamespace(json=lambda: {"data": self.versions}, raise_for_status=lambda: None)

    def list_jobs(self):
        return self.jobs

    def submit_job(self, **asked):
        """The working folder is a package by Ray's own rule, and unpacked by Ray's own function."""
        from ray._private.runtime_env.packaging import unzip_package
        from ray._private.runtime_env.working_dir import upload_working_dir_if_needed

        def unpack(package, excludes, is_file):
            unzip_package(package, self.there, remove_top_level_directory=False, unlink_zip=False)

        if self.there is not None:
            upload_working_dir_if_needed(dict(asked["runtime_env"]), include_gitignore=True, upload_fn=unpack)
        self.asked = asked
        return asked["submission_id"]


def job(sweep, start, terminal):
    status = SimpleNamespace(is_terminal=lambda: terminal)
    metadata = {"sweep": sweep} if sweep else None
    return SimpleNamespace(metadata=metadata, start_time=start, status=status, submission_id=f"{sweep}-{start}")


def submitted(client, *overrides, grid="quickstart"):
    config, source = load(grid, ["mlflow=null", *overrides])
    return jobs.submit(client, grid, config, source, overrides)


# ---- what is asked of the cluster


def test_the_driver_is_asked_to_run_the_same_grid_on_the_cluster_it_is_on():
    client = FakeClient()
    name = submitted(client, "store=s3://bucket/sweeps", "budgets=[0, 8]")
    assert name.startswith("quickstart-2")
    assert client.asked["entrypoint"] == (
        f"bash clusters/driver.sh quickstart {GRID} store=s3://bucket/sweeps 'budgets=[0, 8]' workers.address=auto"
    )
    assert client.asked["metadata"] == {"sweep": "quickstart", "store": "s3://bucket/sweeps"}


def test_an_address_of_ones_own_is_left_alone():
    client = FakeClient()
    submitted(client, "store=/sweeps", "workers.address=10.0.0.1:6379")
    assert client.asked["entrypoint"].count("workers.address") == 1


def test_nothing_of_this_machines_environment_is_sent(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "mine")
    client = FakeClient()
    submitted(client, "store=/sweeps")
    assert list(client.asked["runtime_env"]["env_vars"]) == ["RAY_JOB_STOP_WAIT_TIME_S"]
    assert "mine" not in str(client.asked)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with this one's .gitignore, grids and little else; `ship` gives the names of what reaches a cluster."""

    class Project:
        folder, there = tmp_path / "project", tmp_path / "there"
        always = (".gitignore", "launch.py", "assets/tiny-sdar/model.safetensors")

        def write(self, *names):
            for name in names:
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                (self.folder / name).write_text(f"content of {name}")

        def ship(self, grid, *overrides):
            submitted(FakeClient(there=self.there), "store=/sweeps", *overrides, grid=str(self.folder / grid))
            found = {str(path.relative_to(self.there)) for path in self.there.rglob("*") if path.is_file()}
            return found - {str(path.relative_to(ROOT)) for path in (ROOT / "configs").rglob("*")} - set(self.always)

    shutil.copytree(ROOT / "configs", Project.folder / "configs")
    shutil.copy(ROOT / ".gitignore", Project.folder)
    monkeypatch.setattr(jobs, "ROOT", Project.folder)
    made = Project()
    made.write(*Project.always[1:])
    return made


BUNDLED = "assets/tiny-spot.safetensors"


def test_code_configs_and_assets_are_shipped_and_nothing_else(project):
    """By the rules of Ray's own packaging."""
    shipped = ["configs/grid/a.md", BUNDLED, "workers/data/x.json", "clusters/a.sh"]
    left = ["tests/test_a.py", ".git/HEAD", ".venv/bin/python", "runs/a/sweep.yaml", "data/a.jsonl", ".env", "a.pem"]
    left += ["spot/__pycache__/a.pyc", ".mypy_cache/a", "configs/.env.local", "spot_sweeps.egg-info/PKG-INFO"]
    left += ["venv/bin/python", "assets/tiny-sdar/training/a", "checkpoints/other/spot.safetensors"]
    project.write(*shipped, *left)
    assert project.ship(GRID) == set(shipped)
    assert all((project.there / name).is_file() for name in project.always)


def test_the_checkpoints_of_the_grids_drafters_travel_and_no_others(project):
    """.gitignore has the folder, which Ray heeds: a paper sweep would end in "no file checkpoints/..."."""
    wanted = {"checkpoints/sdar-8b/spot.safetensors", "checkpoints/sdar-8b/spiffy.json"}
    others = [
        "checkpoints/sdar-4b/spot.safetensors",
        "checkpoints/sdar-8b/model.safetensors",
        "checkpoints/sdar-8b/a.pt",
    ]
    project.write(*wanted, *others)
    assert project.ship("configs/grid/paper/sdar-8b-t0.yaml") == wanted
    for name in wanted:
        assert (project.there / name).read_text() == f"content of {name}"


def test_checkpoints_travel_through_a_link_to_another_disk(project, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "mine").write_text("weights")
    (project.folder / "checkpoints").symlink_to(tmp_path / "disk")
    assert "checkpoints/mine" in project.ship(GRID, "drafters=[spot]", "drafter.spot.checkpoint=./checkpoints/mine")


@pytest.mark.parametrize("where", ["s3://bucket/{model}.safetensors", "/shared/{model}.safetensors"])
def test_a_checkpoint_elsewhere_is_the_clusters_to_read(where, project):
    assert project.ship(GRID, f"drafter.spot.checkpoint={where}") == set()


def test_drafters_that_no_cell_of_the_grid_has_need_no_checkpoint(project):
    project.write(BUNDLED)
    assert project.ship(GRID, "drafters=[spot,spiffy]", "exclude=[{drafters: spiffy}]") == {BUNDLED}


# ---- what is refused


def test_a_store_that_would_go_with_the_job_is_refused():
    with pytest.raises(UserError, match="store: 'runs' would be lost with the job; s3://BUCKET/PREFIX"):
        submitted(FakeClient())


def test_an_mlflow_that_would_go_with_the_job_is_refused():
    with pytest.raises(UserError, match="would be lost with the job"):
        submitted(FakeClient(), "store=s3://bucket/sweeps", "mlflow=sqlite:///runs/mlflow.db")
    assert submitted(FakeClient(), "store=/sweeps", "mlflow=sqlite:////sweeps/mlflow.db")


def test_a_grid_outside_of_what_is_shipped_is_refused(tmp_path):
    shutil.copy(ROOT / GRID, tmp_path / "mine.yaml")
    with pytest.raises(UserError, match="copy it to configs/grid"):
        submitted(FakeClient(), "store=/sweeps", grid=str(tmp_path / "mine.yaml"))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "drafter.spot.checkpoint=checkpoints/{model}/a",
            "no file checkpoints/tiny-sdar/a in the project to ship; an ",
        ),
        ("drafter.spot.checkpoint=../mine.safetensors", "no file ../mine.safetensors in the project to ship; an "),
        ("model.tiny-sdar.path=checkpoints/weights", "checkpoints/weights does not travel with the job; an "),
        ("task.gsm8k.path=data/a.jsonl", "data/a.jsonl does not travel with the job; an "),
        ("task.gsm8k.shots_path=a.jsonl", "a.jsonl does not travel with the job; an "),
    ],
)
def test_a_file_of_the_grid_that_would_not_be_there_is_refused(override, said, project):
    project.write(BUNDLED, "checkpoints/weights/model.safetensors", "data/a.jsonl", "../mine.safetensors")
    with pytest.raises(UserError) as refused:
        project.ship(GRID, "tasks=[arith,gsm8k]", override)
    line = str(refused.value)
    assert f"{override.partition('=')[0]}: {said}absolute path on shared storage" in line and "\n" not in line
    assert ("s3://BUCKET/" in line) == (not override.startswith("task."))


def test_more_than_ray_takes_is_refused_by_the_name_of_the_largest(project, monkeypatch):
    monkeypatch.setattr("ray._private.ray_constants.DASHBOARD_CLIENT_MAX_SIZE", 3 << 20)
    (project.folder / "mine.safetensors").write_bytes(bytes(4 << 20))
    with pytest.raises(UserError, match=r"4 MiB to ship; Ray takes 3; the largest file is mine\.safetensors, 4 MiB"):
        project.ship(GRID, "drafter.spot.checkpoint=mine.safetensors")


def test_a_cluster_that_takes_no_job_yet_is_one_line():
    class Early(FakeClient):
        def submit_job(self, **asked):
            raise RuntimeError("Request failed with status code 500: No available agent to submit job.")

    with pytest.raises(UserError, match=r"takes no job .*No available agent.* in a minute"):
        submitted(Early(), "store=/sweeps")


def test_a_sweep_that_is_at_work_is_not_started_twice():
    busy = FakeClient(submitted=[("quickstart", 1, False), ("other", 2, False)])
    with pytest.raises(UserError, match="quickstart is at work on the cluster as quickstart-1"):
        submitted(busy, "store=/sweeps")
    assert submitted(FakeClient(submitted=[("quickstart", 1, True)]), "store=/sweeps")


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ({"ray": "2.55.1"}, r"Ray 2\.\d+\.\d+ here, 2\.55\.1 on the cluster; install Ray 2\.55\.1 here, or"),
        ({"python": "3.9.1"}, r"Python 3\.\d+ here, 3\.9 on the cluster; install Python 3\.9 here, or"),
    ],
)
def test_other_versions_on_the_cluster_are_refused_in_one_line(versions, said):
    with pytest.raises(UserError, match=said):
        jobs.check_versions(FakeClient(**versions))
    jobs.check_versions(FakeClient())


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:8265", "http://HEAD:8265, Ray's dashboard, expected"),
        ("http://127.0.0.1:9", "no Ray at http://127.0.0.1:9 (ConnectionRefusedError"),
    ],
)
def test_an_address_without_a_cluster_is_one_line_and_exit_code_2(address, said, capsys):
    for verb in (["submit", "quickstart", "store=/sweeps"], ["logs", "quickstart"], ["stop", "quickstart"]):
        assert main([*verb, "--address", address]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line


def test_the_newest_job_of_a_sweep_is_the_one_that_is_meant():
    client = FakeClient(submitted=[("a", 3, True), ("a", 5, False), ("b", 9, True), (None, 10, False)])
    assert jobs.find(client, "a").submission_id == "a-5"
    with pytest.raises(UserError, match="submitted: a, b"):
        jobs.find(client, "c")


# ---- the driver's script, with a python that does as it is told


@pytest.fixture
def head(tmp_path):
    """A head node's home and a project in it, with the scripts alone: no venv, so that no real Ray is ever called."""

    class Head:
        home, project, bin = tmp_path, tmp_path / "job", tmp_path / "bin"
        kept = tmp_path / ".spot-sweeps"

        def python(self, script, name="python"):
            self.bin.mkdir(exist_ok=True)
            (self.bin / name).write_text(f"#!/bin/sh\n{script}\n")
            (self.bin / name).chmod(0o755)

        def script(self, name, *arguments):
            env = {"PATH": f"{self.bin}:{os.defpath}", "HOME": str(self.home), "USER": "me"}
            command = ["bash", f"clusters/{name}", *arguments]
            return subprocess.Popen(command, cwd=self.project, env=env, stdout=subprocess.PIPE, text=True)

    for script in (ROOT / "clusters").glob("*.sh"):
        (tmp_path / "job" / "clusters").mkdir(parents=True, exist_ok=True)
        shutil.copy(script, tmp_path / "job" / "clusters")
    (tmp_path / "job" / "launch.py").write_text("the code as it was shipped")
    return Head()


def test_code_and_command_of_a_sweep_are_kept_while_its_driver_runs(head):
    head.python('cat ~/.spot-sweeps/mine/launch.py ~/.spot-sweeps/mine/asked; echo; echo "$@"; exit 3')
    driver = head.script("driver.sh", "mine", "grid.yaml", "budgets=[0, 8]")
    said = driver.communicate()[0]
    assert (
        said == "the code as it was shippedgrid.yaml budgets=\\[0\\,\\ 8\\] \nlaunch.py run grid.yaml budgets=[0, 8]\n"
    )
    assert driver.returncode == 3
    assert not (head.kept / "mine").exists()


def test_a_driver_that_is_asked_to_stop_may_take_its_time(head):
    head.python('trap "echo stopped; exit 143" TERM; echo ready; while :; do sleep 0.05; done')
    driver = head.script("driver.sh", "mine", "grid.yaml")
    assert driver.stdout.readline() == "ready\n"
    children = Path(f"/proc/{driver.pid}/task/{driver.pid}/children").read_text().split()
    for pid in (driver.pid, *map(int, children)):  # as Ray does
        os.kill(pid, signal.SIGTERM)
    assert driver.communicate()[0] == "stopped\n"
    assert driver.returncode == 143
    assert not (head.kept / "mine").exists()


def test_a_head_that_starts_anew_submits_what_it_left_unfinished(head):
    head.python("cat >/dev/null", "crontab")
    head.python('[ "$1" = start ] && echo "ray $*"', "ray")
    for sweep in ("a", "b"):
        (head.kept / sweep).mkdir(parents=True)
        (head.kept / sweep / "asked").write_text(f"{sweep}.yaml budgets=\\[0\\,\\ 8\\] ")
    head.python('echo "$(basename "$PWD")": "$@"; exit 2')
    started = head.script("head.sh")
    assert started.communicate()[0].splitlines() == [
        "ray start --head --port=6379 --dashboard-host=127.0.0.1",
        "a: launch.py submit a.yaml budgets=[0, 8]",
        "b: launch.py submit b.yaml budgets=[0, 8]",
    ]
    assert started.returncode == 0


# ---- really


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """The dashboard of a cluster of three nodes on this machine, with a core each.

    Each has a folder of its own, as machines have: a node unpacks what is shipped over what lies in its folder.
    """
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:  # short: sockets
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("RAY_TMPDIR", folder)
        monkeypatch.setenv("RAY_worker_niceness", "0")  # as clusters/ has it; a nice worker starves on a busy machine
        monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        one = {"num_cpus": 1, "object_store_memory": 100 << 20, "dashboard_agent_listen_port": 0}
        nodes = Cluster(shutdown_at_exit=True)
        try:
            nodes.add_node(**one, include_dashboard=True, dashboard_port=_free_port())
            for number in (1, 2):
                nodes.add_node(**one, temp_dir=f"{folder}/{number}")
            yield f"http://{nodes.webui_url}"
        finally:
            nodes.shutdown()


@pytest.mark.service("minutes")
@pytest.mark.ray
def test_a_submitted_sweep_outlives_who_submitted_it_and_is_stopped_and_resumed(cluster, tmp_path, capfd):
    there, store = ["--address", cluster], f"store={tmp_path}"
    axes = ["drafters=[spot]", "budgets=[0,8]", "temperatures=[0]", "task.arith.size=20000", "decode.gen_length=32"]
    grid = ["workers.count=2", *axes, "mlflow=null", store]
    command = [sys.executable, "launch.py", "submit", "quickstart", *grid, "limit=20000", *there]
    client = jobs.connect(cluster)
    _wait(lambda: subprocess.run(command, cwd=ROOT).returncode == 0)  # a head that has just started takes no job yet

    def decoded():
        job = jobs.find(client, "quickstart")
        assert jobs.ended(client, job) is None, client.get_job_logs(job.submission_id)
        return Ledger(tmp_path / "quickstart").results()

    _wait(decoded)  # and the process that submitted it is long gone
    assert main(["status", "quickstart", store]) == 0
    assert " samples, 0 failed" in (said := capfd.readouterr().out)
    assert "a driver is at work" in said
    assert main(["submit", "quickstart", *grid, *there]) == 2
    assert "is at work on the cluster" in capfd.readouterr().err
    assert main(["stop", "quickstart", *there]) == 0
    assert "STOPPED" in capfd.readouterr().out
    assert not (tmp_path / ".spot-sweeps" / "quickstart").exists()
    assert main(["logs", "quickstart", *there]) == 1
    assert "stopping after what is in flight" in capfd.readouterr().out

    rows = len(Ledger(tmp_path / "quickstart").results()) // 2 + 4
    assert main(["submit", "quickstart", *grid, f"limit={rows}", *there]) == 0
    assert main(["logs", "quickstart", *there]) == 0
    followed = capfd.readouterr()
    assert "report:" in followed.out
    assert "SUCCEEDED" in followed.err
    assert main(["status", "quickstart", store]) == 0
    assert f"{2 * rows}/{2 * rows} samples, 0 failed" in capfd.readouterr().out


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait(condition, seconds=600.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.2)
