"""Lists that multiply into cells, and what a cell is.

A cell is a frozen record of everything that decides a result, and its key a versioned hash of exactly that: change the
target's weights, the data, the drafter's checkpoint or one decode setting and the key changes; change `limit`, the
number of workers or the log level and it does not. design.md §5.
"""

import hashlib
import itertools
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from orchestrator.config import Config, described
from workers.work import SEMANTICS, Chat, DecodeSpec, DrafterSpec, ModelSpec

KEY_VERSION = 3  # raised when the fields of Cell or their encoding change
CONTROL = DrafterSpec(name="none", method="none")


@dataclass(frozen=True)
class Cell:
    """One point of the grid. Every field decides results; nothing else does.

    The control, draft-free decoding, has drafter "none", method "none" and budget 0. `suffix` is "keep" wherever it
    changes nothing.
    """

    model: str
    family: str
    model_revision: str
    block_length: int
    dtype: str
    task: str
    data_revision: str
    drafter: str
    method: str
    drafter_sha: str | None
    drafter_options: tuple[tuple[str, Any], ...]
    budget: int
    temperature: float
    seed: int
    gen_length: int
    stop: str
    threshold: float | None = None
    layout: str = "batch"
    cache: bool = True
    pad_pieces: int = 0
    mask_id: int | None = None
    stop_ids: tuple[int, ...] | None = None
    chat: Chat = None
    suffix: str = "keep"
    semantics: int = SEMANTICS

    @cached_property
    def key(self) -> str:
        """`v3-` and 20 hex digits: sha256 of the canonical JSON of all fields."""
        text = _CANONICAL.encode(dict(zip(_FIELDS, _values(self), strict=True)))
        return f"v{KEY_VERSION}-{hashlib.sha256(text.encode()).hexdigest()[:20]}"

    @property
    def label(self) -> str:
        """`tiny-sdar · arith · spot · b8 · T0 · s0`: for people; two revisions of a model read alike."""
        drafting = "control" if self.is_control else f"{self.drafter} · b{self.budget}"
        return f"{self.model} · {self.task} · {drafting} · T{self.temperature:g} · s{self.seed}"

    @property
    def is_control(self) -> bool:
        """Draft-free?"""
        return self.method == CONTROL.method

    @cached_property
    def group(self) -> "Group":
        """The cells that decode the same prompts with the same noise: one control and its methods."""
        return Group(self.model, self.task, self.temperature, self.seed)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for sweep.yaml."""
        return {name: _listed(value) for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Cell":
        """The inverse of `as_dict`; keys that are no fields are ignored."""
        return cls(**{field.name: _frozen(plain.get(field.name, field.default)) for field in fields(cls)})


_FIELDS = tuple(field.name for field in fields(Cell))
_values = attrgetter(*_FIELDS)
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


class Group(NamedTuple):
    """What the cells of one sample task share, besides the decode settings that all cells of a model share."""

    model: str
    task: str
    temperature: float
    seed: int


@dataclass(frozen=True)
class DataSet:
    """What the grid must know of a task: its revision and its rows' ids in data-set order."""

    revision: str
    rows: tuple[str, ...]


@dataclass(frozen=True)
class Grid:
    """The cells, controls first in each group; the row ids each group decodes, in order; what the user should know."""

    cells: tuple[Cell, ...]
    rows: Mapping[Group, tuple[str, ...]]
    notes: tuple[str, ...]


class Point(NamedTuple):
    """A combination of the axes' values. Groups come first: points in this order have a group's cells together."""

    model: str
    task: str
    temperature: float
    seed: int
    drafter: str
    budget: int

    @property
    def group(self) -> Group:
        """Whose control it is measured against."""
        return Group(*self[:4])


_ORDER = ("models", "tasks", "temperatures", "seeds", "drafters", "budgets")  # the axes as a Point has them
_TYPES: dict[str, Callable[[Any], Any]] = {"budgets": int, "temperatures": lambda t: float(t) + 0.0}  # no -0.0


def points(config: Config) -> tuple[list[Point], tuple[str, ...]]:
    """The product of the axes, those of a `zip` entry in step, without what `exclude` describes; and notes.

    A combination given twice counts once. Raises ValueError, `exclude: ...`, for an entry that describes none.
    """
    notes: list[str] = []
    zipped = [sorted(axes, key=_ORDER.index) for axes in config.zip]
    alone = [[axis] for axis in _ORDER if not any(axis in axes for axes in zipped)]
    factors = sorted(zipped + alone, key=lambda axes: _ORDER.index(axes[0]))
    values = [_distinct(axes, _steps(config, axes), notes) for axes in factors]
    flat = [axis for axes in factors for axis in axes]
    in_order = itemgetter(*(flat.index(axis) for axis in _ORDER))
    product = itertools.product(*values)
    found = [Point._make(in_order(tuple(itertools.chain(*steps)))) for steps in product]
    for entry in config.exclude:
        wanted = [(_ORDER.index(axis), set(values)) for axis, values in described(entry).items()]
        kept = [point for point in found if any(point[place] not in values for place, values in wanted)]
        if len(kept) == len(found):
            raise ValueError(f"exclude: {entry} describes no cell that is there; correct it, or leave it out")
        found = kept
    if not found:
        raise ValueError("exclude: nothing is left of the grid")
    return found, tuple(notes)


