"""One file a method. `load("spot", checkpoint, device, tokgate=0.6)` builds the drafter in `spot/drafters/spot.py`."""

from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from spot.drafters.protocol import Drafter
from spot.options import check_options

_HELPERS = {"growth", "protocol", "tokens"}


def methods() -> list[str]:
    return sorted({m.name.replace("_", "-") for m in iter_modules(__path__)} - _HELPERS)


def load(method: str, checkpoint: Path | None, device: str, **options: Any) -> Drafter:
    """The drafter of `method`. What is wrong with the checkpoint, or a value, is whatever reading it raises."""
    return _module(method).load(checkpoint, device, **options)


def made_by(method: str) -> str:
    """The commands that make its checkpoint, in words."""
    return _module(method).MADE_BY or "this project"


def longest_block(method: str) -> int | None:
    """How many positions of a block its model knows; None where that is no matter."""
    return getattr(_module(method), "LONGEST", None)


def check(method: str, checkpoint: str | None, options: dict[str, Any]) -> None:
    """Raise ValueError on an unknown method, a wrong option or no checkpoint, without loading anything."""
    if method not in methods():
        raise ValueError(f"method: no drafter {method!r}; there are {', '.join(methods())}")
    module = _module(method)
    check_options(method, module.load, options, given=("checkpoint", "device"))
    if not isinstance(checkpoint, str | None):
        raise ValueError(f"checkpoint: {checkpoint!r} is the wrong type; a file's path expected")
    if module.MADE_BY and checkpoint is None:
        raise ValueError(f"checkpoint: {method} needs one, made by {module.MADE_BY}")


def _module(method: str) -> Any:
    return import_module(f"spot.drafters.{method.replace('-', '_')}")
