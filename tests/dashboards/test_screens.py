"""What a sweep looks like to those who browse it, in a real browser: MLflow's pages, and the report.

Pictures go to the folder that SPOT_SCREENS names, else to a temporary one.
"""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import requests

import launch
from orchestrator.ledger import read_sweep, write_sweep
from tests.data_sets import ROOT
from tests.fake_sweep import control, decode, on_disk, real_cell, score

pytestmark = pytest.mark.service("chromium")

ROWS = 12
CONTROL, SPOT, LARGE, STALE = CELLS = (
    real_cell(), real_cell("spot", 4), real_cell("spot", 8), real_cell("stale", 4)
)  # fmt: skip


def records():
    """A sweep of whose texts one in four is wrong. Passes vary from row to row."""
    for i in range(ROWS):
        row = f"r{i}"
        yield control(CONTROL.key, row, 60 + i)
        yield decode(SPOT.key, row, 20 + i % 3, 60 + i, **drafts([9, 6]))
        yield decode(LARGE.key, row, 15 + i % 4, 60 + i, **drafts([9, 8, 7]))
        yield decode(STALE.key, row, 30 + i % 5, 60 + i, **drafts([5]))
        yield score(row, i % 4 != 0)


def drafts(by_depth):
    return {"drafted": 40, "drafted_passes": 10, "accepted": sum(by_depth), "accepted_by_depth": by_depth}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """A finished sweep that MLflow knows, with its report."""
    store = tmp_path_factory.mktemp("store")
    made = on_disk(store, *CELLS, rows=ROWS, records=records())
    made = replace(made, config=made.config | {"mlflow": f"sqlite:///{store}/mlflow.db"})
    write_sweep(made)
    assert launch.main(["sync", "first", f"store={store}"]) == 0
    return read_sweep(made.folder)


@pytest.fixture(scope="module")
def mlflow(sweep):
    """The address of what `launch.py ui` starts."""
    from tests.servers import free_port, wait_for

    log = sweep.folder.parent / "ui.log"
    # at a port that no other `ui`, which is slow to take the one it has chosen, may choose, too
    program = f"from orchestrator import mlflow_store; mlflow_store.free_port = lambda: {free_port()}; "
    program += f"import launch; launch.main(['ui', 'first', 'store={sweep.folder.parent}'])"
    command = [sys.executable, "-c", program]
    quiet = os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    with log.open("w") as output:
        server = subprocess.Popen(command, cwd=ROOT, env=quiet, stdout=output, stderr=output, start_new_session=True)

    def address():
        assert server.poll() is None, log.read_text()
        said = re.search(r"(http://127\.0\.0\.1:\d+)/\S+ has MLflow", log.read_text())
        return said[1] if said else None

    try:
        wait_for(lambda: address() and answers(address()), seconds=600)
        yield address()
    finally:
        os.killpg(server.pid, 15)
        server.wait(60)


def answers(address):
    try:
        return requests.get(f"{address}/health", timeout=30).ok
    except requests.RequestException:
        return False


