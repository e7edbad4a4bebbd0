"""The Grafana dashboard: by itself, by Grafana's own schema, and over a real Prometheus that scrapes a real sweep."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from orchestrator.config import ROOT
from orchestrator.ledger import Ledger
from orchestrator.metrics import COUNTERS, GAUGES
from tests.servers import free_port, wait_for

BOARD = json.loads((ROOT / "dashboards" / "grafana" / "sweep.json").read_text())
SCRAPE = ROOT / "dashboards" / "prometheus" / "prometheus.yml"
OF_RAY = {"ray_node_gpus_utilization", "ray_node_gram_used", "ray_node_cpu_utilization", "ray_node_mem_used"}
NEED_A_GPU = ["GPU memory used", "GPU utilisation"]
QUERIES = [(panel["title"], target["expr"]) for panel in BOARD["panels"] for target in panel["targets"]]
VARIABLES = {v["name"]: v["query"]["query"] for v in BOARD["templating"]["list"] if v["type"] == "query"}


def filled_in(query):
    """The query as Grafana sends it, with every model and task chosen."""
    for name, value in {"sweep": "mine", "model": ".*", "task": ".*", "__rate_interval": "1m"}.items():
        query = query.replace(f"${name}", value)
    return query


# ---- by itself


def test_the_dashboard_shows_every_metric_there_is_and_no_other():
    named = {name for _, query in QUERIES for name in re.findall(r"\bray_\w+", query)}
    known = {f"ray_{name}_total" for name in COUNTERS} | {f"ray_{name}" for name in GAUGES}
    assert named - OF_RAY == known - {"ray_spot_cells"}


def test_what_else_it_shows_rays_agents_measure():
    from ray.dashboard.modules.reporter.reporter_agent import METRICS_GAUGES

    assert {f"ray_{gauge}" for gauge in METRICS_GAUGES} >= OF_RAY


def test_every_label_in_a_query_is_one_that_its_metric_has():
    labels = {f"ray_{name}_total": set(labels) for name, (labels, _) in COUNTERS.items()}
    labels |= {f"ray_{name}": set(labels) for name, (labels, _) in GAUGES.items()}
    for query in [*(query for _, query in QUERIES), *VARIABLES.values()]:
        for name, matchers in re.findall(r"\b(ray_spot_\w+)\{([^}]*)\}", query):
            assert set(re.findall(r"(\w+)\s*(?:=~|!=|=)", matchers)) <= labels[name], query


def test_panels_lie_side_by_side_and_nowhere_on_one_another():
    taken = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        places = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert not places & taken, panel["title"]
        taken |= places
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])


# ---- by Grafana's own schema


def lost(board):
    """The paths of what Grafana's model of a dashboard does not know, or reads as something else."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    return list(_lost(board, json.loads(JSONEncoder().encode(Dashboard.from_json(board))), ""))


def _lost(here, there, path):
    if isinstance(here, dict) and isinstance(there, dict):
        for name, value in here.items():
            yield from _lost(value, there.get(name), f"{path}.{name}")
    elif isinstance(here, list) and isinstance(there, list) and len(here) == len(there):
        for number, pair in enumerate(zip(here, there, strict=True)):
            yield from _lost(*pair, f"{path}[{number}]")
    elif here != there:
        yield path


@pytest.mark.service("grafana-schema")
def test_grafana_knows_every_word_of_the_dashboard():
    assert lost(BOARD) == []


@pytest.mark.service("grafana-schema")
def test_a_word_that_grafana_does_not_know_is_found():
    board = json.loads(json.dumps(BOARD))
    board["panels"][7]["fieldConfig"]["defaults"]["custom"]["lineWidht"] = 1
    board["panels"][0]["gridPosition"] = {}
    assert lost(board) == [".panels[0].gridPosition", ".panels[7].fieldConfig.defaults.custom.lineWidht"]


# ---- over a real Prometheus


