"""What a sweep does when things go wrong, told by fakes in this process: how it ends, what it says, what it keeps."""

import resource
import signal
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import config as configs
from orchestrator import executors
from orchestrator.config import Workers
from orchestrator.errors import UserError
from orchestrator.executors import Died, InlineExecutor, Joined, Left, death_cause
from orchestrator.fleet import Fleet, bundle, kind, places
from orchestrator.ledger import Ledger
from orchestrator.watchdog import Watchdog
from tests.orchestrator.conftest import drive, plan_of
from tests.orchestrator.fakes import Fakes
from workers.failure import cause_of

ROWS = tuple(f"r{number}" for number in range(40))


def failing(*rows):
    return Fakes(failing=frozenset(("spot", row) for row in rows))


# ---- how it ends


def test_fail_fast_ends_at_the_first_failed_sample_and_a_resume_does_the_rest(folder):
    outcome = drive(failing(*ROWS), folder, "limit=20", "budgets=[0,4]", fail_fast=True, workers=1)
    assert (outcome.exit_code, outcome.status, len(outcome.failed)) == (1, "KILLED", 2)  # one more was in flight
    assert drive(Fakes(), folder, "limit=20", "budgets=[0,4]", retry_failed=True).exit_code == 0


def test_a_sweep_goes_on_while_no_more_fails_than_is_tolerated_and_no_further(folder):
    said = []
    asked = ("limit=20", "budgets=[0,4]", "tolerate=0.05")  # 3 of 60 samples
    outcome = drive(failing(*ROWS[:40:2]), folder, *asked, workers=1, said=said)
    why = "4 of 60 samples failed in this run, more than tolerate=0.05 allows"
    assert (outcome.exit_code, outcome.stopped, outcome.status) == (3, why, "KILLED")
    assert said == [f"stopping: {why}"]
    assert 4 <= len(outcome.failed) <= 5  # one more was in flight
    resumed = drive(Fakes(), folder, *asked, retry_failed=True)
    assert (resumed.exit_code, resumed.failed) == (0, ())


def test_failures_that_are_tolerated_stop_nothing(folder):
    outcome = drive(failing("r3", "r5"), folder, "limit=40", "budgets=[0,4]", "tolerate=0.05")
    assert (outcome.exit_code, outcome.stopped, outcome.ran) == (1, None, 120)


class Absent(InlineExecutor):
    """Nobody is there before `turns` have gone by."""

    def __init__(self, make_worker, turns):
        super().__init__(make_worker, 0)
        self.turns = turns

    def wait(self, seconds):
        self.turns -= 1
        if self.turns == 0:
            return [Joined(7, "A100")]
        return super().wait(0.0)


def test_a_worker_that_comes_late_is_waited_for_in_sight(folder):
    fakes, said = Fakes(), []
    outcome = drive(fakes, folder, make_executor=lambda: Absent(fakes.make_worker, 5), said=said)
    assert (outcome.exit_code, outcome.ran) == (0, 15)
    assert said == ["no worker is there; waiting up to 600 s for the cluster to start one"]


def test_where_no_worker_comes_the_sweep_gives_up_and_says_so(folder):
    fakes = Fakes()
    asked = "workers.scale_timeout=50"
    outcome = drive(fakes, folder, asked, make_executor=lambda: Absent(fakes.make_worker, 10_000))
    assert (outcome.exit_code, outcome.ran, outcome.status) == (3, 0, "KILLED")
    assert outcome.stopped == "no worker came within 50 s (workers.scale_timeout)"


def test_a_worker_that_leaves_in_the_middle_costs_only_time(folder):
    class Leaving(InlineExecutor):
        turns = 0

        def wait(self, seconds):
            self.turns += 1
            if self.turns == 5:
                self.stop(0)
                self._jobs.clear()
                return [Left(0), Joined(1)]
            return super().wait(seconds)

    fakes = Fakes()
    outcome = drive(fakes, folder, "limit=9", make_executor=lambda: Leaving(fakes.make_worker))
    assert (outcome.exit_code, outcome.ran, outcome.ignored) == (0, 45, 0)


