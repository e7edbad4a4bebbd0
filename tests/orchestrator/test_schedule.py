"""The schedule alone: a simulated cluster in which workers die when hypothesis says so. No clock, no processes."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.schedule import IN_FLIGHT, Assign, Schedule, Start, Stop
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

    def run(self, steps=10_000):
        for _ in range(steps):
            for decision in self.schedule.decide():
                self.do(decision)
            if self.schedule.finished:
                return self
            self.step()
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
            job = self.schedule.died(worker, "died")
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
