"""The schedule alone: a simulated cluster in which workers die when hypothesis says so. No clock, no processes."""

import math
from collections import Counter
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.schedule import IN_FLIGHT, MOST_LOSSES, Assign, Schedule, Start, Stop
from orchestrator.simulate import Device, Faults, simulate
from workers.work import DecodeSpec, DrafterSpec, MethodTask, ModelSpec, SampleTask

MODELS = {name: ModelSpec(name, "sdar", name, "sha", 32) for name in ("a", "b", "c")}
SPOT = DrafterSpec("spot", "spot")


def sample_task(model="a", row="r0", methods=2):
    cells = tuple(MethodTask(f"{model}-m{i}", SPOT, i + 1) for i in range(methods))
    return SampleTask(
        "sweep", MODELS[model], "task", row, "", DecodeSpec(8, 0.0, 0), MethodTask(f"{model}-c", None, 0), cells
    )


def rows(model, start, stop, methods=2):
    return [sample_task(model, f"r{i}", methods) for i in range(start, stop)]


def cells(task):
    return [(m.cell, task.row) for m in (task.control, *task.methods) if m is not None]


class Cluster:
    """Runs a schedule: workers finish in turn, and die of a job where `deadly` says so."""

    def __init__(self, schedule, deadly=lambda task: False, chance=lambda: False):
        self.schedule, self.deadly, self.chance = schedule, deadly, chance
        self.queues, self.models, self.loads = {}, {}, []
        self.done, self.condemned, self.order, self.most = Counter(), Counter(), [], 0
        self.now = 0.0

    def run(self, steps=10_000):
        for _ in range(steps):
            for decision in self.schedule.decide(self.now):
                self.do(decision)
            if self.schedule.finished:
                return self
            self.step()
            self.now += 1.0
        raise AssertionError("the schedule never finishes")

    def do(self, decision):
        if isinstance(decision, Start):
            self.models[decision.worker], self.queues[decision.worker] = decision.model, []
            self.loads.append(decision.model)
            self.schedule.started(decision.worker)
        elif isinstance(decision, Assign):
            assert self.models[decision.worker] == decision.job.model
            self.queues[decision.worker].append(decision.job)
            self.most = max(self.most, len(self.queues[decision.worker]))
        else:
            assert isinstance(decision, Stop)
            assert not self.queues[decision.worker]
            del self.queues[decision.worker]

    def step(self):
        worker = max(self.queues, key=lambda w: len(self.queues[w]), default=None)
        if worker is None or not self.queues[worker]:
            return
        if self.deadly(self.queues[worker][0].task) or self.chance():
            job = self.schedule.died(worker, "died", now=self.now)
            del self.queues[worker]
            self.condemned.update(cells(job.task) if job else [])
        else:
            job = self.queues[worker].pop(0)
            self.schedule.finished_job(worker, job.number)
            self.done.update(cells(job.task))
            self.order.append(job)


def everything(tasks):
    return Counter(cell for task in tasks for cell in cells(task))


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 4), st.lists(st.integers(0, 5), min_size=1, max_size=3), st.integers(1, 3))
def test_under_any_deaths_every_sample_is_done_once_or_condemned_once(data, workers, sizes, retries):
    tasks = [task for model, size in zip("abc", sizes, strict=False) for task in rows(model, 0, size)]
    schedule = Schedule([tasks[::2], tasks[1::2]], workers, retries)
    cluster = Cluster(schedule, chance=lambda: data.draw(st.integers(0, 3)) == 0).run()
    assert cluster.done + cluster.condemned == everything(tasks)


def test_a_poison_cell_is_condemned_alone_and_its_neighbours_are_done():
    tasks = rows("a", 0, 6)
    poison = ("a-m1", "r3")
    cluster = Cluster(Schedule([tasks], 2), deadly=lambda task: poison in cells(task)).run()
    assert cluster.condemned == {poison: 1}
    assert cluster.done == everything(tasks) - cluster.condemned


