"""The way to an MLflow server or database: a client, the project's experiment, and what went wrong in one line."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import UserError
from orchestrator.ledger import Sweep
from workers.store import Place

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

EXPERIMENT = "spot-sweeps"
ALONE = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # what `ui` does without

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

    for name in ("alembic", "mlflow.store.db.utils", "urllib3.connectionpool"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # they would write into the live panel; we say it once
    if found := database(uri):
        found.parent.mkdir(parents=True, exist_ok=True)
    return MlflowClient(tracking_uri=uri)


def database(uri: str) -> Path | None:
    """The file behind a SQLite address, None for any other."""
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None


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
        return (found.parent / "mlartifacts").resolve().as_uri()
    if uri.startswith(("http", "databricks")):
        return None
    root = store / "mlartifacts"
    return root.resolve().as_uri() if isinstance(root, Path) else str(root)


def experiment(client: MlflowClient, uri: str, sweep: Sweep) -> str:
    """The experiment's id."""
    found = client.get_experiment_by_name(EXPERIMENT)
    if found is None:
        location = artifact_root(uri, sweep.folder.parent)
        return str(client.create_experiment(EXPERIMENT, artifact_location=location, tags=_VIEW))
    if found.lifecycle_stage != "active":
        wrong = f"its experiment {EXPERIMENT} was deleted"
        raise UserError(uri, "", f"{wrong}; mlflow experiments restore -x {found.experiment_id} brings it back")
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
        return f"{text}; pip install {error.name}, the database's driver"
    if "password authentication failed" in text or "no password supplied" in text:
        return "the database does not let you in; PGPASSWORD or ~/.pgpass says who you are"
    if "Max retries exceeded" in text or "Connection refused" in text or "timed out" in text.lower():
        return "it does not answer"
    return " ".join(f"{type(error).__name__}: {text}".split())[:200]
