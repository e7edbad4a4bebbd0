"""A text is scored in a child process: a scorer that raises, hangs or dies costs that text an `error` score, no more.

    judge = Judge()
    judge.score(task.score, row, text)    # a Score, whatever the scorer does
    judge.close()

The child starts with the first text, imports a task's module once, and is replaced when it is gone. It runs a little
behind the decoding workers, with its memory limited, and the kernel ends it with its parent. It is no sandbox: a
scorer is trusted, and must itself confine what it runs of a text (workers/sandbox.py).
"""

import ctypes
import json
import os
import pickle
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from threading import Lock
from typing import Any

from workers.tasks import Row, Score

SECONDS = 60.0  # for one text: a program has 30 s, and the first import of a scorer takes some
START_SECONDS = 60.0
# A program's time limits are wall time, so a scorer cannot stand back far: with both cores of a machine busy, 0.2 s of
# work took 0.6 s at niceness 0, 1.4 s at 5 and 24 s at 19, which would make right programs late ones.
NICENESS = 3
MEMORY_BYTES = 4 << 30  # of the scorer and, each, of what it starts; then a MemoryError
VERDICT_BYTES = 1 << 20
PR_SET_PDEATHSIG = 1


class Judge:
    """Scores one text at a time, waiting for at most `seconds`. `close` may be called from another thread."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._child: Child | None = None
        self._lock = Lock()
        self._closed = False

    def score(self, score: Callable[[Row, str], Score], row: Row, text: str) -> Score:
        """The verdict of `score`, which must pickle, or an `error`. Never raises for what the scorer does."""
        try:
            request = pickle.dumps((score, row, text))
        except Exception as error:
            return _error(f"the scorer cannot be sent to another process: {_said(error)}")
        with self._lock:
            try:
                return self._ask(request)
            except OSError as error:  # no process could be started, or it ended while it was being asked
                return _error(f"no scoring process: {_said(error)}")
            finally:
                if self._closed:
                    self._end()

    def close(self) -> None:
        """End the child, and the text it is at; a closed judge scores nothing more."""
        self._closed = True
        if (child := self._child) is not None:
            child.kill()
        with self._lock:
            self._end()

    def _ask(self, request: bytes) -> Score:
        if self._child is None or not self._child.alive:
            self._end()
            self._child = Child()
        if self._closed:  # asked once there is a child for `close` to see
            return _error("scoring was stopped")
        if self._child.read(START_SECONDS) is None:
            return self._lost("the scoring process did not start")
        self._child.connection.send_bytes(request)
        answer = self._child.read(self._seconds)
        return self._lost(f"no verdict within {self._seconds:g} s") if answer is None else Score(**json.loads(answer))

    def _lost(self, why: str) -> Score:
        """The child is gone, or has had its time."""
        assert self._child is not None
        died = self._child.died
        self._end()
        return _error(f"the scorer {died}" if died else why)

    def _end(self) -> None:
        if self._child is not None:
            self._child.end()
        self._child = None


class Child:
    """The process: in a group of its own, asked over a pipe that nothing it starts inherits."""

    def __init__(self) -> None:
        self.connection, theirs = Pipe()
        command = [sys.executable, "-P", "-m", "workers.scoring", str(theirs.fileno()), str(os.getpid())]
        path = os.pathsep.join(os.path.abspath(place) for place in sys.path)
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        nothing = subprocess.DEVNULL
        try:
            self._process = subprocess.Popen(
                command,
                stdin=nothing,
                stdout=nothing,
                stderr=nothing,
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        finally:
            theirs.close()
        self._ended = os.pidfd_open(self._process.pid)

    @property
    def alive(self) -> bool:
        """Whether it runs; one that does not is not reaped by asking."""
        return not wait([self._ended], 0)

    @property
    def died(self) -> str | None:
        """How it ended, None while it runs."""
        if self.alive:
            return None
        ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        killed = ended.si_code != os.CLD_EXITED
        name = signal.Signals(ended.si_status).name if killed else ""
        return f"died ({name})" if killed else f"ended its process (exit code {ended.si_status})"

    def read(self, seconds: float) -> bytes | None:
        """Its next message; None where it ended without one, or said nothing for so long."""
        if self.connection not in wait([self.connection, self._ended], seconds):
            return None
        try:
            return self.connection.recv_bytes(VERDICT_BYTES)
        except EOFError:
            wait([self._ended], 1.0)  # it is ending: the pipe closes a moment before
            return None

    def kill(self) -> None:
        """End it with everything in its group; it can still be waited for."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill and reap."""
        self.kill()
        self._process.wait()
        self.connection.close()
        os.close(self._ended)


def _error(why: str) -> Score:
    return Score(None, None, why[:300])


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


# ---- in the child


def serve(connection: Connection) -> None:
    """Say that there is room for a text, score it, say the verdict, until the other end is closed."""
    with suppress(EOFError, ConnectionError):
        while True:
            connection.send_bytes(b"ready")
            connection.send_bytes(_verdict(connection.recv_bytes()))


def _verdict(request: bytes) -> bytes:
    """JSON, so that nothing but plain values comes back."""
    try:
        score, row, text = pickle.loads(request)
        found = score(row, text)
        if not isinstance(found, Score):
            raise TypeError(f"a scorer returns a Score, not {found!r}")
        return _encoded(found)
    except Exception as error:  # the border
        return _encoded(_error(_said(error)))


def _encoded(score: Score) -> bytes:
    plain: dict[str, Any] = {**vars(score), "notes": dict(score.notes)}
    encoded = json.dumps(plain, ensure_ascii=False).encode("utf-8", "replace")  # half a surrogate pair goes on no file
    if len(encoded) > VERDICT_BYTES:
        raise ValueError(f"a verdict of {len(encoded)} bytes")
    return encoded


def _settle(parent: int) -> None:
    """Die with the parent, stand back behind decoding, and be the first to go where memory runs out."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was too late for that
        os._exit(1)
    os.nice(NICENESS)
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    soft = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


if __name__ == "__main__":
    _settle(int(sys.argv[2]))
    os.set_inheritable(int(sys.argv[1]), False)
    serve(Connection(int(sys.argv[1])))
