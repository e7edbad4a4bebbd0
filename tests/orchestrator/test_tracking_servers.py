"""The mirror on real servers: PostgreSQL with artifacts on S3, and an MLflow that asks who is there, and goes away."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import mlflow_store, tracking
from orchestrator.config import ROOT
from orchestrator.ledger import write_sweep
from tests.fake_sweep import append, on_disk
from tests.orchestrator.test_tracking import (
    CONTROL,
    DRAWINGS,
    RECORDS,
    SCORES,
    SPOT,
    artifacts,
    contents,
    runs,
    statuses,
    values,
)

pytest_plugins = ["tests.servers"]

SERVER = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", "sqlite:///server.db", "--workers", "1"]
NAMES = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")


@pytest.fixture
def sweep(tmp_path):
    return on_disk(tmp_path, CONTROL, SPOT, records=RECORDS + SCORES)


@pytest.fixture
def on_sqlite(uri, sweep):
    """What MLflow shows of the sweep by default."""
    tracking.rebuild(uri, sweep.folder, DRAWINGS)
    return contents(uri)


def listed(found):
    """Metric points as a server gives them, whose databases keep numbers of their own kinds."""
    return {key: run | {"metrics": sorted(run["metrics"])} for key, run in found.items()}


@pytest.mark.service("postgres")
def test_runs_in_postgres_and_artifacts_on_s3_are_those_of_sqlite(
    postgres, bucket, mlflow_server, tmp_path, sweep, on_sqlite
):
    import boto3

    command = ["bash", str(ROOT / "clusters/mlflow.sh"), f"s3://{bucket}/mlflow"]
    with mlflow_server(command, tmp_path, PGHOST=str(postgres)) as uri:
        tracking.rebuild(uri, sweep.folder, DRAWINGS)
        assert listed(contents(uri)) == listed(on_sqlite)
        tracking.rebuild(uri, sweep.folder, DRAWINGS, anew=True)
        assert listed(contents(uri)) == listed(on_sqlite)
        found = runs(uri)
        page = mlflow_store.connect(uri).download_artifacts(found[None].info.run_id, "report.html", str(tmp_path))
        assert Path(page).read_text() == "<html>"
    keys = [entry["Key"] for entry in boto3.client("s3").list_objects_v2(Bucket=bucket)["Contents"]]
    for key, name in ((None, "report.html"), (SPOT.key, "generations.json"), (SPOT.key, "plots/nfe.svg")):
        assert [k for k in keys if k.startswith("mlflow/") and k.endswith(f"{found[key].info.run_id}/artifacts/{name}")]


@pytest.mark.service("postgres")
def test_a_sweep_on_s3_mirrors_straight_into_postgres_with_artifacts_beside_its_ledger(
    postgres, bucket, tmp_path, sweep, on_sqlite, monkeypatch
):
    import boto3

    from workers.store import place

    monkeypatch.setenv("PGHOST", str(postgres))
    monkeypatch.setenv("SPOT_CACHE", str(tmp_path / "cache"))
    for file in ("sweep.yaml", *(f"segments/{path.name}" for path in (sweep.folder / "segments").iterdir())):
        boto3.client("s3").upload_file(str(sweep.folder / file), bucket, f"sweeps/first/{file}")
    tracking.rebuild("postgresql:///mlflow", place(f"s3://{bucket}/sweeps/first"))
    plots = {key: run | {"artifacts": [a for a in run["artifacts"] if a.startswith(("generations", "table", "sweep"))]}
             for key, run in on_sqlite.items()}  # fmt: skip
    assert listed(contents("postgresql:///mlflow")) == listed(plots)
    keys = [entry["Key"] for entry in boto3.client("s3").list_objects_v2(Bucket=bucket)["Contents"]]
    assert sum(key.startswith("sweeps/mlartifacts/") for key in keys) == 6  # a table a cell, and four of the sweep


@pytest.mark.service("mlflow-server")
@pytest.mark.service("mlflow-auth")
def test_a_server_that_asks_who_is_there_is_told_by_the_environment_and_says_no_in_one_line(
    mlflow_server, tmp_path, sweep, on_sqlite, monkeypatch, caplog
):
    config = tmp_path / "auth.ini"
    config.write_text(
        "[mlflow]\ndefault_permission = READ\ndatabase_uri = sqlite:///auth.db\nadmin_username = admin\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
    )
    secrets = {"MLFLOW_AUTH_ADMIN_PASSWORD": "a-long-password-1", "MLFLOW_FLASK_SERVER_SECRET_KEY": "signs-sessions"}
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    with mlflow_server(
        [*SERVER, "--app-name", "basic-auth"], tmp_path, MLFLOW_AUTH_CONFIG_PATH=str(config), **secrets
    ) as uri:
        for password in (None, "wrong-and-secret"):
            if password:
                monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "admin")
                monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", password)
            mirror = tracking.Mirror(uri, sweep)
            mirror.finish("FINISHED")
            assert mirror.behind
            assert mirror.error == (
                "it does not let you in; MLFLOW_TRACKING_USERNAME with MLFLOW_TRACKING_PASSWORD, or _TOKEN, would"
            )
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "a-long-password-1")
        tracking.rebuild(uri, sweep.folder, DRAWINGS)
        assert listed(contents(uri)) == listed(on_sqlite)
    assert "wrong-and-secret" not in caplog.text
    kept = [path for path in (*sweep.folder.rglob("*"), *tmp_path.glob("*.db")) if path.is_file()]
    assert [path for path in kept if b"wrong-and-secret" in path.read_bytes()] == []


@pytest.mark.service("mlflow-server")
def test_a_server_that_goes_away_and_comes_back_gets_what_it_missed(mlflow_server, tmp_path, monkeypatch):
    """A process of its own, ended and begun again on its port, as a machine that restarts."""
    monkeypatch.setattr(tracking.Mirror, "_work", lambda self: None)  # its turns are taken in this thread
    sweep, now, port = on_disk(tmp_path, CONTROL, SPOT), [0.0], mlflow_store.free_port(20_000 + os.getpid() % 20_000)
    append(sweep, RECORDS[:2])
    with mlflow_server(SERVER, tmp_path, port) as uri:
        mirror = tracking.Mirror(uri, sweep, clock=lambda: now[0])
        mirror._step()
        assert (mirror.lag, mirror.error) == (0, None)
        assert statuses(uri) == {None: "RUNNING", CONTROL.key: "RUNNING", SPOT.key: "RUNNING"}
    append(sweep, RECORDS[2:])
    mirror.push(RECORDS[2:], [])
    mirror._step()
    assert (mirror.lag, mirror.error) == (2, "it does not answer")
    with mlflow_server(SERVER, tmp_path, port):
        now[0] += tracking.RETRY_SECONDS
        mirror._step()
        assert mirror.lag == 0
        assert values(uri, SPOT, "nfe") == [(0, 20.0), (1, 20.0)]
        mirror._status = "FINISHED"
        mirror._guard(mirror._finish)
        assert not mirror.behind
        assert statuses(uri) == dict.fromkeys([None, CONTROL.key, SPOT.key], "FINISHED")


@pytest.mark.service("mlflow-server")
def test_ui_serves_the_runs_and_their_artifacts(mlflow_server, uri, tmp_path, sweep):
    """`launch.py ui` as it is called, and what MLflow's page asks of it."""
    import requests

    tracking.rebuild(uri, sweep.folder, DRAWINGS)
    write_sweep(replace(sweep, config={**sweep.config, "mlflow": uri}))
    run_id = runs(uri)[SPOT.key].info.run_id
    command = [sys.executable, str(ROOT / "launch.py"), "ui", str(sweep.folder)]
    port = mlflow_store.free_port()
    with mlflow_server(command, tmp_path, port, PYTHONPATH=str(ROOT)) as address:
        said = (tmp_path / "log").read_text()
        assert said.startswith(f"{address}/#/experiments/1/runs?") and f" has MLflow at {uri}" in said
        found = requests.get(f"{address}/api/2.0/mlflow/runs/get", {"run_id": run_id}, timeout=30).json()
        assert found["run"]["info"]["run_name"] == SPOT.label
        page = requests.get(
            f"{address}/get-artifact", {"run_uuid": run_id, "path": "generations.json"}, timeout=30
        ).json()
        assert page["columns"][:2] == ["row", "text"]
        names = [a.path for a in mlflow_store.connect(address).list_artifacts(run_id)]
        assert names == ["generations.json", "plots"]
        assert artifacts(mlflow_store.connect(address), run_id) == ["generations.json", "plots/nfe.svg"]
    assert os.listdir(tmp_path / "mlartifacts")
