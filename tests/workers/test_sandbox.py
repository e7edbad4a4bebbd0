"""Model-written programs are judged by their checks alone, and harm nothing, whatever they do."""

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from workers import sandbox, sandbox_child, sandbox_launch
from workers.sandbox import Limits, SandboxError, check, run_program
from workers.sandbox_filter import seccomp_filter

ROOT = Path(__file__).resolve().parents[2]
CHECKS = "assert f(1) == 2\nassert f(2) == 3\n"
GOOD = "def f(x):\n    return x + 1\n"
BAD = "def f(x):\n    return 0\n"


def unusable(mode):
    try:
        check(mode)
    except ValueError as error:
        return str(error)
    return None


@pytest.fixture(params=[pytest.param("bubblewrap", marks=pytest.mark.service("bubblewrap")), "process"])
def mode(request):
    if request.param == "process" and (reason := unusable("process")):
        pytest.skip(reason)
    return request.param


def until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        os.sched_yield()


def descendants(pid):
    try:
        children = [
            child for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()
        ]
    except OSError:  # it has ended
        return []
    return [found for child in map(int, children) for found in (child, *descendants(child))]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_good_program_passes_and_a_bad_one_is_told_why(mode):
    good = run_program(GOOD, CHECKS, mode)
    assert (good.passed, good.reason, good.output) == (True, "passed", "") and 0 < good.seconds < 30
    bad = run_program(BAD, CHECKS, mode)
    assert not bad.passed and bad.reason == "AssertionError (in: assert f(1) == 2)"


@pytest.mark.parametrize(
    "code, checks, reason",
    [
        ("def f(x)\n    return x", "", "SyntaxError: expected ':' (<program>, line 1)"),
        ("x = '''", "assert False", "SyntaxError: unterminated triple-quoted string literal"),
        ("x = 1\0", "", "source code string cannot contain null bytes"),
        ("x = '\ud800'\n", "", "UnicodeEncodeError"),
        ("(" * 5000, "", "too many nested parentheses"),
        ("import numpy", "", "ModuleNotFoundError: No module named 'numpy'"),
        ("input()", "", "EOFError: EOF when reading a line"),
        (GOOD, "assert f(1) == 3, 'off\\nby one'", "AssertionError: off by one (in: assert f(1) == 3, 'off\\nby one')"),
        (GOOD, "\n\nf('a')", 'TypeError: can only concatenate str (not "int") to str (in: f(\'a\'))'),
        (GOOD, "g(1)", "NameError: name 'g' is not defined (in: g(1))"),
        ("def f(x):\n    return f(x)", "f(1)", "RecursionError: maximum recursion depth exceeded"),
        ("x = bytearray(20 << 30)", "", "MemoryError"),
        ("x = []\nwhile True: x.append('a' * 1000000)", "", "MemoryError"),
        ("import itertools\nlist(itertools.product(range(100), repeat=10))", "", "MemoryError"),
        ("import sys\nsys.exit(0)", "", "ended before its last check"),
        ("import os\nos.abort()", "", "killed by SIG"),
        ("import faulthandler\nfaulthandler._read_null()", "", "killed by SIGSEGV"),
        ("import ctypes\nctypes.string_at(0)", "", "refused: import of _ctypes"),
        ("open('big', 'wb').write(b'x' * (17 << 20))", "", "Error: [Errno "),
        ("class E(Exception):\n    def __str__(self): 1 / 0\nraise E", "", "E"),
    ],
)  # fmt: skip
def test_the_reason_of_a_failure_is_one_line_that_helps(mode, code, checks, reason):
    verdict = run_program(code, checks, mode, Limits(memory=256 << 20))
    assert not verdict.passed and reason in verdict.reason and "\n" not in verdict.reason


def test_a_reason_is_printable(mode):
    unclean = "\x1b[2J \r \x0b \0 \x85 \u2028 \u2029 \u202e"
    raised = run_program(f"raise ValueError({('a' + unclean + 'b')!r})", "", mode)
    written = run_program(
        f"import os\nfor fd in range(3, 64):\n    try: os.write(fd, {('0 a' + unclean + 'b').encode()!r} + b'\\n')\n"
        "    except OSError: pass\nos._exit(0)",
        "",
        mode,
    )
    for reason in (raised.reason.removeprefix("ValueError: "), written.reason):
        assert reason.isprintable() and reason.startswith("a") and reason.endswith("b")


