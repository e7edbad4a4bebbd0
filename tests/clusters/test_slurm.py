"""The Slurm script on a real Slurm: a controller and two nodes, all on this machine."""

import getpass
import json
import os
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from launch import main
from orchestrator.config import ROOT
from orchestrator.ledger import Ledger

pytestmark = [pytest.mark.service("slurm"), pytest.mark.ray, pytest.mark.byhand]

CONFIG = """
ClusterName=test
SlurmctldHost={host}
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ports[0]}
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
NodeName=one NodeHostname={host} Port={ports[1]} CPUs=1
NodeName=two NodeHostname={host} Port={ports[2]} CPUs=1
PartitionName=all Nodes=one,two Default=YES MaxTime=INFINITE State=UP
"""


@pytest.fixture
def slurm(monkeypatch):
    """A Slurm of two nodes with a core each; its commands find it by SLURM_CONF."""
    folder = Path("/tmp") / f"slurm-{os.getpid()}"  # short enough for a socket's name
    (folder / "state").mkdir(parents=True)
    conf, key, munge = folder / "slurm.conf", folder / "munge.key", folder / "munge.socket"
    ports = [_free_port() for _ in range(3)]
    conf.write_text(CONFIG.format(folder=folder, host=socket.gethostname(), user=getpass.getuser(), ports=ports))
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    monkeypatch.setenv("SLURM_CONF", str(conf))
    files = [f"--{name}-file={folder / name}" for name in ("log", "pid", "seed")]
    daemons = [["munged", "--foreground", "--force", f"--socket={munge}", f"--key-file={key}", *files]]
    daemons += [["slurmctld", "-D"], ["slurmd", "-D", "-N", "one"], ["slurmd", "-D", "-N", "two"]]
    with ExitStack() as running:
        for number, command in enumerate(daemons):
            log = running.enter_context((folder / f"{number}.out").open("wb"))
            daemon = subprocess.Popen(command, stdout=log, stderr=log)
            running.callback(daemon.wait, 30)
            running.callback(daemon.terminate)
            _wait(munge.exists)
        _wait(lambda: _say("sinfo", "--noheader", "--states=idle", "--format=%D") == "2")
        yield
        subprocess.run(["scancel", "--name=spot", "--signal=KILL", "--full"], check=False)
    shutil.rmtree(folder)


def _free_port():
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def _say(*command):
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def _wait(condition, seconds=600.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.2)


def test_a_sweep_runs_on_the_nodes_of_an_allocation_and_goes_on_when_its_time_is_over(slurm, tmp_path, capsys):
    grid = [
        "drafters=[spot]",
        "budgets=[0,8]",
        "temperatures=[0]",
        "mlflow=null",
        f"store={tmp_path}",
        "limit=16",
        "workers.grace=300",
    ]
    log = tmp_path / "log"
    script = ["--nodes=2", f"--output={log}", "clusters/slurm/sweep.sbatch", "quickstart", *grid]
    submitted = subprocess.run(["sbatch", "--parsable", *script], cwd=ROOT, capture_output=True, text=True, check=True)
    number = submitted.stdout.strip()

    def state(word):
        return json.loads(_say("squeue", f"--job={number}", "--json"))["jobs"][0][word]

    _wait(lambda: log.exists() and " busy" in log.read_text())
    subprocess.run(["scancel", "--batch", "--signal=USR1", number], check=True)  # what --signal does at the end
    _wait(lambda: state("restart_cnt") == 1 and state("job_state") == "PENDING")
    before = dict(Ledger(tmp_path / "quickstart").results())
    assert 0 < len(before) < 32  # what was in flight, and nothing more
    subprocess.run(["scontrol", "update", f"JobId={number}", "StartTime=now"], check=True)  # Slurm would wait 2 minutes
    _wait(lambda: state("job_state") not in ("PENDING", "RUNNING", "COMPLETING"))
    assert state("job_state") == "COMPLETED", log.read_text()
    results = Ledger(tmp_path / "quickstart").results()
    assert {sample: results[sample] for sample in before} == before
    assert main(["status", "quickstart", f"store={tmp_path}"]) == 0
    assert "32/32 samples, 0 failed" in capsys.readouterr().out
    said = log.read_text()
    assert said.count("report:") >= 1
    assert "records came for a sample that already had one" not in said
