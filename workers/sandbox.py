"""Run a program that a model wrote, and the checks on it, as hostile code: read-only, offline, bounded and killed.

    verdict = run_program("def add(a, b):\\n    return a + b\\n", "assert add(1, 2) == 3\\n")
    verdict.passed, verdict.reason      # True, "passed"

Each program runs in a fresh interpreter with the standard library only (`sandbox_child.py`), whose process may start
threads but no processes, open no socket and signal no one (`sandbox_filter.py`). It passes only by a random token that
comes out of a pipe after its last check; that file says why the program cannot send it itself. Hashes of strings are
the same in every run, so that a verdict can be repeated.

    mode           bubblewrap                                  process
    files          /usr and the interpreter, read-only and     the same with those packages, by Landlock; whether any
                   without packages installed there            other path exists, its size and times can be asked
    writable       a tmpfs of its own, in /tmp                 nothing
    user           as root one of no one's, else oneself       the same; root stays root, without capabilities, where
                   in a user namespace                         the interpreter can be read by root only
    apart          mounts, processes, network, IPC, hostname   nothing further; from Linux 6.12 on signals
    threads        64                                          64 for root who leaves root; for others those that the
                                                               memory allows
    needs          bwrap 0.8, as a user also user namespaces   Linux 6.2 with Landlock

A program ends with the scorer, however that ends. Not covered: bugs of the kernel and of CPython, the number of empty
files in the tmpfs (kernel memory, which the limit on CPU time bounds), and time that other load steals (the limits are
generous for that reason). Python 3.13 and later cannot contain a program (`sandbox_child.py` says why).
"""

import functools
import glob
import marshal
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from workers.sandbox_child import NATIVE
from workers.sandbox_filter import seccomp_filter

MODES = ("bubblewrap", "process")

_CHILD = compile(Path(__file__).with_name("sandbox_child.py").read_text(), "sandbox_child.py", "exec")
_START = """
import marshal
with open(0, "rb", closefd=False) as file:
    child, request = marshal.load(file)
exec(child)
main(globals().pop("request"))
"""
_LAUNCHER = str(Path(__file__).with_name("sandbox_launch.py"))
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
_TOO_NEW = (3, 13)  # a frame's variables can be written from then on, also those of the audit hook
_SYSTEM = ("/bin", "/lib", "/lib32", "/lib64", "/sbin")  # links into /usr on most systems
_NOBODIES = range(61184, 65520)  # users that systemd keeps for services which make up one for themselves
_REPORT = 1 << 16  # bytes that are kept of what a program may write to the pipe of the verdict
_CHUNK = 1 << 16  # bytes
_REASON = 300  # characters
_GRACE = 0.5  # seconds for a killed sandbox to be gone


class SandboxError(RuntimeError):
    """The sandbox itself did not start."""


@dataclass(frozen=True)
class Limits:
    """What one program may take: seconds of wall clock and of CPU, and bytes.

    Other load stretches CPU time least, so that limit is the one that judges, and the wall is for what sleeps: MBPP's
    slowest reference takes 2 s alone, and took more than 12 s, 6 of them of CPU, with two cores under a load of six.
    `memory` is of address space, and so of all its memory but for the tmpfs. `file_bytes` is of one file.
    """

    wall: float = 30
    cpu: int = 10
    memory: int = 1 << 30
    tmpfs_bytes: int = 64 << 20
    file_bytes: int = 16 << 20
    output_bytes: int = 1 << 20
    open_files: int = 64
    threads: int = 64


@dataclass(frozen=True)
class Verdict:
    """`reason` is one printable line: "passed" or why not. `output` is standard output and error, cut at the limit."""

    passed: bool
    reason: str
    seconds: float
    output: str


_LIMITS = Limits()
_ESCAPES = """
import os, socket
out = []
for attempt in (os.fork, socket.socket, lambda: os.kill(1, 0), lambda: open({!r}), lambda: open("/usr/x", "w")):
    try: out.append(attempt())
    except OSError: pass
"""