@pytest.mark.parametrize(
    "code",
    [
        "if __name__ == '__main__':\n    raise SystemExit",
        "print('hello')\nimport sys\nprint('you', file=sys.stderr)",
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: 'int' = 0\nassert A() == A(0)",
        "import pickle\nclass A: pass\nassert type(pickle.loads(pickle.dumps(A()))) is A",
        "from collections import namedtuple\nfrom enum import Enum\nfrom typing import NamedTuple, TypeVar\n"
        "T = TypeVar('T')\nA = namedtuple('A', 'x')\nclass B(Enum):\n    X = 1\nclass C(NamedTuple):\n    x: int",
        "import asyncio\nasync def g(): return 1\nassert asyncio.run(g()) == 1",
        "import asyncio\nasync def g():\n    await asyncio.gather(asyncio.sleep(0), asyncio.to_thread(abs, 1))\n"
        "    async with asyncio.timeout(9): await asyncio.sleep(0.001)\nasyncio.run(g())",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(0.05,)).start()",
        "import doctest\ndoctest.testmod()",
        "import doctest\ndef g():\n    '>>> g()\\n1'\n    return 1\ndoctest.run_docstring_examples(g, globals())\n"
        "assert doctest.DocTestRunner().run(doctest.DocTestFinder().find(g, 'g', globs={'g': g})[0]) == (0, 1)",
        "import sys\nsys.settrace(None)\nsys.setprofile(None)",
        "import fcntl, os, shutil, sys, tempfile, termios\nr, w = os.pipe()\nos.set_inheritable(r, True)\n"
        "os.set_inheritable(r, False)\nos.set_blocking(r, False)\nos.isatty(r)\nshutil.get_terminal_size()\n"
        "fcntl.ioctl(r, termios.FIONREAD, bytes(4))\nfcntl.fcntl(r, fcntl.F_GETFL)\nos.dup(r)",
        "import socket\na, b = socket.socketpair()\na.setblocking(False)\na.send(b'1')\nassert b.recv(9) == b'1'",
        "import os, sqlite3, ssl, hashlib, locale\nos.environ['X'] = '1'\ndel os.environ['X']\n"
        "assert sqlite3.connect(':memory:').execute('select 1').fetchone() == (1,)",
        "import threading\nthread = threading.Thread(target=print)\nthread.start()\nthread.join()",
        "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(4) as pool:\n"
        "    assert sum(pool.map(abs, range(9))) == 36",
        "import logging, warnings, traceback\nlogging.warning('a')\nwarnings.warn('b')\n"
        "try: 1 / 0\nexcept ZeroDivisionError: traceback.print_exc()",
        "import decimal, fractions, hashlib, heapq, json, random, re, statistics, uuid, zoneinfo\nuuid.uuid4()",
        "import sys\nsys.setrecursionlimit(10000)\ndef g(n): return n and 1 + g(n - 1)\nassert g(9000) == 9000",
        "class A:\n    def __del__(self): 1 / 0\nA()",
        "import sys\nsys.stdout.close()",
        "def check(candidate): raise ValueError",
        "x = 1\r\nif x:\r\n    y = 2\r\n",
        "x = 1  # " + "a" * 1_000_000,
        "",
    ],
)  # fmt: skip
def test_what_honest_programs_do_is_no_reason_to_fail(mode, code):
    verdict = run_program(code, "def check(candidate): assert candidate(-1) == 1\ncheck(abs)\n", mode)
    assert verdict.passed, verdict


def test_a_program_may_write_in_its_tmpfs_and_only_so_much(bubblewrap):
    code = "import os, tempfile\nwith tempfile.TemporaryFile() as file: file.write(b'a')\nopen('a', 'w').write('b')\n"
    assert run_program(code, "assert open('/tmp/a').read() == 'b' and os.getcwd() == '/tmp'", bubblewrap).passed
    many = "for i in range(100): open(str(i), 'wb').write(b'x' * (1 << 20))"
    assert "No space left on device" in run_program(many, "", bubblewrap, Limits(cpu=5)).reason
    assert run_program("import os", "assert os.listdir() == []", bubblewrap).passed  # nothing of the last one


