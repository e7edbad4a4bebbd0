"""Drivers that contend for one sweep on S3, cut off, crashing and coming back: one result a sample, nothing lost."""

import json
import shutil
from contextlib import suppress
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import lease as module
from orchestrator.errors import UserError
from orchestrator.lease import RENEW_SECONDS, TTL, Holder, LeaseLost, acquire, holder
from orchestrator.ledger import Ledger
from orchestrator.segments import BucketLog, fetch_segments, segment_name
from workers.store import Object, S3Path, StoreError, Tag

SWEEP = S3Path("bucket", "sweep")


class Memory:
    """A bucket in memory. `fault` says what becomes of the next write.

    "unsent" and "unheard" raise before and after it, "sent twice" answers as S3 answers the second time.
    """

    def __init__(self, clock=lambda: 0.0, fault=lambda: None):
        self.files, self._clock, self._fault, self._etags = {}, clock, fault, count(1)

    def read(self, name):
        if name not in self.files:
            raise FileNotFoundError(name)
        data, etag, written = self.files[name]
        return Object(data, etag, self._clock() - written)

    def get(self, name):
        return self.read(name).data

    def tags(self):
        return {name: Tag(etag, len(data)) for name, (data, etag, _) in sorted(self.files.items())}

    def create(self, name, data):
        return self._write(name, data, name not in self.files)

    def swap(self, name, data, etag):
        return self._write(name, data, name in self.files and self.files[name][1] == etag)

    def _write(self, name, data, allowed):
        fault = self._fault()
        if fault == "unsent":
            raise StoreError("no route")
        etag = f'"{next(self._etags)}"' if allowed else None
        if allowed:
            self.files[name] = (data, etag, self._clock())
        if fault == "unheard":
            raise StoreError("no answer")
        return None if fault == "sent twice" else etag


def someone(token, machine="here"):
    return Holder("host", 7, machine, "1", token)


def ticking(bucket, *happening):
    """A `sleep` during which things happen, one a call."""
    left = list(happening)
    return lambda seconds: left.pop(0)() if left else None


def test_the_first_driver_has_epoch_1_and_the_next_one_after_a_release_epoch_2():
    bucket = Memory()
    first = acquire(bucket, "sweep", someone("a"))
    assert (first.holder.epoch, str(holder(bucket))) == (1, "host, process 7")
    first.release()
    assert holder(bucket) is None
    assert acquire(bucket, "sweep", someone("b")).holder.epoch == 2


def test_a_holder_that_renews_is_alive_and_named():
    bucket = Memory()
    first = acquire(bucket, "sweep", someone("a"))
    with pytest.raises(UserError, match=r"sweep: another driver is running this sweep \(host, process 7\); wait for"):
        acquire(bucket, "sweep", someone("b"), sleep=ticking(bucket, lambda: None, first.renew))
    first.renew()  # nothing was touched


def test_one_that_is_silent_for_a_ttl_is_taken_over_and_learns_of_it():
    bucket, slept, said = Memory(), [], []
    first = acquire(bucket, "sweep", someone("a"))
    second = acquire(bucket, "sweep", someone("b"), said.append, slept.append)
    assert sum(slept) == TTL > 3 * RENEW_SECONDS
    assert said == ["host, process 7 has this sweep; watching for 30 s whether it lives"]
    assert second.holder.epoch == 2
    with pytest.raises(LeaseLost, match="this driver was cut off and its sweep taken over by host, process 7"):
        first.renew()
    assert first.lost
    first.release()
    second.renew()


def test_a_dead_process_of_this_machine_is_not_watched(monkeypatch):
    dead = replace(module.this_process(), pid=4_194_304, token="a")  # no pid is as large
    bucket = Memory()
    acquire(bucket, "sweep", dead)
    assert holder(bucket) is None
    assert acquire(bucket, "sweep", someone("b"), sleep=pytest.fail).holder.epoch == 2


def test_a_pid_that_came_back_is_another_process_and_this_one_is_alive():
    bucket = Memory()
    acquire(bucket, "sweep", me := module.this_process())
    assert holder(bucket) == me
    other = Memory()
    acquire(other, "sweep", replace(me, started="1"))
    assert holder(other) is None


def test_of_two_that_find_it_silent_one_takes_it_over():
    bucket = Memory()
    acquire(bucket, "sweep", someone("a"))
    looks = round(TTL / module.LOOK_SECONDS)
    faster = [lambda: None] * (looks - 1) + [lambda: acquire(bucket, "sweep", someone("b"), sleep=lambda s: None)]
    with pytest.raises(UserError, match="another driver is running"):
        acquire(bucket, "sweep", someone("c"), sleep=ticking(bucket, *faster))
    assert holder(bucket).token == "b"