def test_the_job_that_waited_behind_the_poison_is_not_blamed():
    tasks = rows("a", 0, 2, methods=0)
    cluster = Cluster(Schedule([tasks], 1), deadly=lambda task: task.row == "r0").run()
    assert cluster.condemned == {("a-c", "r0"): 1}
    assert [job.deaths for job in cluster.order] == [0]


def test_a_delivery_lost_in_a_neighbours_death_convicts_nobody_but_the_poison():
    """The job before the poison was done, but its delivery dies with the worker: it looks like the one to blame."""
    tasks = rows("a", 0, 6)
    poison = ("a-m1", "r3")

    class Lossy(Cluster):
        def step(self):
            held = next((queue for queue in self.queues.values() if queue), [])
            fatal = any(poison in cells(job.task) for job in held)
            self.deadly = lambda task: fatal
            super().step()

    cluster = Lossy(Schedule([tasks], 1)).run()
    assert cluster.condemned == {poison: 1}
    assert cluster.done == everything(tasks) - cluster.condemned


def test_an_attempt_is_counted_for_every_death():
    cluster = Cluster(Schedule([rows("a", 0, 1)], 1), chance=iter([True, False]).__next__).run()
    assert [job.task.methods[0].attempt for job in cluster.order] == [2]


def test_the_first_wave_of_every_model_comes_before_any_second_wave():
    schedule = Schedule([rows("a", 0, 4) + rows("b", 0, 4), rows("a", 4, 20) + rows("b", 4, 20)], 1)
    cluster = Cluster(schedule).run()
    waves = [job.wave for job in cluster.order]
    assert waves == sorted(waves)
    assert cluster.loads == ["a", "b", "a"]


def test_with_a_worker_for_each_model_each_model_is_loaded_once():
    schedule = Schedule([rows("a", 0, 20) + rows("b", 0, 20), rows("a", 20, 60) + rows("b", 20, 50)], 2)
    cluster = Cluster(schedule).run()
    assert sorted(cluster.loads[:2]) == ["a", "b"]
    assert len(cluster.loads) <= 3  # a worker that runs dry may help the other


def test_no_worker_is_started_for_work_that_the_others_can_take():
    assert Cluster(Schedule([rows("a", 0, 2)], 8)).run().loads == ["a"]
    assert len(Cluster(Schedule([rows("a", 0, 9)], 8)).run().loads) <= 5


def test_a_worker_holds_two_jobs_and_no_more():
    assert Cluster(Schedule([rows("a", 0, 20)], 2)).run().most == IN_FLIGHT == 2


def test_every_worker_gets_a_first_job_before_any_gets_a_second():
    schedule = Schedule([rows("a", 0, 5)], 2)
    for decision in schedule.decide():
        schedule.started(decision.worker)
    workers = [d.worker for d in schedule.decide() if isinstance(d, Assign)]
    assert workers == [0, 1, 0, 1]


def test_a_drained_schedule_hands_out_nothing_and_ends_with_what_is_running():
    schedule = Schedule([rows("a", 0, 5)], 1)
    schedule.decide()
    schedule.started(0)
    jobs = [d.job.number for d in schedule.decide()]
    schedule.drain()
    assert schedule.decide() == []
    assert not schedule.finished
    for job in jobs:
        schedule.finished_job(0, job)
    assert schedule.finished


def test_workers_are_dismissed_once_those_that_are_loading_too():
    schedule = Schedule([rows("a", 0, 1) + rows("b", 0, 1)], workers=3)
    assert [type(decision) for decision in schedule.decide()] == [Start, Start]
    schedule.started(0)
    schedule.drain()
    assert schedule.dismiss() == [Stop(0), Stop(1)]
    assert schedule.dismiss() == []
    assert (schedule.finished, schedule.states()) == (True, {})