# Each is run when the program is defined, and when the checks call it. `f` is wrong, so none may pass.
DEEDS = {
    "exits": "import sys; sys.exit(0)",
    "exits at once": "import os; os._exit(0)",
    "raises SystemExit": "raise SystemExit",
    "ends its thread": "import _thread; _thread.exit()",
    "kills itself": "import os; os.kill(os.getpid(), 9)",
    "becomes another program": "import os, sys; os.execv(sys.executable, [sys.executable, '-c', 'pass'])",
    "leaves a sitecustomize": """
        import os, sys
        try: open('sitecustomize.py', 'w').write('raise SystemExit(0)')
        except OSError: pass
        os.execve(sys.executable, [sys.executable, '-c', 'pass'], {'PYTHONPATH': '.'})""",
    "writes to every pipe": "spill([b'passed', b'0', b'1', b'True', b'started', bytes(32)])",
    "reads every pipe, and writes it back": """
        import os
        for fd in range(64):
            try: spill([os.read(fd, 1000)] if fd and not os.isatty(fd) and os.set_blocking(fd, False) is None else [])
            except OSError: pass""",
    "looks in the arguments and the environment": """
        import os, sys
        spill([*sys.argv, *sys.orig_argv, *os.environ.values()])""",
    "looks in /proc": """
        for name in ('cmdline', 'environ', 'maps', 'mem', 'fd/0', 'fd/3', 'fd/4', 'fd/5', '../1/environ'):
            try: spill([open('/proc/self/' + name, 'rb').read(1000000)])
            except OSError: pass""",
    "walks its frames": "import sys; walk(sys._getframe())",
    "walks the frames of an exception": """
        try: 1 / 0
        except ZeroDivisionError as error: walk(error.__traceback__.tb_frame)""",
    "walks the frames of all threads": """
        import sys
        for frame in sys._current_frames().values(): walk(frame)""",
    "asks the garbage collector": "import gc; spill(gc.get_objects())",
    "asks for referents": "import gc, sys; spill(gc.get_referents(sys.modules))",
    "walks the frames of the collector's callbacks": """
        import gc, sys
        def callback(*_):
            frame = sys._getframe()
            while frame:
                for value in list(frame.f_locals.values()): spill([value, *getattr(value, 'args', ())])
                frame = frame.f_back
        gc.callbacks.append(callback)
        gc.set_threshold(1)""",
    "listens to events": "import sys; sys.addaudithook(lambda event, arguments: spill(arguments))",
    "listens for what is not caught": """
        import sys
        sys.unraisablehook = lambda unraisable: (explore(unraisable, 6), walk(sys._getframe()))
        sys.excepthook = lambda *arguments: explore(arguments, 6)
        raise ValueError""",
    "patches the harness": """
        import sys
        main = sys.modules['__main__']
        explore(main, 4)
        for name in list(vars(main)): setattr(main, name, lambda *_, **__: True)""",
    "patches what a harness uses": """
        import builtins, functools, io, json, os, sys
        for module in (builtins, functools, io, json, os, sys):
            for name in ('exec', 'compile', 'write', 'loads', 'dumps', 'open', 'exit', '_exit', 'AssertionError'):
                if hasattr(module, name): setattr(module, name, lambda *_, **__: True)""",
    "replaces its builtins": "globals()['__builtins__'] = {'abs': lambda x: 2, '__import__': __import__}",
    "registers an exit": """
        import atexit, os
        atexit.register(os._exit, 0)
        raise SystemExit""",
    "jumps over lines": """
        import sys
        def tracer(frame, event, argument):
            if event == 'line' and frame.f_code.co_filename == '<checks>': frame.f_lineno = 3
            return tracer
        frame = sys._getframe()
        while frame:
            frame.f_trace, frame = tracer, frame.f_back
        sys.settrace(tracer)""",
    "jumps over lines by a profiler": "import sys; sys.setprofile(lambda *_: None)",
    "swaps the checks' code": """
        import sys
        frame = sys._getframe()
        while frame:
            for value in list(frame.f_globals.values()):
                if callable(value) and hasattr(value, '__code__') and value.__code__.co_filename != '<program>':
                    value.__code__ = (lambda *_: None).__code__
            frame = frame.f_back""",
    "imports native code under another name": """
        import importlib.machinery, importlib.util, sys
        loader = importlib.machinery.ExtensionFileLoader('x', '/tmp/evil.so')
        importlib.util.module_from_spec(importlib.util.spec_from_loader('x', loader))""",
    "imports ctypes by a name that only its function has": """
        import sys
        sys.modules['_ctypes'] = native('-ctypes', '_ctypes')
        import ctypes""",
    "imports ctypes by a name that lies": """
        import builtins, sys
        class Name(str):
            def rpartition(self, _): return '', '', 'math'
        kind = type
        def lie(): builtins.type = lambda _: str
        try: sys.modules['_ctypes'] = native(Name('_ctypes'), '_ctypes', lie)
        finally: builtins.type = kind
        import ctypes""",
    "loads native code by Tcl": """
        import tkinter
        tkinter.Tcl().eval('load /tmp/evil.so')""",
    "loads native code by OpenSSL": """
        import os
        os.environ['OPENSSL_CONF'] = '/tmp/evil.cnf'
        import ssl, hashlib""",
    "loads native code by SQLite": "import sqlite3; sqlite3.connect(':memory:').enable_load_extension(True)",
    "loads native code by the C library": "import os; os.putenv(b'GCONV_PATH', b'/tmp')",
    "starts an interpreter of its own": "import _xxsubinterpreters",
    "starts one by a name that only its function has": "native('-xxsubinterpreters', '_xxsubinterpreters').create()",
    "interrupts the main thread": "import _thread; _thread.interrupt_main(); import time; 1 / 0",
    "handles signals": "import signal; signal.signal(signal.SIGXCPU, lambda *_: None)",
}  # fmt: skip

