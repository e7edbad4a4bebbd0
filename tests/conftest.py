"""A test that needs a service takes its fixture, `bubblewrap`, or has the marker `service(NAME)`.

Where there is none it skips, by that name; `make test-services`, which installs them, forbids it.
"""

import os
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from workers import sandbox

SHARED = Path(__file__).resolve().parents[2] / "shared"  # beside the project, where it is there


def no_bubblewrap() -> str | None:
    try:
        sandbox.check("bubblewrap")
    except ValueError as error:
        return str(error)
    return None


def no_cluster_tools() -> str | None:
    missing = [name for name in ("cfnlint", "kubernetes_validate", "openapi_spec_validator") if not find_spec(name)]
    return f"no {', '.join(missing)}; pip install -e '.[services]'" if missing else None


def postgres_program(name: str) -> str | None:
    """Debian keeps PostgreSQL's own programs out of the PATH."""
    return next(map(str, sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))), None) or shutil.which(name)


def no_postgres() -> str | None:
    if not postgres_program("initdb"):
        return "no initdb; Debian's postgresql has it"
    return None if find_spec("psycopg") else "no psycopg; pip install -e '.[services]'"


def no_slurm() -> str | None:
    missing = [name for name in ("sbatch", "slurmctld", "slurmd", "munged") if not shutil.which(name)]
    return f"no {', '.join(missing)}; Debian's slurm-wlm and munge have them" if missing else None


def too_long() -> str | None:
    """A test that takes minutes is for `make test-services`, whatever it needs."""
    return None if os.environ.get("SPOT_SERVICES") else "make test-services takes them"


def no_prometheus() -> str | None:
    missing = [name for name in ("prometheus", "promtool") if not shutil.which(name)]
    return f"no {', '.join(missing)}; Debian's prometheus has them" if missing else None


def no_grafana_schema() -> str | None:
    return None if find_spec("grafana_foundation_sdk") else "no grafana_foundation_sdk; pip install -e '.[services]'"


def no_chromium() -> str | None:
    missing = [name for name in ("chromium", "chromedriver") if not shutil.which(name)]
    missing += [] if find_spec("selenium") else ["selenium"]
    return f"no {', '.join(missing)}; Debian's chromium-driver, pip install -e '.[services]'" if missing else None


def no_mlflow_auth() -> str | None:
    return None if find_spec("flask_wtf") else "no Flask-WTF; pip install -e '.[services]'"


MISSING: dict[str, Callable[[], str | None]] = {
    "bubblewrap": no_bubblewrap,
    "chromium": no_chromium,
    "cluster-tools": no_cluster_tools,
    "minutes": too_long,
    "grafana-schema": no_grafana_schema,
    "mlflow-auth": no_mlflow_auth,
    "postgres": no_postgres,
    "prometheus": no_prometheus,
    "slurm": no_slurm,
}
"""Why a service cannot be used here, None if it can."""


@pytest.fixture
def bubblewrap() -> str:
    """The sandbox mode."""
    return "bubblewrap"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for name in MISSING.keys() & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.service(name))


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("service"):
        if reason := MISSING[mark.args[0]]():
            refuse = pytest.fail if os.environ.get("SPOT_SERVICES") else pytest.skip
            refuse(f"{mark.args[0]}: {reason}")
