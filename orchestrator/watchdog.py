"""Which workers hang: pure bookkeeping, for the executor to ask. design.md §5.

A worker that has delivered nothing for a quarter of the time-out is asked how many passes it has made, and again every
quarter. Four answers in a row that are the same, or not there, and it hangs. So a slow answer alone is no failure, nor
is a long task whose passes go on, nor a driver that was itself asleep: time that it did not ask in does not count.
A worker that loads its model has a watchdog of another time-out, is asked nothing and so has until that is over.
"""

from dataclasses import dataclass

ASKED = 4  # times within the time-out


@dataclass
class _Watched:
    since: float
    passes: int | None = None
    asked: int = 0


class Watchdog:
    """The busy, or the loading, workers; times are seconds of any clock."""

    def __init__(self, timeout: float) -> None:
        self._every = timeout / ASKED
        self._workers: dict[int, _Watched] = {}

    def alive(self, worker: int, now: float) -> None:
        """It has begun to work, or has delivered something."""
        self._workers[worker] = _Watched(now)

    def forget(self, worker: int) -> None:
        """It has nothing to do, or is gone."""
        self._workers.pop(worker, None)

    def answered(self, worker: int, passes: int, now: float) -> None:
        """It has made so many passes since it was started."""
        held = self._workers.get(worker)
        if held is not None and passes != held.passes:
            self._workers[worker] = _Watched(now, passes)

    def due(self, now: float) -> tuple[list[int], list[int]]:
        """(those to ask now, those that hang)."""
        late = {worker: held for worker, held in self._workers.items() if now - held.since >= self._every}
        for held in late.values():
            held.since, held.asked = now, held.asked + 1
        hung = [worker for worker, held in late.items() if held.asked > ASKED]
        return [worker for worker in late if worker not in hung], hung