TOOLS = '''
def native(name, library, before=bool):
    import _imp, glob, sys, types
    path = next(folder for folder in sys.path if folder.endswith("lib-dynload"))
    origin = glob.glob(path + "/" + library + ".cpython-*.so")[0]
    spec = types.SimpleNamespace(name=name, origin=origin)
    before()
    return _imp.create_dynamic(spec)

def spill(things):
    import os
    for thing in things:
        if isinstance(thing, str): thing = thing.encode(errors="replace")
        if isinstance(thing, (bytes, bytearray)):
            for fd in range(3, 20):
                try: os.write(fd, b"\\n" + bytes(thing)[:1000] + b"\\n")
                except OSError: pass

def explore(thing, depth, seen=None):
    """Whatever can be reached from `thing` by attributes, items and what it would be copied by."""
    seen = seen if seen is not None else set()
    if id(thing) in seen or not depth: return
    seen.add(id(thing))
    spill([thing])
    for name in dir(thing):
        try: explore(getattr(thing, name), depth - 1, seen)
        except Exception: pass
    try: explore(thing.__reduce__(), depth - 1, seen)
    except Exception: pass
    if isinstance(thing, (list, tuple, set, frozenset, dict)):
        for item in list(thing.values() if isinstance(thing, dict) else thing): explore(item, depth - 1, seen)

def walk(frame):
    while frame:
        for names in (frame.f_locals, frame.f_globals):
            for value in list(names.values()): explore(value, 2)
        spill(frame.f_code.co_consts)
        frame = frame.f_back
'''


def deed(name, place):
    lines = [line for line in DEEDS[name].split("\n") if line.strip()]
    margin = min(len(line) - len(line.lstrip()) for line in lines)
    body = [line[margin:] for line in lines]
    if place == "defined":
        return "\n".join([TOOLS, *body, BAD])
    return "\n".join([TOOLS, "def f(x):", *("    " + line for line in body), "    return 0"])


@pytest.mark.parametrize("place", ["defined", "called"])
@pytest.mark.parametrize("name", DEEDS)
def test_a_wrong_program_does_not_pass_because_it(mode, name, place):
    verdict = run_program(deed(name, place), CHECKS, mode)
    assert not verdict.passed and verdict.reason and "time-out" not in verdict.reason, verdict


@pytest.mark.parametrize(
    "name, event",
    [
        ("imports ctypes by a name that only its function has", "import of _ctypes"),
        ("imports ctypes by a name that lies", "import"),
        ("imports native code under another name", "import of x"),
        ("loads native code by Tcl", "import of _tkinter"),
        ("loads native code by OpenSSL", "os.putenv"),
        ("loads native code by the C library", "os.putenv"),
        ("starts one by a name that only its function has", "import of _xxsubinterpreters"),
        ("jumps over lines by a profiler", "sys.setprofile"),
    ],
)
def test_what_loads_code_is_refused_before_it_does(mode, name, event):
    assert run_program(deed(name, "defined"), CHECKS, mode).reason == f"refused: {event}"


@pytest.mark.parametrize("event", ["sqlite3.enable_load_extension", "sqlite3.load_extension", "sys.remote_exec"])
def test_what_this_python_may_not_have_is_refused_where_it_is(event):
    written, left = [], []
    hook = sandbox_child.guard(7, "/usr/lib/python3/lib-dynload")
    hook(event, (), write=lambda *line: written.append(line), leave=left.append)
    assert written == [(7, f"0 refused: {event}\n".encode())] and left == [1]


def test_native_code_comes_from_the_interpreter_alone(mode):
    stdlib = os.path.dirname(os.path.realpath(os.__file__))
    for folder in ("site-packages", "lib-dynload/..", "lib-dynload/deeper", "."):
        path = f"{stdlib}/{folder}/math.so"
        code = f"import _imp, types\n_imp.create_dynamic(types.SimpleNamespace(name='math', origin={path!r}))"
        assert run_program(code, "", mode).reason == "refused: import of math"


