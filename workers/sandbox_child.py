"""What runs inside a sandbox: a model's program, then the checks, then the token on a pipe, in one fresh interpreter.

`workers.sandbox` sends this file, compiled, and the request, and calls `main`. Lines go to the request's pipe:
"started", then the reason of a failure, or the token once the last check has been run to its end.

How the token stays out of the program's reach, though both are in one process: the program, the checks and the write
of the token are links of a chain that C code runs (`map` over `partial` objects), in a thread that has no Python frame
below the program's. So there is no frame to walk to, no name that leads to the token, and nothing to patch that the
chain would look up: it goes on to the next link only where the one before it returned. What could still reach it is
closed by an audit hook, which cannot be removed and ends the process: the garbage collector's lists, frames of other
threads, tracing (which can jump over lines), other audit hooks, becoming another program, and native code other than
the interpreter's own, of which ctypes and tkinter are refused. A file in /tmp can be mapped as code, and no system-call
filter tells it from a library, so what loads one is refused by name: SQLite's extensions, and the variables that
OpenSSL and the C library read. Further processes there are none, by the system-call filter. Builtins and `math` are put
back before the checks, and a thread that is left running fails the program.

What remains. The checks are run in the program's namespace, as in every published harness, so a program whose results
override `==`, or that replaces what the checks call (a function of `random`, a name of its own over `abs`), passes. And
memory errors of CPython and its libraries (a buffer kept after `readinto`, bytecode made by hand, which `marshal` and
`code.replace` take and asyncio's import needs) would reach the token; no honest mistake does. From Python 3.13 on the
hook's variables could be written through its frame, so `workers.sandbox.check` refuses it. An honest program that sets
signal handlers fails, as Python lets only the main thread do so.
"""

import _thread
import builtins
import math
import os
import resource
import sys
from _collections import deque  # type: ignore[import-not-found]
from _functools import partial  # type: ignore[import-not-found]
from _operator import call, indexOf, is_, itemgetter
from _signal import SIG_IGN, SIGINT, signal  # type: ignore[import-not-found]
from _weakref import ref
from itertools import compress, repeat
from time import sleep
from types import CodeType, ModuleType, TracebackType

NATIVE = ("_ctypes", "_tkinter", "_test", "_xx", "_interp")  # how the interpreter's libraries that are refused begin
_REASON = 300  # characters
_STACK = 16 << 20  # bytes; deep recursion in C, as of a regular expression, needs a main thread's stack or more


def main(request: dict) -> None:
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0)  # which leaves no way to the request
    os.close(nothing)
    verdict, streams = request["verdict"], (sys.stdout, sys.stderr)
    os.set_inheritable(verdict, False)
    restrict(request["limits"], request["uid"])
    os.write(verdict, b"started\n")
    ended = _thread.allocate_lock()
    ended.acquire()
    watched = start(request, verdict, lambda _: ended.release())
    if watched is not None:
        ended.acquire()
    for stream in streams:
        try:  # noqa: SIM105 (contextlib takes milliseconds to import)
            stream.flush()
        except (OSError, ValueError):  # the program closed it
            pass
    os._exit(0)


def restrict(limits: dict[str, int], uid: int) -> None:
    """Set each limit, no higher than it can be; become `uid`, unless negative."""
    for name, limit in limits.items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        most = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        # a second more before SIGKILL, so that SIGXCPU tells what the process ended by
        last = most + 1 if name == "RLIMIT_CPU" and most != hard else most
        resource.setrlimit(kind, (most, last))
    if uid >= 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)


def start(request: dict, verdict: int, at_end) -> object:
    """Start the chain in a thread; returns what keeps `at_end` waiting for its end, None if there is nothing to run."""
    module = ModuleType("program")  # not __main__; dataclasses and pickle look a class's module up
    sys.modules["program"] = module
    names = module.__dict__
    names["__builtins__"] = builtins
    try:
        program = compile(request["code"], "<program>", "exec", dont_inherit=True)
        checks = compile(request["checks"], "<checks>", "exec", dont_inherit=True)
    except BaseException as error:
        os.write(verdict, reason_line(error, error.__traceback__))
        return None
    first = partial(exec, program, names)
    signal(SIGINT, SIG_IGN)  # _thread.interrupt_main would run a handler on top of `main`
    sys.unraisablehook = reporter(verdict)
    sys.settrace, sys.setprofile = unless_none(sys.settrace), unless_none(sys.setprofile)
    sys.addaudithook(guard(verdict, next(path for path in sys.path if path.endswith("/lib-dynload"))))
    _thread.stack_size(_STACK)
    watched = ref(first, at_end)
    # no frame keeps the token once this has started: `links` takes it out of the request
    _thread.start_new_thread(deque, (map(call, links(first, names, checks, request, verdict)), 0))
    return watched


