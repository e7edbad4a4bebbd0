"""Confine this process, then become the command: what the sandbox "process" has in place of bubblewrap.

    python sandbox_launch.py PARENT UID FILTER_FD READABLE[:READABLE...] COMMAND...

Runs in an interpreter of its own, started by `workers.sandbox`. Of files only those under READABLE can be read and
none can be written or truncated (Landlock's third version, Linux 6.2); where it can (Linux 6.12), Landlock also keeps
signals and abstract sockets inside. System calls go through the filter read from FILTER_FD; the process dies with
PARENT. UID is the user to become, or -1 to remain; root that remains root loses every capability.
Exits with one line on standard error if the kernel refuses any of it.
"""

import ctypes
import os
import sys

_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SIGKILL = 1, 24, 38, 22, 9
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every machine
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_FILE_RIGHTS = {3: (1 << 15) - 1, 5: (1 << 16) - 1}  # by Landlock's version: 3 governs truncation, 5 devices
_SCOPED, _SCOPES = 6, 3  # the version from which on abstract sockets and signals can be kept inside; both
_CAPABILITIES = 64

_libc = ctypes.CDLL(None, use_errno=True)


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32)]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("lines", ctypes.c_char_p)]


def main(parent: str, uid: str, filter_fd: str, readable: str, *command: str) -> None:
    become(int(uid))
    _checked("prctl", _libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0))  # after `become`, which would undo it
    if os.getppid() != int(parent):
        sys.exit("the scoring process has gone")
    _checked("no_new_privs", _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    read_only(readable.split(":"))
    with open(int(filter_fd), "rb") as file:
        lines = file.read()
    _checked("seccomp", _libc.prctl(_PR_SET_SECCOMP, 2, ctypes.byref(_Program(len(lines) // 8, lines)), 0, 0))
    os.execv(command[0], command)


def become(uid: int) -> None:
    """The user `uid`; or, for -1, whoever this is, without capabilities from the next program on."""
    if uid >= 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    else:
        for capability in range(_CAPABILITIES):
            _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # refused to those who have none to lose


def read_only(paths: list[str]) -> None:
    """Nothing of the file system from here on but `paths`, and those to read and execute; /dev/null to write too."""
    version = _checked("Landlock", _libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1))
    if version < min(_FILE_RIGHTS):
        sys.exit(f"Landlock: its version is {version}; {min(_FILE_RIGHTS)} (Linux 6.2) is needed")
    files = _FILE_RIGHTS[max(known for known in _FILE_RIGHTS if known <= version)]
    ruleset = _Ruleset(files, 0, _SCOPES if version >= _SCOPED else 0)  # a kernel takes more than it knows, if zero
    size = ctypes.c_size_t(ctypes.sizeof(ruleset))
    rules = _checked("Landlock", _libc.syscall(_CREATE_RULESET, ctypes.byref(ruleset), size, 0))
    for path in [*paths, "/dev/null"]:
        if not os.path.exists(path):
            continue
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rights = _EXECUTE | _READ_FILE | (_READ_DIR if os.path.isdir(path) else 0)
        rights |= _WRITE_FILE if path == "/dev/null" else 0
        beneath = _Beneath(rights, folder)
        _checked("Landlock", _libc.syscall(_ADD_RULE, rules, 1, ctypes.byref(beneath), 0))
        os.close(folder)
    _checked("Landlock", _libc.syscall(_RESTRICT_SELF, rules, 0))
    os.close(rules)


def _checked(what: str, result: int) -> int:
    if result < 0:
        sys.exit(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


if __name__ == "__main__":
    main(*sys.argv[1:])