class Hanging(InlineExecutor):
    """The first job never ends; the driver is signalled meanwhile."""

    def __init__(self, make_worker, number):
        super().__init__(make_worker)
        self.number, self.closed = number, False

    def wait(self, seconds):
        if not self._jobs:
            return super().wait(0.0)
        number, self.number = self.number, None
        if number is not None:
            signal.raise_signal(number)
        return []

    def close(self):
        self.closed = True


def test_sigterm_waits_for_what_is_in_flight_no_longer_than_its_notice(folder):
    fakes = Fakes()
    executor = Hanging(fakes.make_worker, signal.SIGTERM)
    outcome = drive(fakes, folder, "workers.grace=10", make_executor=lambda: executor)
    assert (outcome.exit_code, outcome.status, executor.closed) == (143, "KILLED", True)
    assert drive(Fakes(), folder).exit_code == 0


def test_a_full_disk_ends_the_sweep_and_costs_no_record_that_was_made(folder):
    @contextmanager
    def room(size):
        """A file may have so many bytes: what is written beyond is cut short, as on a disk that is full."""
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    whole = folder.with_name("whole")
    drive(Fakes(), whole, "limit=9")
    with room(10_000), pytest.raises(OSError, match="File too large"):
        drive(Fakes(), folder, "limit=9")
    kept = dict(Ledger(folder).results())
    assert 0 < len(kept) < 45
    assert drive(Fakes(), folder, "limit=9").exit_code == 0
    assert Ledger(folder).results() == Ledger(whole).results()
    assert kept.items() <= Ledger(whole).results().items()


def test_a_failed_record_says_its_cause_and_how_many_share_the_gpu(folder):
    row = plan_of(Fakes()).grid.rows[plan_of(Fakes()).grid.cells[0].group][0]
    drive(Fakes(deadly=frozenset({("spot", row)})), folder, "budgets=[0,4]")
    (failed,) = [record for record in Ledger(folder).results().values() if record["status"] == "failed"]
    assert (failed["cause"], failed["per_gpu"]) == ("cuda", 1)


# ---- what a failure is


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB"), "oom-cuda"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "cuda"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "oom-cuda"),
        (type("AcceleratorError", (RuntimeError,), {})("device-side assert"), "cuda"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 4 bytes"), "oom-host"),
        (MemoryError(), "oom-host"),
        (ValueError("no"), "exception"),
    ],
)
def test_an_exception_has_a_cause(error, cause):
    assert cause_of(error) == cause


def test_rays_errors_have_a_cause():
    from ray.exceptions import ActorDiedError, ActorUnschedulableError, OutOfMemoryError, RayActorError

    assert death_cause(OutOfMemoryError("Task was killed due to the node running low on memory.")) == "oom-host"
    assert death_cause(ActorUnschedulableError("the node is dead")) == "node-lost"
    assert death_cause(RayActorError("", "The actor died because its node has died. Node Id: 1")) == "node-lost"
    assert death_cause(ActorDiedError()) == "died"


# ---- hung workers


def test_a_worker_whose_passes_go_on_is_left_alone_however_long_its_task():
    dog = Watchdog(100.0)
    dog.alive(0, 0.0)
    for now in range(25, 10_000, 25):
        assert dog.due(now) == ([0], [])
        dog.answered(0, now, now)


def test_a_worker_that_makes_no_pass_is_hung_after_four_questions_answered_or_not():
    for answers in (True, False):
        dog, hung_at = Watchdog(100.0), None
        dog.alive(0, 0.0)
        for now in range(1, 200):
            _, hung = dog.due(now)
            if answers:
                dog.answered(0, 7, now)
            if hung:
                hung_at = now
                break
        assert 100 <= hung_at <= 150


def test_a_slow_answer_kills_no_worker_that_delivers():
    dog = Watchdog(100.0)
    for now in range(0, 10_000, 60):
        dog.alive(0, now)
        assert dog.due(now + 30)[1] == []


def test_the_time_that_the_driver_sleeps_counts_for_no_ones_silence():
    dog = Watchdog(100.0)
    dog.alive(0, 0.0)
    assert dog.due(1e6) == ([0], [])
    dog.forget(0)
    assert dog.due(2e6) == ([], [])


# ---- machines


GPU = Workers(device="cuda")


