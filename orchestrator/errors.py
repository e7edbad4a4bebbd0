"""The one exception a user's mistake becomes. launch.py catches it, prints it on one line and exits with 2."""


class UserError(Exception):
    """Something the user can put right.

    Reads `FILE: key: what is wrong; what would be right`. `where` is a file, "command line" or a sweep folder; `key`
    may be empty where no key is at fault.
    """

    def __init__(self, where: str, key: str, wrong: str) -> None:
        parts = [part for part in (where, key, wrong) if part]
        super().__init__(" ".join(": ".join(parts).split()))
