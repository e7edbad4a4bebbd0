"""The system calls that no program in a sandbox may make, as the kernel's classic BPF.

Without them a program has one process of its own, no sockets and no way to touch another process: it may start threads
and read files. `workers.sandbox` hands the filter to bubblewrap, or to `sandbox_launch.py`, which install it.
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
    "socket": (41, 198), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    # memory that no limit counts
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "msgget": (68, 186),
    "semget": (64, 190), "mq_open": (240, 180),
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

_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column above, AUDIT_ARCH_*
_CLONE, _CLONE3, _PRCTL, _PRLIMIT64 = (56, 220), (435, 435), (157, 167), (302, 261)

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # BPF_LD|W|ABS, BPF_JMP|…|K, BPF_RET|K
_NUMBER, _ARCH, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data; the argument's low half
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_CLONE_THREAD, _PDEATHSIG, _X32 = 0x00010000, 1, 0x40000000


def seccomp_filter(machine: str | None = None) -> bytes:
    """The filter for `machine` (this one), an array of struct sock_filter.

    Raises ValueError for a machine whose system calls are not known here.
    """
    machine = machine or (platform.machine() if sys.platform == "linux" else sys.platform)
    if machine not in _MACHINES:
        raise ValueError(f"a sandbox needs Linux on x86_64 or aarch64, not {machine}")
    column, arch = _MACHINES[machine]
    eperm = _ERRNO | errno.EPERM
    # each test skips the lines that follow from it when it does not hold
    lines = [(_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, arch), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER)]
    lines += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, eperm)]
    for number in (numbers[column] for numbers in _DENIED.values()):
        if number is not None:
            lines += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, eperm)]
    # its flags lie in memory, out of a filter's reach: the C library then takes clone
    lines += [(_EQUAL, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    lines += [(_EQUAL, 0, 4, _CLONE[column]), (_LOAD, 0, 0, _FIRST_ARGUMENT)]
    lines += [(_ANY_BIT, 1, 0, _CLONE_THREAD), (_RETURN, 0, 0, eperm), (_RETURN, 0, 0, _ALLOW)]
    # dying with the scorer cannot be undone; limits are set for oneself only
    lines += [(_EQUAL, 0, 4, _PRCTL[column]), (_LOAD, 0, 0, _FIRST_ARGUMENT)]
    lines += [(_EQUAL, 0, 1, _PDEATHSIG), (_RETURN, 0, 0, eperm), (_RETURN, 0, 0, _ALLOW)]
    lines += [(_EQUAL, 0, 3, _PRLIMIT64[column]), (_LOAD, 0, 0, _FIRST_ARGUMENT)]
    lines += [(_EQUAL, 1, 0, 0), (_RETURN, 0, 0, eperm), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("HBBI", *line) for line in lines)