@pytest.mark.parametrize(
    ("machine", "workers", "room"),
    [
        ({"GPU": 2, "CPU": 16}, GPU, 2),
        ({"GPU": 2, "CPU": 16}, Workers(device="cuda", per_gpu=2), 4),  # each a half; a fifth finds no whole half
        ({"GPU": 2, "CPU": 3}, Workers(device="cuda", per_gpu=2), 3),
        ({"GPU": 8, "CPU": 16}, Workers(device="cuda", threads=4), 4),
        ({"GPU": 0.5, "CPU": 16}, GPU, 0),
        ({"CPU": 7}, Workers(threads=2), 3),
        ({"CPU": 7}, GPU, 0),
    ],
)
def test_a_machine_has_places_by_its_gpus_and_its_cores(machine, workers, room):
    assert places(machine, workers) == room


def test_workers_that_share_a_gpu_take_equal_parts_of_it():
    assert bundle(Workers(device="cuda", per_gpu=3, threads=2)) == {"CPU": 2, "GPU": 1 / 3}
    assert bundle(Workers(threads=2)) == {"CPU": 2}


def test_workers_join_with_nodes_that_come_and_leave_with_nodes_that_go():
    fleet, node = Fleet(GPU), {"GPU": 2.0, "CPU": 8.0, "accelerator_type:A100": 1.0}
    assert fleet.update({"n1": node}) == ({0: "A100", 1: "A100"}, [])
    assert fleet.update({"n1": node}) == ({}, [])
    assert fleet.update({"n1": node, "n2": {"GPU": 1, "CPU": 8}, "head": {"CPU": 4}}) == ({2: ""}, [])
    assert fleet.update({"n2": {"GPU": 1, "CPU": 8}}) == ({}, [0, 1])
    assert fleet.node(2) == "n2"


@given(st.lists(st.sets(st.sampled_from(range(4))), max_size=6), st.integers(1, 5))
def test_whatever_nodes_come_and_go_as_many_workers_are_there_as_are_asked_for_or_fit(history, count):
    fleet, there = Fleet(Workers(device="cuda", count=count)), set()
    for gpus in history:  # a node of each size
        came, gone = fleet.update({f"n{size}": {"GPU": size, "CPU": 99} for size in gpus})
        there = (there - set(gone)) | set(came)
        on = Counter(fleet.node(worker) for worker in there)
        assert on.total() == min(count, sum(gpus))
        assert all(on[node] <= int(node[1:]) and int(node[1:]) in gpus for node in on)


def test_auto_on_a_cluster_that_is_at_zero_asks_for_a_number_and_a_number_has_machines_started(monkeypatch):
    monkeypatch.setattr(executors, "reach", lambda workers, source: None)
    monkeypatch.setattr(executors, "startable", lambda workers: [{"GPU": 4, "CPU": 8}] * 3)
    config, source = configs.load("quickstart", ["workers.device=cuda", "workers.address=head:6379"])
    with pytest.raises(UserError, match=r"workers\.count: no machine with room is up.*e\.g\. workers\.count=8"):
        executors.check_room(config, source)
    assert executors.check_room(replace(config, workers=replace(config.workers, count=12)), source) == 12
    monkeypatch.setattr(executors, "_machines", lambda workers: [{"GPU": 1, "CPU": 8}])
    assert executors.check_room(config, source) == 1


def test_a_device_is_named_as_ray_names_it():
    assert kind({"CPU": 1, "accelerator_type:H100": 1}) == "H100"
    assert kind({"CPU": 1}) == ""


def test_a_hung_worker_is_a_death_like_any_other(folder):
    class Hung(InlineExecutor):
        hung = 0

        def wait(self, seconds):
            if self._jobs and self.hung < 1:
                self.hung += 1
                worker, _, _ = self._jobs[0]
                self._jobs.clear()
                self.stop(worker)
                return [Died(worker, "no pass and no delivery for 600 s (workers.hang_timeout)", "hung")]
            return super().wait(seconds)

    fakes = Fakes()
    outcome = drive(fakes, folder, make_executor=lambda: Hung(fakes.make_worker))
    assert (outcome.exit_code, outcome.ran) == (0, 15)