def links(first: partial, names: dict, checks: CodeType, request: dict, verdict: int) -> list:
    return [
        first,
        only_thread(),
        *(link for space in (names, vars(builtins), vars(math), sys.modules) for link in exact_names(space)),
        partial(vars(builtins).update, vars(builtins).copy()),
        partial(vars(math).update, vars(math).copy()),
        partial(sys.modules.update, {"math": math}),
        partial(names.update, {"__builtins__": builtins}),
        partial(exec, checks, names),
        only_thread(),
        partial(os.write, verdict, request.pop("token")),
    ]


def only_thread() -> partial:
    """Raises ValueError unless the chain's is the only thread that was started, or becomes so within 0.2 s."""
    return partial(indexOf, map(call, (_thread._count, partial(sleep, 0.01)) * 20), 1)


def exact_names(space: dict) -> list:
    """Links that drop what has a key of another type than `str`, as that could have an `==` of its own."""
    items: list = []
    exact = map(is_, map(type, map(itemgetter(0), items)), repeat(str))
    return [partial(items.extend, space.items()), space.clear, partial(space.update, compress(items, exact))]


def guard(verdict: int, libraries: str):
    """An audit hook that ends the process at what no solution needs and what could reach the token."""

    def hook(
        event: str, arguments: tuple, verdict=verdict, libraries=libraries, native=NATIVE, write=os.write,
        leave=os._exit, type=type, str=str, bytes=bytes, variables=(b"OPENSSL_", b"GCONV_PATH", b"LOCPATH", b"LD_"),
    ) -> None:  # fmt: skip
        # the defaults of a function that nothing refers to are out of reach, unlike globals and builtins; only what is
        # of an exact type is safe to look at
        if event == "import":
            name, path = arguments[:2]
            if type(name) is str and (path is None or type(path) is str):
                last = name.rpartition(".")[2].replace("-", "_")  # as for the name of its function
                folder, _, file = (libraries, "", "") if path is None else path.rpartition("/")
                if folder == libraries and not last.startswith(native) and not file.startswith(native):
                    return
                event = f"import of {last}"
        elif event == "os.putenv":
            if type(arguments[0]) is bytes and not arguments[0].startswith(variables):
                return
        elif event not in (
            "gc.get_objects", "gc.get_referrers", "gc.get_referents", "sys._current_frames",
            "sys._current_exceptions", "sys.settrace", "sys.setprofile", "sys.monitoring.register_callback",
            "sys.addaudithook", "sys.remote_exec", "os.exec", "sqlite3.enable_load_extension",
            "sqlite3.load_extension",
        ):  # fmt: skip
            return
        write(verdict, f"0 refused: {event}\n".encode(errors="replace"))
        leave(1)

    return hook


def unless_none(setter):
    """Setting no tracer, as doctest does, changes nothing here; `setter` would be refused, whatever it sets."""
    return lambda function: None if function is None else setter(function)


def reporter(verdict: int):
    """A hook for exceptions that nothing caught: the chain's is the reason of the failure."""
    default, display = sys.unraisablehook, sys.excepthook

    def hook(unraisable) -> None:
        if "in thread started by" not in (unraisable.err_msg or ""):
            return default(unraisable)
        os.write(verdict, reason_line(unraisable.exc_value, unraisable.exc_traceback))
        display(unraisable.exc_type, unraisable.exc_value, unraisable.exc_traceback)

    return hook


def reason_line(error: BaseException, trace: TracebackType | None) -> bytes:
    """ "LINE REASON": the line of the checks that failed (0: none of them), and the exception."""
    line = 0
    if type(error) is ValueError and trace is None:
        return b"0 left a thread running\n"
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<checks>":
            line = trace.tb_lineno
        trace = trace.tb_next
    try:
        text = f"{type(error).__name__}: {error}".removesuffix(": ")
    except BaseException:  # the program's own __str__
        text = type(error).__name__
    return f"{line} {' '.join(text.split())[:_REASON]}\n".encode(errors="replace")
