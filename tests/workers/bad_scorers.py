"""Scorers that misbehave, in a module that a scoring process imports at once."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from workers.tasks import Row, Score


def echo(row: Row, text: str) -> Score:
    """Well-behaved."""
    return Score(text == row.reference, text, notes={"niceness": os.nice(0)})


def raises(row: Row, text: str) -> Score:
    raise ValueError("no\nverdict")


def hangs(row: Row, text: str) -> Score:
    """In C, with the interpreter's lock held, and deaf to signals that can be ignored."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return Score(None, str(sum(range(10**15))))


def leaves_a_process(row: Row, text: str) -> Score:
    """Starts one that would never end, writes both numbers to the file `text`, and hangs."""
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    Path(text).write_text(f"{os.getpid()} {child.pid}")
    return hangs(row, text)


def kills_its_parent(row: Row, text: str) -> Score:
    """Having written its number to the file `text`."""
    Path(text).write_text(str(os.getpid()))
    os.kill(os.getppid(), signal.SIGKILL)
    return hangs(row, text)


def exits(row: Row, text: str) -> Score:
    os._exit(3)


def segfaults(row: Row, text: str) -> Score:
    os.kill(os.getpid(), signal.SIGSEGV)
    return Score(True, None)


def quits(row: Row, text: str) -> Score:
    sys.exit(0)


def takes_memory(row: Row, text: str) -> Score:
    return Score(True, str(len(bytearray(64 << 30))))


def floods(row: Row, text: str) -> Score:
    """A hundred megabytes to each of its outputs, then a verdict like another."""
    for stream in (1, 2):
        for _ in range(100):
            os.write(stream, b"x" * (1 << 20))
    return Score(True, "flooded")


def says_too_much(row: Row, text: str) -> Score:
    return Score(True, "x" * (2 << 20))


def returns_another_thing(row: Row, text: str) -> Score:
    return True  # type: ignore[return-value]


def answers_half_a_pair(row: Row, text: str) -> Score:
    return Score(True, "\ud800")
