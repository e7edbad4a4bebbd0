"""How a command ends: its exit code, and the one exception a user's mistake becomes.

launch.py catches the exception, prints it on one line and exits with 2.
"""

from enum import IntEnum


class Exit(IntEnum):
    """Every exit code there is."""

    COMPLETE = 0
    FAILED = 1  # it ran to its end; samples failed, or a text is not its control's
    MISTAKE = 2  # the user's: nothing was loaded
    GAVE_UP = 3  # it ended before its end: a model that cannot be loaded, too many failures, no workers, a full disk
    SIGNAL = 128  # and the signal's number: 130 after Ctrl-C, 143 after SIGTERM


class UserError(Exception):
    """Something the user can put right.

    Reads `FILE: key: what is wrong; what would be right`. `where` is a file, "command line" or a sweep folder; `key`
    may be empty where no key is at fault.
    """

    def __init__(self, where: str, key: str, wrong: str) -> None:
        parts = [part for part in (where, key, wrong) if part]
        super().__init__(" ".join(": ".join(parts).split()))
