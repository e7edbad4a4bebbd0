"""The system calls that no program in a sandbox may make, as the kernel's classic BPF.

Without them a program has one process of its own, no sockets but pairs of its own and no way to touch another process:
it may start threads and read files. `workers.sandbox` hands the filter to bubblewrap, or to `sandbox_launch.py`, which
install it.
"""

import errno
import platform
import struct
import sys

# Numbers of Linux's tables (x86-64; asm-generic, which 64-bit ARM uses); None where a machine has no such call.
_DENIED: dict[str, tuple[int | None, int | None]] = {
    # processes: threads are clone(CLONE_THREAD), which seccomp_filter lets through
    "fork": (57, None), "vfork": (58, None), "unshare": (272, 97), "setns": (308, 268),
    # other processes of the same user, and their memory
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424),
    "pidfd_getfd": (438, 438), "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "kcmp": (312, 272), "setpriority": (141, 140),
    "ioprio_set": (251, 30), "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118), "sched_setattr": (314, 274), "migrate_pages": (256, 238), "move_pages": (279, 239),
    # the network, and what would get round this filter
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201), "accept": (43, 202),
    "accept4": (288, 242), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    # memory that no limit counts, and what others keep there
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "shmat": (30, 196),
    "shmctl": (31, 195), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187),
    "semget": (64, 190), "semop": (65, 193), "semtimedop": (220, 192), "semctl": (66, 191), "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    # file systems, and changes to files that Landlock does not govern
    "mount": (165, 40), "umount2": (166, 39), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "pivot_root": (155, 41), "chroot": (161, 51), "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264),
    "truncate": (76, 45), "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "setxattr": (188, 5),
    "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463), "removexattr": (197, 14),
    "lremovexattr": (198, 15), "fremovexattr": (199, 16), "removexattrat": (466, 466), "file_setattr": (469, 469),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
}  # fmt: skip

_CLONE, _CLONE3, _PRCTL, _PRLIMIT64 = (56, 220), (435, 435), (157, 167), (302, 261)
_SOCKETPAIR, _FCNTL, _IOCTL = (53, 199), (72, 25), (16, 29)

# Calls that are judged by one argument, counted from 0: the only values let through.
_ONLY: list[tuple[tuple[int, int], int, tuple[int, ...]]] = [
    (_PRLIMIT64, 0, (0,)),  # limits are set for oneself only
    (_SOCKETPAIR, 0, (1,)),  # AF_UNIX
    (_SOCKETPAIR, 1, (1, 0x801, 0x80001, 0x80801)),  # SOCK_STREAM, with any flags: a datagram could go to anyone
    # FIOCLEX, FIONCLEX, FIONBIO, FIONREAD, TCGETS, TIOCGWINSZ: others change files that are open to be read, or signal
    (_IOCTL, 1, (0x5451, 0x5450, 0x5421, 0x541B, 0x5401, 0x5413)),
]
# The same: the values refused.
_NEVER: list[tuple[tuple[int, int], int, tuple[int, ...]]] = [
    (_PRCTL, 0, (1,)),  # PR_SET_PDEATHSIG: dying with the scorer cannot be undone
    # F_SETOWN, F_SETSIG, F_SETOWN_EX: any signal to anyone; F_SETLEASE, F_NOTIFY: others would wait, or be watched
    (_FCNTL, 1, (8, 10, 15, 1024, 1026)),
]

_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column above, AUDIT_ARCH_*
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # BPF_LD|W|ABS, BPF_JMP|…|K, BPF_RET|K
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data; of an argument of 8 bytes the low half is first
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM = _ERRNO | errno.EPERM
_CLONE_THREAD, _X32 = 0x00010000, 0x40000000


def seccomp_filter(machine: str | None = None) -> bytes:
    """The filter for `machine` (this one), an array of struct sock_filter.

    Raises ValueError for a machine whose system calls are not known here.
    """
    machine = machine or (platform.machine() if sys.platform == "linux" else sys.platform)
    if machine not in _MACHINES:
        raise ValueError(f"a sandbox needs Linux on x86_64 or aarch64, not {machine}")
    column, arch = _MACHINES[machine]
    # each test skips the lines that follow from it when it does not hold
    lines = [(_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, arch), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER)]
    lines += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _EPERM)]
    for number in (numbers[column] for numbers in _DENIED.values()):
        if number is not None:
            lines += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _EPERM)]
    # its flags lie in memory, out of a filter's reach: the C library then takes clone
    lines += [(_EQUAL, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    lines += _judged(_CLONE[column], 0, [(_ANY_BIT, 1, 0, _CLONE_THREAD)])
    for numbers, argument, values in _ONLY:
        tests = [(_EQUAL, len(values) - at, 0, value) for at, value in enumerate(values)]
        lines += _judged(numbers[column], argument, tests)
    for numbers, argument, values in _NEVER:
        last = len(values) - 1
        tests = [(_EQUAL, last - at, int(at == last), value) for at, value in enumerate(values)]
        lines += _judged(numbers[column], argument, tests)
    lines += [(_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("HBBI", *line) for line in lines)


def _judged(number: int, argument: int, tests: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Refuse the call `number` unless `tests` of its `argument` skip the line after them."""
    load, refuse, reload = (_LOAD, 0, 0, _ARGUMENTS + 8 * argument), (_RETURN, 0, 0, _EPERM), (_LOAD, 0, 0, _NUMBER)
    return [(_EQUAL, 0, len(tests) + 3, number), load, *tests, refuse, reload]