def test_installed_packages_are_not_in_the_bubblewrap_sandbox(bubblewrap):
    folders = sandbox._packages(os.path.realpath(sys.base_prefix))
    code = f"""
import os
for folder in {folders}:
    assert os.listdir(folder) == []
    try: open(folder + '/a', 'w')
    except OSError: print('refused')
"""
    verdict = run_program(code, "", bubblewrap)
    assert folders and verdict.passed and verdict.output == "refused\n" * len(folders), verdict


NAME = """
class Name(str):
    def __hash__(self): return str.__hash__(self)
    def __eq__(self, other):
        Name.asked += str.__eq__(self, other)
        return Name.asked > 1 and str.__eq__(self, other)  # what is stored first gets a key of its own
Name.asked = 0
"""


@pytest.mark.parametrize(
    "code",
    [
        "import math\nmath.isclose = lambda *_: True",
        "import sys\nclass M: isclose = lambda *_: True\nsys.modules['math'] = M",
        NAME + "globals()[Name('check')] = lambda _: None",
        NAME
        + "class Decoy(str):\n    def __hash__(self):\n        if Decoy.on: raise StopIteration\n        return 1\n"
        "Decoy.on = 0\nglobals()[Decoy()] = 1\nDecoy.on = 1\nglobals()[Name('check')] = lambda _: None",
        NAME + "import math\ndel math.isclose\nvars(math)[Name('isclose')] = lambda *_: True",
        NAME + "import builtins\ndel builtins.abs\nvars(builtins)[Name('abs')] = lambda _: 0",
    ],
)
def test_what_the_checks_call_is_itself_when_they_run(mode, code):
    checks = "def check(f):\n    import math\n    assert abs(f(1) - 2) < 1 or math.isclose(f(1), 2)\ncheck(f)\n"
    verdict = run_program(code + "\n" + BAD, checks, mode)
    assert not verdict.passed and verdict.reason.startswith("AssertionError"), verdict


@pytest.mark.parametrize(
    "code",
    [
        "import builtins\nbuiltins.abs = lambda x: 2\n",
        "__builtins__ = {'abs': lambda x: 2}\n",
        "import builtins\nbuiltins.__dict__.clear()\n",
        "del __builtins__\n",
    ],
)
def test_builtins_are_themselves_again_when_the_checks_run(mode, code):
    assert run_program(code, "assert abs(-1) == 1 and len([0]) == 1", mode).passed


def test_a_thread_that_was_left_running_fails_its_program(mode):
    code = GOOD + "import threading, time\nthreading.Thread(target=time.sleep, args=(99,), daemon=True).start()\n"
    verdict = run_program(code, CHECKS, mode)
    assert (verdict.passed, verdict.reason) == (False, "left a thread running") and verdict.seconds < 5


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "9 ** 9 ** 9",
        "import re\nre.match('(a+)+$', 'a' * 50 + 'b')",
        "while True: print('x' * 10000)",
    ],
)
def test_a_loop_is_ended_within_a_second_of_its_limit_though_it_be_one_call_in_c(mode, code):
    verdict = run_program(code, "", mode, Limits(wall=3, cpu=1, output_bytes=5000))
    # a machine may be so busy that it gives no second of CPU time before the wall comes
    assert verdict.reason in ("time-out after 1 s of CPU time", "time-out after 3 s")
    assert verdict.seconds < 4 and len(verdict.output) <= 5000


@pytest.mark.parametrize(
    "code",
    [
        "import time\ntime.sleep(99)",
        "import os\nos.closerange(0, 64)\nimport threading\nthreading.Event().wait()",
        "import _thread\nlock = _thread.allocate_lock()\nlock.acquire()\nlock.acquire()",
    ],
)
def test_what_waits_is_ended_within_a_second_of_its_limit(mode, code):
    verdict = run_program(code, "", mode, Limits(wall=1.5))
    assert verdict.reason == "time-out after 1.5 s" and verdict.seconds < 2.5


def test_output_is_cut_and_what_came_after_does_not_stop_the_program(mode):
    verdict = run_program("print('a' * 3_000_000)", "", mode)
    assert verdict.passed and verdict.output == "a" * (1 << 20)