def test_a_model_that_never_loads_is_given_up_and_the_others_go_on():
    schedule = Schedule([rows("a", 0, 3) + rows("b", 0, 3)], 2)
    done = Counter()
    while not schedule.finished:
        for decision in schedule.decide():
            if isinstance(decision, Start) and decision.model == "a":
                schedule.died(decision.worker, "no such weights")
            elif isinstance(decision, Start):
                schedule.started(decision.worker)
            else:
                schedule.finished_job(decision.worker, decision.job.number)
                done.update(cells(decision.job.task))
    assert schedule.given_up == {"a": "no such weights"}
    assert done == everything(rows("b", 0, 3))


def test_where_there_is_room_for_one_worker_less_the_sweep_runs_with_one_less():
    schedule = Schedule([rows("a", 0, 10)], 2)
    done = Counter()
    while not schedule.finished:
        for decision in schedule.decide():
            if isinstance(decision, Start) and decision.worker == 1:
                schedule.died(1, "out of memory")
            elif isinstance(decision, Start):
                schedule.started(decision.worker)
            else:
                schedule.finished_job(decision.worker, decision.job.number)
                done.update(cells(decision.job.task))
    assert not schedule.given_up
    assert done == everything(rows("a", 0, 10))


def test_a_worker_that_joins_late_gets_work_and_what_one_held_that_leaves_goes_back_unblamed():
    schedule = Schedule([rows("a", 0, 6)])
    assert (schedule.decide(), schedule.stuck) == ([], True)
    schedule.joined(0)
    schedule.joined(1)
    assert schedule.decide() == [Start(0, "a"), Start(1, "a")]
    for worker in (0, 1):
        schedule.started(worker)
    held = {d.job.task.row for d in schedule.decide() if d.worker == 0}
    schedule.left(0)
    schedule.left(1)
    assert schedule.stuck and not schedule.finished
    schedule.joined(2)
    cluster = Cluster(schedule).run()
    assert cluster.done == everything(rows("a", 0, 6))
    again = [job for job in cluster.order if job.task.row in held]
    assert {(job.deaths, job.losses) for job in again} == {(0, 1)}
    assert {job.task.control.attempt for job in again} == {2}


def test_machines_that_vanish_around_a_job_are_its_fault_only_when_they_are_many():
    lost = 0

    def run(times):
        nonlocal lost
        schedule = Schedule([rows("a", 0, 1, methods=0)], 1)
        for now in range(0, 10_000, 100):
            for decision in schedule.decide(now):
                if isinstance(decision, Start):
                    schedule.started(decision.worker)
                elif lost < times:
                    lost += 1
                    if schedule.died(0, "gone", "node-lost", now):
                        return "condemned"
                else:
                    schedule.finished_job(0, decision.job.number)
                    return "done"

    assert run(MOST_LOSSES) == "done"
    lost = 0
    assert run(10_000) == "condemned"


def test_a_worker_that_keeps_failing_waits_longer_and_longer_and_one_that_delivers_is_forgiven():
    schedule = Schedule([rows("a", 0, 50)], 1, retries=50)
    now, starts = 0.0, []
    while len(starts) < 10:
        for decision in schedule.decide(now):
            if isinstance(decision, Start):
                starts.append(now)
                schedule.died(0, "no", "node-lost", now)
        now = schedule.wakes
    assert [later - sooner for sooner, later in pairwise(starts)] == [0, 1, 2, 4, 8, 16, 32, 60, 60]
    assert schedule.states() == {"": {"waiting": 1}}
    schedule.decide(now)
    schedule.started(0)
    schedule.finished_job(0, schedule.decide(now)[0].job.number)
    schedule.died(0, "no", "died", now)
    assert schedule.wakes == now


def test_a_model_goes_where_it_fits_and_a_small_device_gets_what_fits_nowhere_else_but_it():
    fits = lambda model, kind: (model, kind) != ("b", "small")  # noqa: E731
    schedule = Schedule([rows("a", 0, 20) + rows("b", 0, 20)], fits=fits)
    for worker, kind in enumerate(["large", "small"]):
        schedule.joined(worker, kind)
    assert set(schedule.decide()) == {Start(0, "b"), Start(1, "a")}


