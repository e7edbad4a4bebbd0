"""What a sweep tells the cluster's monitoring, over instruments that keep what they are told."""

import pickle
import threading
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest

from orchestrator import metrics
from orchestrator.metrics import COUNTERS, GAUGES, Metered, Metrics
from orchestrator.progress import Progress, Share
from tests import fake_sweep
from tests.orchestrator.conftest import drive, plan_of
from tests.orchestrator.fakes import Fakes

SPOT = fake_sweep.real_cell("spot", 8)
AXES = ("tiny", "arith", "spot b8")


class Instruments:
    """Ray's, of which it has the interface: a counter only rises, and every label has a value."""

    def __init__(self):
        self.told = {}
        self.calls = 0
        told, instruments = self.told, self

        class Instrument:
            def __init__(self, name, description, tag_keys):
                assert description
                self.name, self.keys = name, tag_keys

            def tell(self, tags, value):
                assert tuple(tags) == self.keys and all(isinstance(tag, str) for tag in tags.values())
                instruments.calls += 1
                told[self.name, *tags.values()] = value

        class Counter(Instrument):
            def inc(self, value, tags):
                assert value > 0
                self.tell(tags, told.get((self.name, *tags.values()), 0) + value)

        class Gauge(Instrument):
            def set(self, value, tags):
                self.tell(tags, value)

        self.Counter, self.Gauge = Counter, Gauge


@pytest.fixture
def ray():
    return Instruments()


def meter(ray, times=(0.0, 10.0, 20.0, 30.0)):
    """Asks the clock once where it is too early, twice where it tells."""
    clock = iter([time for time in times for _ in range(2)])
    return Metrics("mine", lambda: ray, lambda: next(clock))


SHOWN = Progress(
    cells_done=1, cells=3, shares=(Share(*AXES, planned=9, ok=4, failed=2),), rate=0.5, seconds_left=6.0,
    workers={"tiny": {"busy": 2, "loading": 1}, "": {"waiting": 1}}, to_score=7,
)  # fmt: skip


def test_counters_have_what_the_records_measured(ray):
    told = meter(ray)
    told.add(SPOT, fake_sweep.decode("c", "r1", 20, 80, accepted=60, drafted_passes=19, length=64))
    told.add(SPOT, fake_sweep.decode("c", "r2", 30, 80, accepted=0, drafted_passes=0))
    told.add(SPOT, {"status": "failed", "cause": "oom-cuda", "error": "no room"})
    told.add(SPOT, {"status": "failed", "cause": None, "error": "ValueError: no"})
    told.show(SHOWN, 0, 0)
    found = {name[0]: value for name, value in ray.told.items() if name[0] in COUNTERS and len(name) == 5}
    assert found == {"spot_decoded": 2, "spot_passes": 50, "spot_control_passes": 160, "spot_accepted": 60,
                     "spot_drafted_passes": 19, "spot_tokens": 72, "spot_decode_seconds": 2.0}  # fmt: skip
    assert ray.told["spot_failures", "mine", *AXES, "oom-cuda"] == 1
    assert ray.told["spot_failures", "mine", *AXES, "exception"] == 1


def test_gauges_have_the_whole_sweep_as_it_is_now(ray):
    meter(ray).show(SHOWN, 5, 11)
    states = {state: ray.told["spot_samples", "mine", *AXES, state] for state in ("done", "failed", "left")}
    assert states == {"done": 4, "failed": 2, "left": 3}
    assert ray.told["spot_cells", "mine", "left"] == 2
    assert ray.told["spot_workers", "mine", "tiny", "busy"] == 2
    assert ray.told["spot_workers", "mine", "", "waiting"] == 1
    assert ray.told["spot_samples_per_second", "mine"] == 0.5
    assert ray.told["spot_seconds_left", "mine"] == 6.0
    assert ray.told["spot_texts_to_score", "mine"] == 7
    assert (ray.told["spot_ledger_lag", "mine"], ray.told["spot_mlflow_lag", "mine"]) == (5, 11)
    assert {name for name, *_ in ray.told} == GAUGES.keys() - {"spot_passes_in_flight"}


def test_a_model_that_no_worker_holds_any_more_has_none(ray):
    told = meter(ray)
    told.show(SHOWN, 0, 0)
    told.show(Progress(1, 3, workers={}), 0, 0)
    assert ray.told["spot_workers", "mine", "tiny", "busy"] == 0


def test_a_time_that_cannot_be_told_any_more_is_not_told_to_be_over(ray):
    told = meter(ray)
    told.show(SHOWN, 0, 0)
    told.show(replace(SHOWN, seconds_left=None), 0, 0)
    assert ray.told["spot_seconds_left", "mine"] == 6.0  # and Ray forgets it


def test_ray_is_called_every_few_seconds_and_not_at_every_record(ray):
    told = meter(ray, times=(0.0, *[metrics.SECONDS - 1] * 100))
    for _ in range(100):
        told.add(SPOT, fake_sweep.decode("c", "r1", 20, 80))
        told.show(SHOWN, 0, 0)
    assert ray.calls < 40


def test_a_failure_of_rays_ends_the_metrics_and_not_the_sweep(folder, caplog):
    class Broken:
        def __getattr__(self, name):
            raise RuntimeError("the agent is gone")

    outcome = drive(Fakes(), folder, meter=Metrics("mine", Broken))
    assert (outcome.exit_code, outcome.ran) == (0, 15)
    assert caplog.messages == ["no more Ray metrics of this sweep: RuntimeError: the agent is gone"]


def test_nothing_is_told_where_this_process_is_connected_to_no_ray(caplog):
    Metrics("mine").show(SHOWN, 0, 0)
    assert metrics.of_ray() is None
    assert not caplog.messages


def test_a_driver_tells_of_its_own_records_and_of_the_sweep_before_it(folder, ray):
    drive(Fakes(), folder)
    drive(Fakes(), folder, "limit=5", meter=Metrics("mine", lambda: ray, count(0.0, 10.0).__next__))
    cell = plan_of(Fakes()).grid.cells[0]
    axes = ("mine", cell.model, cell.task, "control")
    assert ray.told["spot_samples", *axes, "done"] == 5
    assert ray.told["spot_samples", *axes, "left"] == 0
    assert ray.told["spot_decoded", *axes] == 2


def test_a_worker_tells_the_passes_of_the_task_it_is_at_while_it_is_at_it(monkeypatch):
    told, begun, seen = [], threading.Event(), threading.Event()

    class Gauge:
        def __init__(self, name, description, tag_keys):
            assert (name, tag_keys) == ("spot_passes_in_flight", GAUGES["spot_passes_in_flight"][0])
            begun.wait()

        def set(self, value, tags):
            told.append((value, tags))
            seen.set()
            raise RuntimeError("enough")  # ends the thread

    class Worker:
        passes = 100

        def run(self, task):
            self.passes += 7
            begun.set()
            assert seen.wait(30)
            return [task]

    monkeypatch.setattr(metrics, "of_ray", lambda: SimpleNamespace(Gauge=Gauge))
    worker = Metered(lambda model: Worker(), "mine")(SimpleNamespace(name="tiny"))
    assert (worker.run("task"), worker.passes, worker.in_flight) == (["task"], 107, 0)
    assert told == [(7, {"sweep": "mine", "model": "tiny"})]


def test_what_makes_workers_travels_to_actors():
    assert pickle.loads(pickle.dumps(Metered(Fakes, "mine"))) == Metered(Fakes, "mine")