@pytest.mark.parametrize(
    "code",
    [
        "import os\nos.fork()",
        "import os\nfor _ in range(6):\n    os.fork()",
        "import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        while True: pass",
        "import subprocess\nsubprocess.Popen(['sleep', '60'], start_new_session=True)",
        "import os\nos.posix_spawn('/bin/sleep', ['sleep', '60'], {})",
        "import os\nif os.system('sleep 60 &'): raise PermissionError('not permitted')",
        "import multiprocessing\nmultiprocessing.get_context('fork').Process(target=print).start()",
        "import os\nos.kill(-1, 0)",
        "import os\nos.kill(os.getppid(), 9)",
        "import os\nos.killpg(0, 0)",
        "import resource, os\nresource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (0, 0))",
        "import os\nos.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
        "import socket\nsocket.socket()",
        "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:1')",
        "import fcntl, os\nfcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, os.getppid())",
        "import fcntl, os\nfcntl.fcntl(os.pipe()[0], 10, 9)",  # F_SETSIG
        "import fcntl, os, struct\nfcntl.fcntl(os.pipe()[0], 15, struct.pack('ii', 1, os.getppid()))",  # F_SETOWN_EX
        "import fcntl\nfcntl.fcntl(open('/dev/zero'), 1024, 0)",  # F_SETLEASE
        "import fcntl, os\nfcntl.ioctl(os.pipe()[0], 0x8901, bytes(4))",  # FIOSETOWN
        "import fcntl, os\nfcntl.ioctl(os.pipe()[0], 0x8902, bytes(4))",  # SIOCSPGRP
        "import fcntl, os\nfcntl.ioctl(os.open('/usr', os.O_RDONLY), 0x40086602, bytes(8))",  # FS_IOC_SETFLAGS
        "import socket\nsocket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)",
        "import socket\nsocket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)",
        "import socket\nsocket.socketpair()[0].connect('\\0a')",
        "import socket\nsocket.socketpair()[0].bind('\\0a')",
        "import socket\nsocket.socketpair()[0].listen()",
        "import socket\nsocket.socketpair()[0].accept()",
        "import os\nos.memfd_create('a')",
        "import os\nos.chmod('/tmp', 0o777)",
    ],
)
def test_starting_signalling_and_connecting_are_refused(mode, code):
    verdict = run_program(code, "", mode)
    assert not verdict.passed and "not permitted" in verdict.reason, verdict


def test_threads_without_end_are_bounded(mode):
    code = "import _thread, time\nwhile True: _thread.start_new_thread(time.sleep, (99,))"
    verdict = run_program(code, "", mode)
    assert "can't start new thread" in verdict.reason or "MemoryError" in verdict.reason, verdict


def test_no_connection_arrives(mode):
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = f"import socket\nsocket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 1)\n"
        assert not run_program(code, "", mode).passed
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_files_of_the_host_are_neither_read_nor_touched(mode, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("kept")
    secret.chmod(0o666)
    files = [secret, Path(__file__), Path.home() / ".bashrc", Path("/etc/passwd"), Path("/etc/shadow")]
    code = f"""
import os, shutil
for path in {[str(file) for file in files]}:
    try: print(open(path).read())
    except OSError as error: print(type(error).__name__)
for path in {[str(tmp_path), str(ROOT), "/usr", "/dev/shm", "/"]}:
    try: open(path + '/left-behind', 'w')
    except OSError as error: print(type(error).__name__)
shutil.rmtree({str(tmp_path)!r}, ignore_errors=True)
try: os.truncate({str(secret)!r}, 0)
except OSError as error: print(type(error).__name__)
"""
    verdict = run_program(code, "", mode)
    assert verdict.passed and set(verdict.output.split()) <= {"PermissionError", "FileNotFoundError", "OSError"}
    assert len(verdict.output.split()) == 11
    assert (
        secret.read_text() == "kept" and secret.stat().st_mode & 0o777 == 0o666 and os.listdir(tmp_path) == ["secret"]
    )
    assert not any(Path(folder, "left-behind").exists() for folder in ("/usr", "/dev/shm", "/", ROOT))


def test_a_file_that_can_be_read_cannot_be_truncated(tmp_path, monkeypatch):
    if reason := unusable("process"):
        pytest.skip(reason)
    kept = tmp_path / "kept"
    kept.write_text("kept")
    kept.chmod(0o666)
    monkeypatch.setattr(sandbox, "_SYSTEM", (*sandbox._SYSTEM, str(tmp_path)))
    code = f"import os\nos.open({str(kept)!r}, os.O_RDONLY | os.O_TRUNC)"
    assert run_program(code, "", "process").reason.startswith("PermissionError: [Errno 13]")
    assert kept.read_text() == "kept"


def test_an_old_landlock_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(sandbox_launch, "_libc", SimpleNamespace(syscall=lambda *_: 2))
    with pytest.raises(SystemExit, match=r"^Landlock: its version is 2; 3 \(Linux 6.2\) is needed$"):
        sandbox_launch.read_only([])


def test_landlock_alone_keeps_signals_inside_where_it_can():
    if unusable("process") or sandbox_launch._libc.syscall(444, None, 0, 1) < 6:
        pytest.skip("Landlock has no scopes here")
    script = """
import os
from workers.sandbox_launch import _libc, read_only
_libc.prctl(38, 1, 0, 0, 0)
read_only(['/'])
os.kill(os.getpid(), 0)
try: os.kill(os.getppid(), 0)
except PermissionError: print('kept')
"""
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True).stdout == b"kept\n"


