"""One file a method. `load("spot", checkpoint, device, tokgate=0.6)` builds the drafter in `spot/drafters/spot.py`."""

import inspect
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from spot.drafters.protocol import Drafter

_HELPERS = {"protocol", "tokens"}


def methods() -> list[str]:
    return sorted({m.name.replace("_", "-") for m in iter_modules(__path__)} - _HELPERS)


def load(method: str, checkpoint: Path | None, device: str, **options: Any) -> Drafter:
    """The drafter of `method`; `check` says what it would refuse."""
    return import_module(f"spot.drafters.{method.replace('-', '_')}").load(checkpoint, device, **options)


def check(method: str, checkpoint: str | None, options: dict[str, Any]) -> None:
    """Raise ValueError on an unknown method, option or missing checkpoint, without loading anything."""
    if method not in methods():
        raise ValueError(f"method: no drafter {method!r}; there are {', '.join(methods())}")
    module = import_module(f"spot.drafters.{method.replace('-', '_')}")
    known = [name for name in inspect.signature(module.load).parameters if name not in ("checkpoint", "device")]
    for name in options:
        if name not in known:
            raise ValueError(f"{name}: {method} has no such option; it has {', '.join(known) or 'none'}")
    if module.NEEDS_CHECKPOINT and checkpoint is None:
        raise ValueError(f"checkpoint: {method} needs one, made by `python launch.py train-drafter`")