@pytest.mark.service("prometheus")
def test_prometheus_takes_the_scrape_file():
    checked = subprocess.run(["promtool", "check", "config", SCRAPE], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    assert "is valid prometheus config file" in checked.stdout


class Prometheus:
    """A server of its own over the scrape file, which finds the nodes of the Ray session in `session`."""

    def __init__(self, folder: Path, session: str) -> None:
        config = SCRAPE.read_text().replace("/tmp/ray/", f"{session}/")
        assert session in config
        (folder / "prometheus.yml").write_text(config)
        self._port = free_port()
        options = [f"--web.listen-address=127.0.0.1:{self._port}", f"--storage.tsdb.path={folder / 'data'}"]
        with (folder / "prometheus.log").open("w") as log:
            command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", *options]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def ask(self, path, **parameters):
        address = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(address, timeout=30) as answer:
            return json.load(answer)["data"]

    def values(self, query):
        """Those of the series that are there now, NaN left out; none where the server is not up yet."""
        try:
            found = self.ask("query", query=filled_in(query))["result"]
        except urllib.error.URLError:
            return []
        values = [float(series["value"][1]) for series in found]
        return [value for value in values if value == value]

    def choices(self, query):
        """What a variable of the dashboard offers."""
        series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", filled_in(query)).groups()
        return self.ask(f"label/{label}/values", **{"match[]": series})


@pytest.fixture
def running(tmp_path):
    """A sweep on a Ray cluster, of which every other prompt fails, and a Prometheus that watches it."""
    from ray.cluster_utils import Cluster

    questions = [f"Mia has {i} pens. How many?{' <|MASK|>' * (i % 2)}" for i in range(4000)]
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"question": q, "answer": "#### 1"}) + "\n" for q in questions))
    node = {"num_cpus": 2, "object_store_memory": 100 << 20, "dashboard_agent_listen_port": 0}
    try:
        cluster = Cluster(True, head_node_args={**node, "include_dashboard": True, "dashboard_port": free_port()})
    except Exception:  # a bare one, where a busy machine starts Ray too slowly
        cluster = Cluster(True, head_node_args={**node, "include_dashboard": True, "dashboard_port": free_port()})
    prometheus = Prometheus(tmp_path, cluster.head_node.get_session_dir_path())
    sweep = ["name=mine", "tasks=[gsm8k]", f"task.gsm8k.path={rows}", "limit=4000", "temperatures=[0]"]
    sweep += ["drafters=[spot]", "budgets=[0,8]"]
    where = [f"store={tmp_path}", f"workers.address={cluster.address}", "workers.count=1", "workers.scorers=1"]
    command = [sys.executable, "launch.py", "run", "quickstart", *sweep, *where, "decode.gen_length=32"]
    driver = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        yield prometheus, driver, tmp_path / "mine"
    finally:
        for process in (driver, prometheus.process):
            process.kill()
            process.wait()
        cluster.shutdown()


@pytest.mark.ray
@pytest.mark.service("prometheus")
def test_every_query_of_the_dashboard_has_data_while_a_sweep_runs_and_none_of_now_after_it(running):
    prometheus, driver, folder = running
    wait_for(lambda: prometheus.values("ray_node_cpu_utilization"))
    on_gpu = bool(prometheus.values("ray_node_gram_used"))
    wanted = [(title, query) for title, query in QUERIES if on_gpu or title not in NEED_A_GPU]
    assert len(QUERIES) - len(wanted) == (0 if on_gpu else len(NEED_A_GPU))

    def lacking():
        assert driver.poll() is None, "the sweep ended"
        return [title for title, query in wanted if not prometheus.values(query)]

    wait_for(lambda: not lacking(), 300.0)
    offered = {name: prometheus.choices(query) for name, query in VARIABLES.items()}
    assert offered == {"sweep": ["mine"], "model": ["tiny-sdar"], "task": ["gsm8k"]}

    driver.send_signal(signal.SIGINT)
    assert driver.wait(120) == 130
    wait_for(lambda: not any(prometheus.values(f'ray_{name}{{sweep="$sweep"}}') for name in GAUGES), 120.0)
    decoded = [record for record in Ledger(folder).results().values() if record["status"] == "ok"]
    end = max(record["finished"] for record in decoded)
    told = sum(
        record["nfe"] for record in decoded if record["finished"] < end - 30.0
    )  # what came last Ray may not send
    (counted,) = prometheus.values('sum(ray_spot_passes_total{sweep="$sweep"})')
    assert told <= counted <= sum(record["nfe"] for record in decoded)