def test_a_model_that_fits_no_worker_leaves_the_schedule_stuck_until_one_joins():
    schedule = Schedule([rows("b", 0, 3)], fits=lambda model, kind: kind == "large")
    schedule.joined(0, "small")
    assert (schedule.decide(), schedule.stuck) == ([], True)
    schedule.joined(1, "large")
    assert schedule.decide() == [Start(1, "b")]


def test_a_kind_of_device_that_cannot_load_a_model_is_not_asked_again_where_another_can():
    schedule = Schedule([rows("a", 0, 30)])
    for worker, kind in enumerate(["small", "small", "large"]):
        schedule.joined(worker, kind)
    done, starts = Counter(), Counter()
    now = 0.0
    while not schedule.finished:
        now += 100
        for decision in schedule.decide(now):
            if isinstance(decision, Start):
                starts[decision.worker] += 1
                schedule.started(2) if decision.worker == 2 else schedule.died(decision.worker, "OOM", "oom-cuda", now)
            else:
                schedule.finished_job(decision.worker, decision.job.number)
                done.update(cells(decision.job.task))
    assert not schedule.given_up
    assert done == everything(rows("a", 0, 30))
    assert starts == {0: 1, 1: 1, 2: 1}


def test_the_last_jobs_wait_behind_no_other():
    schedule = Schedule([rows("a", 0, 5)], 3)
    for decision in schedule.decide():
        schedule.started(decision.worker)
    assert [d.worker for d in schedule.decide()] == [0, 1, 2]


# ---- on paper


def fleet(data, n):
    return [
        Device(
            data.draw(st.sampled_from(["small", "large"])),
            data.draw(st.sampled_from([0.5, 1.0, 2.0])),
            data.draw(st.sampled_from([0.0, 5.0, 50.0])),
            data.draw(st.sampled_from([60.0, 200.0, math.inf])),
        )
        for _ in range(n)
    ] + [Device("large")]


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(0, 5), st.lists(st.integers(0, 8), min_size=1, max_size=3), st.integers(1, 3))
def test_with_devices_that_differ_come_go_and_fail_every_sample_is_done_once_or_condemned_once(
    data, devices, sizes, retries
):
    tasks = [task for model, size in zip("abc", sizes, strict=False) for task in rows(model, 0, size)]
    fits = lambda model, kind: (model, kind) != ("c", "small")  # noqa: E731
    faults = Faults(data.draw(st.sampled_from([20.0, 100.0, math.inf])), poison=lambda task: task.row == "r1")
    schedule = Schedule([tasks[::2], tasks[1::2]], retries=retries, fits=fits)
    run = simulate(schedule, fleet(data, devices), lambda m: 10.0, lambda t: 3.0, faults, data.draw(st.integers(0, 9)))
    done = Counter(cell for job in run.done for cell in cells(job.task))
    condemned = Counter(cell for job in run.condemned for cell in cells(job.task))
    assert schedule.finished
    assert done + condemned == everything([task for task in tasks if task.model.name not in schedule.given_up])
    assert all(cell in condemned for task in tasks if task.row == "r1" for cell in cells(task)) or schedule.given_up


def test_on_a_hundred_devices_a_sweep_takes_little_longer_than_it_must_and_loads_little_more():
    tasks = [task for model, size in zip("abc", (2600, 1600, 800), strict=True) for task in rows(model, 0, size)]
    devices, load, seconds = 100, 30.0, {"a": 10.0, "b": 20.0, "c": 30.0}
    schedule = Schedule([tasks], cost=lambda task: seconds[task.model.name])
    run = simulate(schedule, [Device()] * devices, lambda m: load, lambda t: seconds[t.model.name])
    assert len(run.done) == len(tasks)
    assert run.makespan <= 1.05 * (run.busy / devices + load)
    assert run.loads.total() <= 1.1 * devices
    assert run.decided / everything(tasks).total() < 100e-6
