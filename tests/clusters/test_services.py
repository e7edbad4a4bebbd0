"""The scripts of clusters/ at work: MLflow over a real PostgreSQL and an S3 server, and the installation."""

import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import requests

from orchestrator.config import ROOT
from orchestrator.doctor import mlflow
from tests.conftest import postgres_program


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def postgres(tmp_path_factory):
    """The socket's folder of a PostgreSQL with a database `mlflow`, which knows its users by the socket alone."""
    folder = Path("/tmp") / f"postgres-{os.getpid()}"
    folder.mkdir()
    me, owner = getpass.getuser(), "postgres" if os.getuid() == 0 else getpass.getuser()  # root may run no PostgreSQL
    shutil.chown(folder, owner)

    def run(name, *arguments, **options):
        become = ["runuser", "-u", owner, "--"] if owner != me else []
        return subprocess.Popen([*become, postgres_program(name), *arguments], cwd="/", **options)

    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    data = ["-D", str(folder / "data")]
    assert run("initdb", *data, "--auth=peer", "--no-sync", **quiet).wait() == 0
    server = run("postgres", *data, "-k", str(folder), "-c", "listen_addresses=", "-c", "fsync=off", **quiet)
    try:
        _wait((folder / ".s.PGSQL.5432").exists)
        _wait(lambda: run("pg_isready", "-h", str(folder), **quiet).wait() == 0)
        if owner != me:
            assert run("createuser", "-h", str(folder), me, **quiet).wait() == 0
        assert run("createdb", "-h", str(folder), "--owner", me, "mlflow", **quiet).wait() == 0
        yield folder
    finally:
        run("pg_ctl", "stop", *data, "--mode=immediate", **quiet).wait()
        server.wait(30)
        shutil.rmtree(folder)


@pytest.fixture
def bucket(monkeypatch):
    """An S3 server with one bucket, by the environment."""
    import boto3
    from moto.moto_server.threaded_moto_server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    for name, value in (("ACCESS_KEY_ID", "test"), ("SECRET_ACCESS_KEY", "test"), ("DEFAULT_REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.get_host_and_port()[1]}")
    boto3.client("s3").create_bucket(Bucket="bucket")
    yield "bucket"
    server.stop()


def _wait(condition, seconds=180.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.2)


@pytest.mark.service("postgres")
def test_mlflow_keeps_runs_in_postgres_and_artifacts_on_s3_without_a_password(postgres, bucket, tmp_path, monkeypatch):
    import boto3
    from mlflow import MlflowClient

    port = free_port()
    env = os.environ | {"PGHOST": str(postgres), "MLFLOW_PORT": str(port)}
    with (tmp_path / "log").open("w") as log:
        command = ["bash", str(ROOT / "clusters/mlflow.sh"), f"s3://{bucket}/mlflow"]
        server = subprocess.Popen(command, env=env, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True)
    uri = f"http://127.0.0.1:{port}"

    def healthy():
        assert server.poll() is None, (tmp_path / "log").read_text()
        try:
            return requests.get(f"{uri}/health", timeout=5).ok
        except requests.ConnectionError:
            return False

    try:
        _wait(healthy)
        assert mlflow(uri) == f"{uri} answers"
        client = MlflowClient(uri)
        run = client.create_run(client.create_experiment("spot")).info.run_id
        client.log_metric(run, "nfe", 20.9)
        client.log_text(run, "the report", "report.html")
        assert client.get_run(run).data.metrics == {"nfe": 20.9}
    finally:
        os.killpg(server.pid, 15)
        server.wait(30)
    keys = [entry["Key"] for entry in boto3.client("s3").list_objects_v2(Bucket=bucket)["Contents"]]
    assert [key for key in keys if key.startswith("mlflow/") and key.endswith("/report.html")]
    monkeypatch.setenv("PGHOST", str(postgres))
    assert mlflow("postgresql:///mlflow") == "postgresql:///mlflow answers"


@pytest.fixture
def passing_folder():
    """For what is too large to be kept after the test."""
    with TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.service("minutes")
def test_the_installation_of_a_node_works_in_a_fresh_venv_at_the_versions_that_were_tested(passing_folder):
    """clusters/setup.sh, as the machines and the Dockerfile run it; what it installs then examines this machine."""
    for name in ("pyproject.toml", "constraints.txt", "README.md", "launch.py"):
        shutil.copy(ROOT / name, passing_folder / name)
    for name in ("assets", "clusters", "configs", "dashboards", "orchestrator", "spot", "workers"):
        shutil.copytree(ROOT / name, passing_folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env |= {"PYTHON": sys.executable, "PIP_NO_COMPILE": "1"}  # little of it is ever imported here
    for _ in range(2):  # the second time there is nothing to do
        subprocess.run([passing_folder / "clusters/setup.sh"], env=env, check=True)
    python = [passing_folder / ".venv/bin/python"]
    freeze = subprocess.run(
        [*python, "-m", "pip", "freeze", "--exclude-editable"], env=env, capture_output=True, text=True, check=True
    ).stdout
    found = {line.partition("+")[0] for line in freeze.splitlines() if "==" in line}
    assert found <= set((ROOT / "constraints.txt").read_text().splitlines())
    doctor = subprocess.run(
        [*python, "launch.py", "doctor"], cwd=passing_folder, env=env, capture_output=True, text=True
    )
    assert "ok   Ray" in doctor.stdout, doctor.stderr
