"""Why a decode or its worker failed, as one word, by which failures are grouped and answered. design.md §5.

    oom-host   the machine's memory ran out        cuda       any other CUDA error: its process is not to be trusted
    oom-cuda   the GPU's did                       hung       nothing delivered, and no pass made, for hang_timeout
    node-lost  the machine is gone                            (or its model not loaded in load_timeout)
    died       the process ended in another way    exception  whatever else was raised

Told by an exception's name and words, so that neither torch nor Ray need be here.
"""

from typing import Literal

Cause = Literal["oom-host", "oom-cuda", "cuda", "node-lost", "hung", "exception", "died"]


def cause_of(error: BaseException) -> Cause:
    """The cause of what a worker's code raised."""
    said = str(error)
    if "CUDA out of memory" in said or "CUBLAS_STATUS_ALLOC_FAILED" in said:
        return "oom-cuda"
    if type(error).__name__ == "AcceleratorError" or "CUDA error" in said or "CUDNN_STATUS" in said:
        return "cuda"
    if isinstance(error, MemoryError) or "can't allocate memory" in said or "not enough memory" in said:
        return "oom-host"
    return "exception"
