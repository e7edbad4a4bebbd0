"""Real servers for tests: PostgreSQL, S3 with a bucket, and MLflow over whatever the command says."""

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import requests

from orchestrator import mlflow_store
from tests.conftest import postgres_program


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def postgres() -> Iterator[Path]:
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
        wait_for((folder / ".s.PGSQL.5432").exists)
        wait_for(lambda: run("pg_isready", "-h", str(folder), **quiet).wait() == 0)
        if owner != me:
            assert run("createuser", "-h", str(folder), me, **quiet).wait() == 0
        assert run("createdb", "-h", str(folder), "--owner", me, "mlflow", **quiet).wait() == 0
        yield folder
    finally:
        run("pg_ctl", "stop", *data, "--mode=immediate", **quiet).wait()
        server.wait(30)
        shutil.rmtree(folder)


@pytest.fixture
def bucket(monkeypatch) -> Iterator[str]:
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


def wait_for(condition: Callable[[], object], seconds: float = 180.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.2)


@contextmanager
def serve(command: Sequence[str], folder: Path, port: int | None = None, **environment: str) -> Iterator[str]:
    """The address of the server that `command` starts in `folder`, by MLFLOW_PORT; it is ended with its workers."""
    port = port or free_port()
    env, uri = os.environ | {"MLFLOW_PORT": str(port)} | environment, f"http://127.0.0.1:{port}"
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(command, env=env, cwd=folder, stdout=log, stderr=log, start_new_session=True)

    def healthy() -> bool:
        assert server.poll() is None, (folder / "log").read_text()
        try:
            return requests.get(f"{uri}/health", timeout=5).status_code in (200, 401)
        except requests.ConnectionError:
            return False

    try:
        wait_for(healthy)
        yield uri
    finally:
        os.killpg(server.pid, 15)
        server.wait(60)


@pytest.fixture
def mlflow_server(monkeypatch) -> Callable[..., AbstractContextManager[str]]:
    """`serve`; a client of it waits for as long as a busy machine takes."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "200")
    return serve


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory) -> Path:
    """MLflow's on SQLite, to copy: making one takes seconds."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    mlflow_store.connect(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def uri(tmp_path, empty_database) -> str:
    """An MLflow without runs."""
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path / 'mlflow.db'}"