def test_an_answer_that_is_lost_costs_nobody_the_lease():
    fault = [None]
    bucket = Memory(fault=lambda: fault.pop() if fault else None)
    fault[:] = ["sent twice"]
    first = acquire(bucket, "sweep", someone("a"))
    fault[:] = ["sent twice"]
    first.renew()
    assert first.holder.beat == 1
    fault[:] = ["unheard"]
    with pytest.raises(StoreError):
        first.renew()
    first.renew()
    assert not first.lost
    fault[:] = ["unheard"]
    with pytest.raises(StoreError):
        first.renew()
    first.release()
    assert holder(bucket) is None


def test_a_store_that_ignores_if_none_match_is_refused():
    class Old(Memory):
        def create(self, name, data):
            return self._write(name, data, True)

    with pytest.raises(
        UserError, match="store: this store ignores If-None-Match, and could not keep two drivers apart"
    ):
        acquire(Old(), "sweep", someone("a"))


# ---- any interleaving


class World:
    """Three drivers on two machines, a clock, and what a reader has seen of the log so far."""

    def __init__(self, data, folder):
        self.data, self.folder, self.now, self.depth = data, folder, 0.0, 0
        self.lease = Memory(lambda: self.now, self.fault)
        self.segments = Memory(lambda: self.now, self.fault)
        self.drivers, self.dead, self.numbers = [None, None, None], set(), count()
        self.seen, self.durable = {}, {}

    def fault(self):
        return self.data.draw(st.sampled_from([None] * 12 + ["unsent", "unheard", "sent twice"]))

    def step(self):
        who = self.data.draw(st.sampled_from([0, 1, 2]))
        if self.drivers[who] is None:
            self.start(who)
        else:
            self.act(
                who,
                self.data.draw(
                    st.sampled_from(["append", "append", "append", "sync", "sync", "sync", "renew", "crash", "close"])
                ),
            )
        self.look()

    def start(self, who):
        machine, token = ("near", "near", "far")[who], f"d{next(self.numbers)}"
        module._is_dead = lambda held: held.token in self.dead and held.machine == machine
        self.depth += 1
        try:
            held = acquire(self.lease, "sweep", Holder("host", who, machine, "", token), sleep=self.sleep)
            log = BucketLog(held, self.segments, self.folder / machine)
            ledger = Ledger(SWEEP, log)
            self.drivers[who] = (held, log, ledger)
            ledger._take_left_over(log, self.now)
        except (UserError, StoreError):
            self.end(who, token)
        finally:
            self.depth -= 1

    def sleep(self, seconds):
        self.now += seconds
        if self.depth < 3 and self.data.draw(st.integers(0, 5)) == 0:
            self.step()

    def act(self, who, action):
        held, _, ledger = self.drivers[who]
        try:
            if action == "append":
                row = self.data.draw(st.sampled_from("xy"))
                ledger.append({"kind": "decode", "cell": "c", "row": row, "status": "ok", "attempt": 1, "nfe": 1,
                               "text_sha": "s", "difference": None, "by": next(self.numbers)})  # fmt: skip
            elif action == "sync":
                for record in ledger.sync(self.now, force=True):
                    assert self.durable.setdefault(record["row"], record["by"]) == record["by"]
            elif action == "renew":
                held.renew()
            else:
                self.end(who, held.holder.token, crash=action == "crash")
        except (LeaseLost, StoreError, UserError):
            if held.lost:
                assert json.loads(self.lease.read("lease").data)["token"] != held.holder.token
                self.end(who, held.holder.token, crash=True)

    def end(self, who, token, crash=True):
        if self.drivers[who] is None:
            self.dead.add(token)
            return
        _, log, ledger = self.drivers[who]
        self.drivers[who] = None
        if crash:
            log._journal.close()  # which is what the system does
        else:
            with suppress(UserError):
                ledger.close()
        self.dead.add(token)

    def look(self):
        """What a reader sees only grows, and is never another result."""
        now: dict = {}
        for _, (data, _, _) in sorted(self.segments.files.items()):
            for record in map(json.loads, data.splitlines()):
                now.setdefault(record["row"], record["by"])
        assert self.seen.items() <= now.items()
        assert self.durable.items() <= now.items()
        self.seen = now


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_whatever_happens_a_sample_has_one_result_and_what_is_durable_stays(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("world")
    kept = module._is_dead
    try:
        world = World(data, folder)
        for _ in range(data.draw(st.integers(5, 30))):
            world.step()
        fetched = SimpleNamespace(files=lambda: fetch_segments(world.segments, folder / "reader"))
        found = {row: record["by"] for (_, row), record in Ledger(SWEEP, fetched).results().items()}
        assert found == world.seen
    finally:
        module._is_dead = kept
        for driver in world.drivers:
            if driver:
                driver[1]._journal.close()
        shutil.rmtree(folder)


def test_segment_names_sort_by_epoch_and_sequence():
    places = [(1, 2), (1, 10), (2, 1), (10, 1)]
    assert sorted(segment_name(*at) for at in places) == [segment_name(*at) for at in places]
