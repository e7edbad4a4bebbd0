"""The scripts of clusters/ at work: MLflow over a real PostgreSQL and an S3 server, and the installation."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from orchestrator.config import ROOT
from orchestrator.doctor import mlflow

pytest_plugins = ["tests.servers"]


@pytest.mark.service("postgres")
def test_mlflow_keeps_runs_in_postgres_and_artifacts_on_s3_without_a_password(
    postgres, bucket, mlflow_server, tmp_path, monkeypatch
):
    import boto3
    from mlflow import MlflowClient

    command = ["bash", str(ROOT / "clusters/mlflow.sh"), f"s3://{bucket}/mlflow"]
    with mlflow_server(command, tmp_path, PGHOST=str(postgres)) as uri:
        assert mlflow(uri) == f"{uri} answers"
        client = MlflowClient(uri)
        run = client.create_run(client.create_experiment("spot")).info.run_id
        client.log_metric(run, "nfe", 20.9)
        client.log_text(run, "the report", "report.html")
        assert client.get_run(run).data.metrics == {"nfe": 20.9}
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
