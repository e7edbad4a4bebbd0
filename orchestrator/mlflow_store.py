"""The way to an MLflow server or database: a client, the project's experiment, and what went wrong in one line."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import socket
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from orchestrator.errors import UserError
from orchestrator.ledger import Sweep
from workers.store import Place

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

EXPERIMENT = "spot-sweeps"
ARTIFACTS = "mlartifacts"  # the folder that they are in
SERVERS = ("http", "databricks")  # addresses of these begin so, others are of databases
ALONE = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # what `ui` does without

_DRIVERS = {"MySQLdb": "mysqlclient"}  # where package and module have other names
_AXES = ("model", "task", "drafter", "budget", "temperature", "seed")
_NUMBERS = ("nfe", "nfe_ratio", "throughput_ratio", "acceptance", "accuracy")
_COLUMNS = [*(f"params.`{axis}`" for axis in _AXES), *(f"metrics.`summary/{number}`" for number in _NUMBERS)]
_VIEW = {"mlflow.sharedViewState.spot": json.dumps({"selectedColumns": _COLUMNS})}  # as MLflow 3.17 keeps a shared view


def connect(uri: str) -> MlflowClient:
    """A client that gives up soon: the ledger waits better than the thread does. The user's own settings win."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # of a node that may have no network
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    from mlflow import MlflowClient

    for name in ("alembic", "mlflow.store.db.utils", "urllib3.connectionpool", "mlflow.utils.databricks_utils"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # they would write into the live panel; we say it once
    if not uri.startswith(SERVERS):
        from mlflow.store.db import utils

        utils.MAX_RETRY_COUNT = 4  # MLflow's own ten take 100 s
    if found := database(uri):
        found.parent.mkdir(parents=True, exist_ok=True)
        _move_along(found)
    return MlflowClient(tracking_uri=uri)


def database(uri: str) -> Path | None:
    """The file behind a SQLite address, None for any other."""
    found = re.match(r"sqlite(\+\w+)?:///(?!file:)([^?]+)", uri)
    return Path(unquote(found.group(2))) if found else None


def _artifacts(database: Path) -> str:
    """The address of the artifacts beside a database."""
    return (database.parent / ARTIFACTS).resolve().as_uri()


def _move_along(database: Path) -> None:
    """Where a store was moved, or copied: MLflow keeps whole addresses of artifacts, and no call of it changes one."""
    here = _artifacts(database)
    if not (database.is_file() and (database.parent / ARTIFACTS).is_dir()):
        return
    with suppress(sqlite3.Error), closing(sqlite3.connect(database)) as opened, opened:  # MLflow says what is wrong
        found = opened.execute("select artifact_location from experiments where name = ?", [EXPERIMENT]).fetchone()
        if found is None or found[0] == here or not re.fullmatch(f"file:.*/{ARTIFACTS}", found[0]):
            return
        for table, column in (("experiments", "artifact_location"), ("runs", "artifact_uri")):
            moved = f"update {table} set {column} = ? || substr({column}, ?) where instr({column} || '/', ?) = 1"
            opened.execute(moved, [here, len(found[0]) + 1, f"{found[0]}/"])


def free_port(first: int = 5000) -> int:
    """The first port of this machine from `first` on that nobody listens at: MLflow's own says no with a traceback."""
    for port in range(first, first + 100):
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise UserError("", "", f"ports {first} to {first + 99} are all in use")


def artifact_root(uri: str, store: Place) -> str | None:
    """Where artifacts go: beside a SQLite file, in the sweep's store with another database; a server's own choice."""
    if found := database(uri):
        return _artifacts(found)
    if uri.startswith(SERVERS):
        return None
    root = store / ARTIFACTS
    return root.resolve().as_uri() if isinstance(root, Path) else str(root)


def experiment(client: MlflowClient, uri: str, sweep: Sweep) -> str:
    """The experiment's id."""
    found = client.get_experiment_by_name(EXPERIMENT)
    if found is None:
        location = artifact_root(uri, sweep.folder.parent)
        return str(client.create_experiment(EXPERIMENT, artifact_location=location, tags=_VIEW))
    if found.lifecycle_stage != "active":
        restore = f"MLFLOW_TRACKING_URI={shlex.quote(uri)} mlflow experiments restore -x {found.experiment_id}"
        raise UserError(uri, "", f"its experiment {EXPERIMENT} was deleted; this brings it back: {restore}")
    for name, value in _VIEW.items() - found.tags.items():
        client.set_experiment_tag(found.experiment_id, name, value)
    return str(found.experiment_id)


def runs_page(uri: str) -> str:
    """Where on MLflow's pages the runs are, with the columns that tell cells apart; "" before the first sweep."""
    try:
        found = connect(uri).get_experiment_by_name(EXPERIMENT)
    except Exception as failure:
        raise UserError(uri, "", why(failure)) from None
    shown = "viewStateShareKey=spot&workflowType=machine_learning"
    return f"#/experiments/{found.experiment_id}/runs?{shown}" if found else ""


def search(client: MlflowClient, experiment: str, sweep: Sweep) -> list[Run]:
    """Every run of this sweep, oldest first, page after page. Another sweep's of that name stay its own."""
    found: list[Run] = []
    token: str | None = None
    while True:
        page = client.search_runs(
            [experiment], f"tags.sweep = '{sweep.name}'", order_by=["attributes.start_time ASC"], page_token=token
        )
        found += page
        if not (token := page.token):
            return [run for run in found if run.data.tags.get("sweep_id", "") == sweep.id]


def why(error: Exception) -> str:
    """What went wrong with MLflow, in one line, and what would be right."""
    text = str(error)
    if isinstance(error, UserError):
        return text
    if re.search(r"error code 40[13]\b|PERMISSION_DENIED", text):
        return "it does not let you in; MLFLOW_TRACKING_USERNAME with MLFLOW_TRACKING_PASSWORD, or _TOKEN, would"
    if isinstance(error, ModuleNotFoundError):
        return f"{text}; pip install {_DRIVERS.get(str(error.name), error.name)}, the database's driver"
    if "password authentication failed" in text or "no password supplied" in text:
        return "the database does not let you in; PGPASSWORD or ~/.pgpass says who you are"
    if "SSLError" in text:
        return "it makes no secure connection: its certificate is not known here, or it is at http://"
    if "Max retries exceeded" in text or "Connection refused" in text or "timed out" in text.lower():
        return "it does not answer"
    if said := re.search(r"\(\w+\.(\w+Error)\) (.+)", text):  # SQLAlchemy's words go around its driver's
        return f"its database says {said.group(1)}: {said.group(2).strip()}"[:200]
    return " ".join(f"{type(error).__name__}: {text}".split())[:200]