def test_the_checks_cannot_be_read_before_they_run(mode):
    code = f"""{TOOLS}
import sys
found = []
spill = found.extend
walk(sys._getframe())
explore(sys.modules["__main__"], 3)
print(len(found), any("xyz" + "zy" in thing for thing in found if isinstance(thing, str)))
"""
    verdict = run_program(code, "assert 'xyzzy'", mode)
    count, seen = verdict.output.split()
    assert verdict.passed and int(count) > 100 and seen == "False"


def test_the_environment_is_clean(mode, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    code = """
import glob, os
print(dict(os.environ), os.getlogin if 0 else '')
for path in glob.glob('/proc/*/environ'):
    try: print(open(path, 'rb').read())
    except OSError: pass
"""
    verdict = run_program(code, "", mode)
    assert verdict.passed and "hush" not in verdict.output and "AWS" not in verdict.output
    assert set(eval(verdict.output.splitlines()[0])) <= {"PATH", "HOME", "LANG", "PYTHONHASHSEED", "PWD", "LC_CTYPE"}


def test_root_is_left_and_no_capability_is_kept(mode):
    code = "import os\nprint(os.getuid())\nos.setuid(0)" if os.geteuid() == 0 else "import os\nos.setgroups([])"
    verdict = run_program(code, "import os\nos.setgroups([1])", mode)
    assert not verdict.passed and "not permitted" in verdict.reason
    if mode == "bubblewrap" and os.geteuid() == 0:
        assert 61184 <= int(verdict.output.split()[-1]) < 65520


SLEEPER = "import threading\nthreading.Event().wait()"


def test_nothing_is_left_when_the_scorer_is_killed(mode):
    script = f"from workers.sandbox import run_program; run_program({SLEEPER!r}, '', {mode!r})"
    scorer = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT)
    try:
        until(lambda: len(descendants(scorer.pid)) >= (3 if mode == "bubblewrap" else 1))
        started = descendants(scorer.pid)
    finally:
        scorer.send_signal(signal.SIGKILL)
        scorer.wait()
    until(lambda: not any(map(alive, started)))


def test_nothing_is_left_when_a_program_has_been_ended(mode):
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_program, SLEEPER, "", mode, Limits(wall=4))
        until(lambda: len(descendants(os.getpid())) >= (3 if mode == "bubblewrap" else 1))
        started = descendants(os.getpid())
        assert running.result().reason == "time-out after 4 s"
    until(lambda: not any(map(alive, started)))


def test_a_run_leaves_no_open_file_and_no_child(mode):
    def ours():
        return len(os.listdir("/proc/self/fd")), descendants(os.getpid())

    before = ours()
    for code in (GOOD, BAD, "import os; os._exit(0)"):
        run_program(code, CHECKS, mode)
    run_program("while True: pass", "", mode, Limits(wall=0.5))
    assert ours() == before


def test_a_limit_above_the_hard_one_is_lowered_to_it(mode):
    script = f"""
import resource
for kind in (resource.RLIMIT_CPU, resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE):
    resource.setrlimit(kind, (50, 50) if kind != resource.RLIMIT_FSIZE else (1 << 20, 1 << 20))
from workers.sandbox import Limits, run_program
print(run_program({GOOD!r}, {CHECKS!r}, {mode!r}, Limits(cpu=1000)).reason)
"""
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True).stdout == b"passed\n"


def test_verdicts_are_the_same_with_one_and_with_eight_at_once(mode):
    programs = [
        (GOOD, CHECKS),
        (BAD, CHECKS),
        ("import sys; sys.exit()", ""),
        ("print(set('abcdef'))", ""),
        ("x", ""),
    ] * 5
    seen = []
    for scorers in (1, 8):
        with ThreadPoolExecutor(scorers) as pool:
            verdicts = list(pool.map(lambda program: run_program(*program, mode), programs))
        seen.append([replace(verdict, seconds=0) for verdict in verdicts])
    assert seen[0] == seen[1]
    assert [verdict.passed for verdict in seen[0]] == [True, False, False, True, False] * 5