def _steps(config: Config, axes: Sequence[str]) -> list[tuple[Any, ...]]:
    """The values of `axes`, in step."""
    columns = ([_TYPES.get(axis, lambda value: value)(value) for value in getattr(config, axis)] for axis in axes)
    return list(zip(*columns, strict=True))


def expand(
    config: Config,
    combinations: Sequence[Point],
    models: Mapping[str, ModelSpec],
    tasks: Mapping[str, DataSet],
    drafters: Mapping[tuple[str, str], DrafterSpec],
) -> Grid:
    """The cells of the points; budget 0 of any drafter is the control. `drafters` are by (model, name)."""
    groups: dict[Group, dict[tuple[str, int], None]] = {}
    for point in combinations:
        methods = groups.setdefault(point.group, {})
        if point.budget:
            methods[point.drafter, point.budget] = None
    notes = _one_seed(config, groups, tasks)
    cells: list[Cell] = []
    rows: dict[Group, tuple[str, ...]] = {}
    chosen: dict[tuple[str, int], tuple[str, ...]] = {}
    options = {pair: _frozen(drafter.options) for pair, drafter in drafters.items()}
    for group, methods in groups.items():
        which = (group.task, group.seed)
        if which not in chosen:
            chosen[which] = choose_rows(tasks[group.task].rows, group.seed, config.limit, config.shuffle)
        rows[group] = chosen[which]
        decode = decode_spec(config, models[group.model], group.temperature, group.seed)
        model, data = models[group.model], tasks[group.task]
        cells.append(_cell(model, data, CONTROL, (), 0, group, decode))
        for name, budget in methods:
            drafter, frozen = drafters[group.model, name], options[group.model, name]
            cells.append(_cell(model, data, drafter, frozen, budget, group, decode))
    return Grid(tuple(cells), rows, tuple(notes))


def _one_seed(config: Config, groups: dict[Group, dict], tasks: Mapping[str, DataSet]) -> list[str]:
    """At temperature 0 noise is unused; where every seed also takes the same rows, one seed says it all.

    Gives the methods of a group's further seeds to the first one; returns what to say of it.
    """
    notes: dict[str, None] = {}
    first: dict[tuple[str, str], Group] = {}
    for group in list(groups):
        whole = not config.shuffle or config.limit is None or config.limit >= len(tasks[group.task].rows)
        if group.temperature > 0 or not whole:
            continue
        kept = first.setdefault((group.model, group.task), group)
        if kept != group:
            groups[kept].update(groups.pop(group))
            seeds = f"seeds {config.seeds} all decode alike; only {kept.seed} is run"
            notes[f"{group.task} at temperature 0 over the same rows: {seeds}"] = None
    return list(notes)


def choose_rows(rows: Sequence[str], seed: int, limit: int | None, shuffle: bool = True) -> tuple[str, ...]:
    """The first `limit` row ids in the seed's order; a larger limit keeps the smaller one's rows as its beginning."""
    order = list(rows)
    if shuffle:
        random.Random(f"rows/{seed}").shuffle(order)
    return tuple(order[:limit])


def _cell(
    model: ModelSpec,
    data: DataSet,
    drafter: DrafterSpec,
    options: tuple[tuple[str, Any], ...],
    budget: int,
    group: Group,
    decode: DecodeSpec,
) -> Cell:
    return Cell(
        model=model.name,
        family=model.family,
        model_revision=model.revision,
        block_length=model.block_length,
        dtype=model.dtype,
        task=group.task,
        data_revision=data.revision,
        drafter=drafter.name,
        method=drafter.method,
        drafter_sha=drafter.sha,
        drafter_options=options,
        budget=budget,
        temperature=group.temperature,
        seed=group.seed,
        gen_length=decode.gen_length,
        stop=decode.stop,
        threshold=decode.threshold,
        layout=decode.layout,
        cache=decode.cache,
        pad_pieces=drafter.pad_pieces,
        mask_id=model.mask_id,
        stop_ids=model.stop_ids,
        chat=model.chat,
        suffix=decode.suffix,
    )


def decode_spec(config: Config, model: ModelSpec, temperature: float, seed: int) -> DecodeSpec:
    """The decode settings that a group's cells share. A model with an exact cache does not see the suffix."""
    asked = config.decode_of(model.name)
    return DecodeSpec(
        gen_length=asked.gen_length,
        temperature=temperature,
        seed=seed,
        stop=asked.stop,
        threshold=asked.commit_threshold,
        layout=asked.layout,
        cache=asked.cache,
        suffix="keep" if model.exact else asked.suffix,
    )


def _distinct(axes: Sequence[str], values: Sequence[tuple[Any, ...]], notes: list[str]) -> list[tuple[Any, ...]]:
    kept = list(dict.fromkeys(values))
    if len(kept) < len(values):
        said = [value if len(axes) > 1 else value[0] for value in values]
        notes.append(f"{', '.join(axes)}: {said} names a value twice; each counts once")
    return kept


def _frozen(value: Any) -> Any:
    """Lists as tuples, nested ones too, so that a cell read from YAML equals the one written."""
    return tuple(_frozen(item) for item in value) if isinstance(value, list | tuple) else value


def _listed(value: Any) -> Any:
    """Tuples as lists, nested ones too: YAML has no other."""
    return [_listed(item) for item in value] if isinstance(value, tuple) else value
