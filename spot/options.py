"""Options from a configuration file, checked against the function that takes them."""

import inspect
import math
from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin, get_type_hints


def check_options(who: str, function: Callable[..., Any], options: dict[str, Any], given: tuple[str, ...] = ()) -> None:
    """Raise ValueError, in one line, on an option that `function` does not take or of another type than it says.

    `given` are parameters that do not come from options.
    """
    known = option_names(function, given)
    hints = get_type_hints(function)
    for name, value in options.items():
        if name not in known:
            raise ValueError(f"{name}: {who} has no such option; it has {', '.join(known) or 'none'}")
        allowed = get_args(hints[name]) or (hints[name],)
        if get_origin(hints[name]) is Literal:
            if value not in allowed:
                raise ValueError(f"{name}: {value!r}; {' or '.join(map(repr, allowed))} expected")
            continue
        if not (type(value) in allowed or (float in allowed and type(value) is int)):
            expected = " or ".join("null" if kind is type(None) else kind.__name__ for kind in allowed)
            raise ValueError(f"{name}: {value!r} is the wrong type; {expected} expected")


def option_names(function: Callable[..., Any], given: tuple[str, ...] = ()) -> list[str]:
    """The parameters of `function` that come from options, `given` being those that do not."""
    return [name for name in inspect.signature(function).parameters if name not in given]


def check_share(name: str, value: float) -> None:
    """Raise ValueError, in one line, on a `value` that is not from 0 to 1."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name}: {value}; from 0 to 1 expected")


def check_training(settings: Any) -> None:
    """Raise ValueError, `key: what is wrong`, on training settings that nothing can be trained with."""
    for key in ("steps", "batch_size", "warmup"):
        if getattr(settings, key, 1) < 1:
            raise ValueError(f"{key}: {getattr(settings, key)}; 1 or more expected")
    if not 0 < settings.rate < math.inf:
        raise ValueError(f"rate: {settings.rate}; more than 0 expected")
    if not 0 <= settings.seed < 2**63:
        raise ValueError(f"seed: {settings.seed}; from 0 to 2**63 - 1 expected")
