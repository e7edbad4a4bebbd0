"""Peak memory of a piece of work: the device's on CUDA, this process's resident set elsewhere."""

import re
from pathlib import Path

import torch

_PROCESS = Path("/proc/self")


def reset_peak(device: str) -> None:
    """Forget the peak so far; the present use is the new one."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    elif (_PROCESS / "clear_refs").exists():
        (_PROCESS / "clear_refs").write_text("5")  # resets VmHWM; see proc_pid_clear_refs(5)


def peak_bytes(device: str) -> int | None:
    """The most memory used since `reset_peak`, in bytes; None where the system does not tell."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    if not (_PROCESS / "clear_refs").exists():
        return None
    found = re.search(r"VmHWM:\s+(\d+) kB", (_PROCESS / "status").read_text())
    return int(found[1]) * 1024 if found else None