def run_program(code: str, checks: str, mode: str = "bubblewrap", limits: Limits = _LIMITS) -> Verdict:
    """Run `code`, then `checks` in the same namespace; passed if both got to their end.

    `code` may be anything; `checks` are trusted. Raises SandboxError only if the sandbox did not start, and ValueError
    on a machine for which there is none: `check` tells beforehand.
    """
    assert mode in MODES
    token, started = secrets.token_hex(16).encode(), time.perf_counter()
    with ExitStack() as files:
        ours, theirs = _pipe(files)
        output, output_end = _pipe(files)
        request = {"code": code, "checks": checks, "token": token + b"\n", "verdict": theirs.fileno()}
        filter_file = _memory_file(files, seccomp_filter())
        command, inside = (_bubblewrap if mode == "bubblewrap" else _process)(filter_file.fileno(), limits)
        request_file = _memory_file(files, marshal.dumps((_CHILD, request | inside)))
        try:
            process = subprocess.Popen(
                command, stdin=request_file, stdout=output_end, stderr=output_end, env=_ENVIRONMENT, cwd="/",
                pass_fds=(theirs.fileno(), filter_file.fileno()), start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise SandboxError(str(error)) from None
        theirs.close()
        output_end.close()
        try:
            report, printed, in_time = _watch(process, ours, output, started + limits.wall, limits.output_bytes)
        finally:
            _kill(process, output)
    text, lines = printed.decode(errors="replace"), report.split(b"\n")
    if lines[0] != b"started":
        late = f"nothing within {limits.wall:g} s"
        raise SandboxError((text.strip().splitlines() or ["no word of why" if in_time else late])[-1])
    passed = token in lines
    reason = "passed" if passed else _reason(lines, checks, process.returncode if in_time else None, limits)
    return Verdict(passed, reason, time.perf_counter() - started, text)


@functools.cache
def check(mode: str) -> None:
    """Raise ValueError, in one line, if `mode` is unknown or does not work here, to judge and to contain."""
    if mode not in MODES:
        raise ValueError(f"sandbox: {mode!r} is none of {', '.join(MODES)}")
    if sys.version_info >= _TOO_NEW:
        raise ValueError("sandbox: Python {}.{} and later cannot contain a program; use an older one".format(*_TOO_NEW))
    if built_in := [name for name in sys.builtin_module_names if name.startswith(NATIVE)]:  # importable unheard
        raise ValueError(f"sandbox: this Python has {built_in[0]} built in and cannot contain a program; use another")
    if mode == "bubblewrap":
        remedy = (
            "install bubblewrap 0.8 or later and allow user namespaces, or set `sandbox: process` in the task's YAML"
        )
    else:
        remedy = "it needs Linux 6.2 or later with Landlock"
    if mode == "bubblewrap" and not shutil.which("bwrap"):
        raise ValueError(f"sandbox: no bwrap was found; {remedy}")
    try:
        with tempfile.NamedTemporaryFile() as file:
            verdicts = {
                "good": run_program("import math, re\none = math.floor(1.5)", "assert one == 1", mode),
                "bad": run_program("one = 2", "assert one == 1", mode),
                "contained": run_program(_ESCAPES.format(file.name), "assert out == []", mode),
            }
    except (SandboxError, ValueError) as error:
        raise ValueError(f"sandbox: {mode} does not work here ({error}); {remedy}") from None
    if [verdict.passed for verdict in verdicts.values()] != [True, False, True]:
        found = ", ".join(f"{name}: {verdict.reason}" for name, verdict in verdicts.items())
        raise ValueError(f"sandbox: {mode} does not do its work here ({found}); {remedy}")


def _bubblewrap(filter_fd: int, limits: Limits) -> tuple[list[str], dict[str, int | dict[str, int]]]:
    """The command, and the part of the request that depends on the mode."""
    python, prefix = _interpreter()
    command = [shutil.which("bwrap") or "bwrap", "--die-with-parent", "--new-session"]
    command += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    uid = _nobody()
    if uid < 0:
        command += ["--unshare-user"]
    else:  # as root there is no need of one, and the interpreter may be root's alone: the child leaves root
        command += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    command += ["--ro-bind", "/usr", "/usr", "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    for path in filter(os.path.exists, _SYSTEM):
        command += ["--symlink", os.readlink(path), path] if os.path.islink(path) else ["--ro-bind", path, path]
    if not prefix.startswith("/usr/"):
        for folder in list(Path(prefix).parents)[-2::-1]:  # bwrap would make them root's alone
            command += ["--perms", "0755", "--dir", str(folder)]
        command += ["--ro-bind", prefix, prefix]
    for installed in _packages(prefix):
        command += ["--tmpfs", installed, "--remount-ro", installed]
    command += ["--dev", "/dev", "--remount-ro", "/dev"]
    command += ["--perms", "0777", "--size", str(limits.tmpfs_bytes), "--tmpfs", "/tmp", "--chdir", "/tmp"]
    command += ["--remount-ro", "/", "--seccomp", str(filter_fd), "--", *python]
    return command, {"uid": uid, "limits": _resources(limits) | {"RLIMIT_NPROC": limits.threads}}


def _process(filter_fd: int, limits: Limits) -> tuple[list[str], dict[str, int | dict[str, int]]]:
    python, prefix = _interpreter()
    readable = all(folder.stat().st_mode & 0o001 for folder in (Path(prefix), *Path(prefix).parents))
    uid = _nobody() if readable else -1
    paths = ":".join(["/usr", *_SYSTEM, "/etc/ld.so.cache", "/dev/zero", "/dev/urandom", prefix])
    launcher = [*_interpreter()[0][:-2], _LAUNCHER, str(os.getpid()), str(uid), str(filter_fd), paths]
    # a limit on threads counts all of a user's, so it is set for a user who has no others
    threads = {"RLIMIT_NPROC": limits.threads} if uid >= 0 else {}
    return [*launcher, *python], {"uid": -1, "limits": _resources(limits) | threads}


@functools.cache
def _interpreter() -> tuple[list[str], str]:
    """The command that runs the child, without the virtual environment's packages; and where its library is."""
    python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    return [python, "-s", "-P", "-S", "-B", "-c", _START], os.path.realpath(sys.base_prefix)


@functools.cache
def _packages(prefix: str) -> list[str]:
    """The folders of installed packages in what a sandbox can read."""
    patterns = [f"{root}/lib*/python*/*-packages" for root in (prefix, "/usr", "/usr/local")]
    found = {os.path.realpath(path) for pattern in patterns for path in glob.glob(pattern)}
    return sorted(path for path in found if path.startswith(("/usr/", f"{prefix}/")))


def _nobody() -> int:
    """A user for root to become, one of many so that limits a user count one program; -1 for who is not root."""
    return secrets.choice(_NOBODIES) if os.geteuid() == 0 else -1


def _resources(limits: Limits) -> dict[str, int]:
    return {
        "RLIMIT_AS": limits.memory,
        "RLIMIT_CPU": limits.cpu,
        "RLIMIT_FSIZE": limits.file_bytes,
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_CORE": 0,
    }


def _pipe(files: ExitStack) -> tuple[IO[bytes], IO[bytes]]:
    ends = os.pipe()
    return files.enter_context(open(ends[0], "rb", 0)), files.enter_context(open(ends[1], "wb", 0))


def _memory_file(files: ExitStack, content: bytes) -> IO[bytes]:
    """A file in memory, to be read from its start: of a pipe the writer would have to wait for the reader."""
    file: IO[bytes] = files.enter_context(os.fdopen(os.memfd_create("sandbox"), "w+b", 0))
    file.write(content)
    file.seek(0)
    return file


def _watch(
    process: subprocess.Popen, report: IO[bytes], output: IO[bytes], deadline: float, output_bytes: int
) -> tuple[bytes, bytes, bool]:
    """What the program reported and printed, up to a bound each, and whether it ended before the deadline."""
    read = {report.fileno(): bytearray(), output.fileno(): bytearray()}
    most = {report.fileno(): _REPORT, output.fileno(): output_bytes}
    poll = select.poll()
    for fd in read:
        poll.register(fd, select.POLLIN)
    left = len(read)
    while left and (remaining := deadline - time.perf_counter()) > 0:
        for fd, _ in poll.poll(1000 * remaining):
            chunk = os.read(fd, _CHUNK)
            read[fd] += chunk[: most[fd] - len(read[fd])]  # the rest is read too, or the program would wait
            if not chunk:
                poll.unregister(fd)
                left -= 1
    try:
        process.wait(max(0.0, deadline - time.perf_counter()))
        in_time = True
    except subprocess.TimeoutExpired:
        in_time = False
    return bytes(read[report.fileno()]), bytes(read[output.fileno()]), in_time


def _kill(process: subprocess.Popen, output: IO[bytes]) -> None:
    """Kill what is left. Whatever could still print has gone when the pipe says so."""
    process.kill()
    process.wait()
    poll, deadline = select.poll(), time.perf_counter() + _GRACE
    poll.register(output, select.POLLIN)
    while (remaining := deadline - time.perf_counter()) > 0:
        if poll.poll(1000 * remaining) and not os.read(output.fileno(), _CHUNK):
            return


def _reason(lines: list[bytes], checks: str, returncode: int | None, limits: Limits) -> str:
    """Why a program did not pass, in one printable line. `returncode` None: it had to be killed."""
    if returncode is None:
        return f"time-out after {limits.wall:g} s"
    for line in reversed(lines[1:]):
        number, _, text = line.decode(errors="replace").partition(" ")
        if number.isdecimal() and text:
            sources = checks.splitlines()
            place = int(number) if len(number) < 9 else 0
            where = f" (in: {sources[place - 1].strip()[:120]})" if 0 < place <= len(sources) else ""
            return "".join(char if char.isprintable() else " " for char in text[:_REASON] + where)
    ended_by = -returncode if returncode < 0 else returncode - 128
    if ended_by == signal.SIGXCPU:
        return f"time-out after {limits.cpu:g} s of CPU time"
    if ended_by in signal.valid_signals():
        return f"killed by {signal.Signals(ended_by).name}"
    return "ended before its last check"
