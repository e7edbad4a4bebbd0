"""The Slurm script on a real Slurm: a controller and two nodes, all on this machine."""

import getpass
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from launch import main
from orchestrator.config import ROOT
from orchestrator.ledger import Ledger

pytestmark = [pytest.mark.service("slurm"), pytest.mark.service("minutes"), pytest.mark.ray]

CONFIG = """
ClusterName=test
SlurmctldHost={host}
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ports[0]}
FirstJobId={job}
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
GRID = """
models: [tiny-sdar]
tasks: [arith]
task: {{arith: {{size: 20000}}}}
drafters: [spot]
budgets: [0, 8]
limit: {limit}
decode: {{gen_length: 32, stop: eos}}
workers: {{grace: 300}}
mlflow: null
store: {store}
"""


@pytest.fixture
def slurm(monkeypatch):
    """A Slurm of two nodes with a core each; its commands find it by SLURM_CONF."""
    folder = Path("/tmp") / f"slurm-{os.getpid()}"  # short enough for a socket's name
    (folder / "state").mkdir(parents=True)
    conf, key, munge = folder / "slurm.conf", folder / "munge.key", folder / "munge.socket"
    ports, job = [_free_port() for _ in range(3)], os.getpid()  # a job's number is in the names of its Ray's folder
    conf.write_text(
        CONFIG.format(folder=folder, host=socket.gethostname(), user=getpass.getuser(), ports=ports, job=job)
    )
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    monkeypatch.setenv("SLURM_CONF", str(conf))
    files = [f"--{name}-file={folder / name}" for name in ("log", "pid", "seed")]
    daemons = [["munged", "--foreground", "--force", f"--socket={munge}", f"--key-file={key}", *files]]
    daemons += [["slurmctld", "-D"], ["slurmd", "-D", "-N", "one"], ["slurmd", "-D", "-N", "two"]]
    started = []
    try:
        for number, command in enumerate(daemons):
            with (folder / f"{number}.out").open("wb") as log:
                started.append(subprocess.Popen(command, stdout=log, stderr=log))
            _wait(munge.exists)
        _wait(lambda: _say("sinfo", "--noheader", "--states=idle", "--format=%D") == "2")
        yield
    finally:
        while found := list(_all_that_know(conf)):
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        for daemon in started:
            daemon.wait()
        shutil.rmtree(folder)
        shutil.rmtree(f"/tmp/ray-{job}", ignore_errors=True)


def _all_that_know(conf):
    """The daemons, and whatever a job has started: the living processes with this SLURM_CONF in their environment."""
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"SLURM_CONF={conf}\0".encode() in entry.read_bytes() and entry.parent.name != str(os.getpid()):
                yield int(entry.parent.name)


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
    grid, log, sweep = tmp_path / "grid.yaml", tmp_path / "log", tmp_path / "grid"
    grid.write_text(GRID.format(limit=20000, store=tmp_path))  # more than there is time for
    script = ["--nodes=2", f"--output={log}", "clusters/slurm/sweep.sbatch", grid]
    submitted = subprocess.run(["sbatch", "--parsable", *script], cwd=ROOT, capture_output=True, text=True, check=True)
    number = submitted.stdout.strip()

    def job():
        shown = _say("scontrol", "show", "job", "--oneliner", number)
        return re.search(r"\bJobState=(\w+)", shown).group(1), re.search(r"\bRestarts=(\d+)", shown).group(1)

    def decoded():
        assert job()[0] in ("PENDING", "CONFIGURING", "RUNNING"), log.read_text()
        return Ledger(sweep).results()

    _wait(decoded)
    subprocess.run(["scancel", "--batch", "--signal=USR1", number], check=True)  # what --signal does at the end
    _wait(lambda: job() == ("PENDING", "1"))
    before = dict(Ledger(sweep).results())
    grid.write_text(GRID.format(limit=len(before) // 2 + 4, store=tmp_path))
    subprocess.run(["scontrol", "update", f"JobId={number}", "StartTime=now"], check=True)  # Slurm would wait 2 minutes
    _wait(lambda: job()[0] not in ("PENDING", "RUNNING", "COMPLETING"))
    assert job() == ("COMPLETED", "1"), log.read_text()
    results = Ledger(sweep).results()
    assert {sample: results[sample] for sample in before} == before
    assert len(results) == len(before) // 2 * 2 + 8
    assert main(["status", str(sweep)]) == 0
    assert f"{len(results)}/{len(results)} samples, 0 failed" in capsys.readouterr().out
    said = log.read_text()
    assert said.count("report:") == 2
    assert "records came for a sample that already had one" not in said