@pytest.fixture(scope="module")
def runs(sweep):
    """MLflow's runs by name, and the experiment's id."""
    from mlflow import MlflowClient

    client = MlflowClient(sweep.config["mlflow"])
    experiment = client.get_experiment_by_name("spot-sweeps").experiment_id
    return experiment, {run.info.run_name: run.info.run_id for run in client.search_runs([experiment])}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = Path(os.environ.get("SPOT_SCREENS") or tmp_path_factory.mktemp("screens"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    from tests.browser import browser  # selenium is not on every machine

    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def browse(tab, mlflow, runs):
    """Opens a page of the experiment in MLflow, without MLflow's assistant beside it."""

    script = """if (location.protocol == 'http:') {
        localStorage['mlflow.assistant.fab.autoOpenedOnFirstLoad_v1'] = true;
        localStorage['mlflow.assistant.panelOpen_v1'] = false;
    }"""
    tab.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": script})

    def open_page(page, more=""):
        tab.open("about:blank")  # from one run's artifacts to another's, MLflow's page shows none
        tab.open(f"{mlflow}/#/experiments/{runs[0]}/{page}?workflowType=machine_learning{more}", 1440, 900)
        return tab

    yield open_page
    # MLflow's own page asks for the user where there are none
    assert [said for said in tab.complaints() if "/users/current" not in said] == []
    assert all(address.startswith(mlflow) for address in tab.asked_for())


def test_the_runs_list_has_the_sweep_with_its_cells_under_it(browse, runs, pictures):
    tab = browse("runs", "&viewStateShareKey=spot")  # as `ui` says
    tab.see("first", "5 matching runs", "nfe_ratio", "throughput_ratio", "accuracy", "drafter", "budget")
    tab.find("button[data-component-id*=runnamecellrenderer]").click()
    tab.see(*(cell.label for cell in CELLS))
    tab.picture("mlflow-runs", pictures)
    tab.find("button[data-component-id*=columnselector]").click()
    tab.see("drafter", "budget", "temperature", "summary/nfe_ratio", "summary/accuracy")
    tab.picture("mlflow-columns", pictures)


def test_a_run_tells_its_axes_and_its_numbers(browse, runs, pictures):
    tab = browse(f"runs/{runs[1][LARGE.label]}")
    seen = tab.see(LARGE.label, "summary/nfe_ratio", "3.969", "Parent run")
    assert re.search(r"drafter\s+spot\s+", seen) and re.search(r"budget\s+8\s+", seen) and "Finished" in seen
    tab.picture("mlflow-run", pictures)


def test_its_charts_have_a_point_a_sample(browse, runs, pictures):
    tab = browse(f"runs/{runs[1][LARGE.label]}/model-metrics")
    tab.find("input[placeholder='Search metric charts']").send_keys("^nfe$")
    tab.see("nfe")
    script = "return [...document.querySelectorAll('.js-plotly-plot')].map(e => e.data[0].x ? e.data[0].x.length : 0)"
    tab.until(lambda: ROWS in tab.driver.execute_script(script), f"no chart with {ROWS} points")
    tab.picture("mlflow-charts", pictures)


def test_its_artifacts_show_every_generation(browse, runs, pictures):
    tab = browse(f"runs/{runs[1][LARGE.label]}/artifacts")
    tab.see("generations.json")
    next(e for e in tab.all("[role=treeitem], li, span") if e.text == "generations.json").click()
    tab.see("control_nfe", *(f"text of r{i}" for i in range(ROWS)))
    tab.picture("mlflow-artifacts", pictures)


def test_the_sweeps_artifacts_show_the_report(browse, runs, pictures):
    tab = browse(f"runs/{runs[1]['first']}/artifacts")
    tab.see("report.html", "table.csv")
    next(e for e in tab.all("[role=treeitem], li, span") if e.text == "report.html").click()
    tab.driver.switch_to.frame(tab.find("iframe"))
    tab.see("36 of 36 texts are identical to the control's.", "48 of 48 samples")  # the latter by the page's script
    tab.driver.switch_to.default_content()
    tab.picture("mlflow-report", pictures)


@pytest.mark.parametrize(("device", "width"), [("desktop", 1280), ("phone", 390)])
def test_the_report_is_read_on_a_desk_and_on_a_phone(tab, sweep, pictures, device, width):
    page = (sweep.folder / "report.html").as_uri()
    tab.open(page, width)
    seen = tab.see("36 of 36 texts are identical to the control's.")
    assert all(re.search(rf"\b{name}\b", seen) for name in ("control", "spot", "stale", "tiny"))
    assert tab.overflow() == 0
    tab.picture(f"report-{device}", pictures)
    tab.picture(f"report-{device}-whole", pictures, whole=True)
    assert tab.complaints() == [] and tab.asked_for() == [page]