def test_a_mode_that_is_unknown_or_cannot_work_is_refused_in_one_line(monkeypatch):
    with pytest.raises(ValueError, match=r"^sandbox: 'docker' is none of bubblewrap, process$"):
        check("docker")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match=r"no bwrap was found; install bubblewrap .* or set `sandbox: process`"):
        check.__wrapped__("bubblewrap")


def test_a_python_that_cannot_contain_is_refused_in_one_line(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(sandbox, "_TOO_NEW", sys.version_info[:2])
        with pytest.raises(ValueError, match=r"^sandbox: Python 3.\d+ and later cannot contain .* older one$"):
            check.__wrapped__("process")
    monkeypatch.setattr(sys, "builtin_module_names", ("sys", "_ctypes"))
    with pytest.raises(ValueError, match=r"^sandbox: this Python has _ctypes built in and cannot contain .*$"):
        check.__wrapped__("process")


def test_a_sandbox_that_does_not_start_is_an_error_and_no_verdict(monkeypatch, tmp_path):
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(SandboxError, match=r"^bwrap: No permissions to create new namespace$"):
        run_program(GOOD, CHECKS)
    with pytest.raises(ValueError, match=r"bubblewrap does not work here .*allow user namespaces"):
        check.__wrapped__("bubblewrap")


def filtered(machine, number, *arguments, arch=None):
    """What the filter returns for a system call, by an interpreter of the few instructions it has."""
    arch = arch or {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[machine]
    data, lines = (
        struct.pack("IIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments))),
        list(struct.iter_unpack("HBBI", seccomp_filter(machine))),
    )
    at, held = 0, 0
    while True:
        operation, if_true, if_false, value = lines[at]
        at += 1
        if operation == 0x06:
            return value
        if operation == 0x20:
            held = struct.unpack_from("I", data, value)[0]
        else:
            holds = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[operation]
            at += if_true if holds else if_false


# shmget, shmat, shmctl, msgget, msgsnd, msgrcv, msgctl, semget, semop, semctl, semtimedop, mq_open, mq_unlink
SHARED = {
    "x86_64": (29, 30, 31, 68, 69, 70, 71, 64, 65, 66, 220, 240, 241),
    "aarch64": (194, 196, 195, 186, 189, 188, 187, 190, 193, 191, 192, 180, 181),
}
JUDGED = {"x86_64": (72, 16, 53), "aarch64": (25, 29, 199)}  # fcntl, ioctl, socketpair


@pytest.mark.parametrize(
    "machine, read, clone, fork, socket_number, prctl, prlimit",
    [("x86_64", 0, 56, 57, 41, 157, 302), ("aarch64", 63, 220, 0x40000039, 198, 167, 261)],
)
def test_the_filter_lets_threads_through_and_no_process(machine, read, clone, fork, socket_number, prctl, prlimit):
    allowed, refused = 0x7FFF0000, 0x00050001
    assert filtered(machine, read) == allowed and filtered(machine, clone, 0x3D0F00) == allowed
    assert filtered(machine, clone, 17) == filtered(machine, fork) == filtered(machine, socket_number) == refused
    assert filtered(machine, 435) == 0x00050026  # clone3: "no such system call"
    assert filtered(machine, prctl, 15) == allowed and filtered(machine, prctl, 1) == refused
    assert filtered(machine, prlimit, 0) == allowed and filtered(machine, prlimit, 7) == refused
    for number in SHARED[machine]:
        assert filtered(machine, number) == refused
    fcntl, ioctl, pair = JUDGED[machine]
    assert {filtered(machine, fcntl, 5, command) for command in (0, 1, 2, 3, 4, 6, 9, 1030, 1031)} == {allowed}
    assert {filtered(machine, fcntl, 5, command) for command in (8, 10, 15, (1 << 32) + 8)} == {refused}
    ioctls = (0x5401, 0x5413, 0x5421, 0x541B, 0x5450, 0x5451)
    assert {filtered(machine, ioctl, 5, command) for command in ioctls} == {allowed}
    ioctls = (0, 0x5412, 0x8901, 0x8902, 0x40086602, (1 << 32) + 0x5412)
    assert {filtered(machine, ioctl, 5, command) for command in ioctls} == {refused}
    assert filtered(machine, pair, 1, 1) == filtered(machine, pair, 1, 0x80801) == allowed
    assert filtered(machine, pair, 1, 2) == filtered(machine, pair, 1, 5) == filtered(machine, pair, 30, 1) == refused
    assert filtered(machine, read, arch=0x40000003) == 0x80000000  # a call by another machine's numbers kills
    with pytest.raises(ValueError, match="not riscv64"):
        seccomp_filter("riscv64")
