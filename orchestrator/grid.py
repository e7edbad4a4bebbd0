"""Lists that multiply into cells, and what a cell is.

A cell is a frozen record of everything that decides a result, and its key a versioned hash of exactly that: change the
target's weights, the data, the drafter's checkpoint or one decode setting and the key changes; change `limit`, the
number of workers or the log level and it does not. design.md §5.
"""

import hashlib
import itertools
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

from orchestrator.config import Config
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
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
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

    @property
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


@dataclass(frozen=True)
class Group:
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


def expand(
    config: Config,
    models: Mapping[str, ModelSpec],
    tasks: Mapping[str, DataSet],
    drafters: Mapping[str, DrafterSpec],
) -> Grid:
    """The product of the axes. Values given twice count once, budget 0 of any drafter is the control."""
    notes: list[str] = []
    axes = {axis: _distinct(axis, getattr(config, axis), notes) for axis in ("models", "tasks", "drafters")}
    budgets = [int(budget) for budget in _distinct("budgets", config.budgets, notes)]
    temperatures = [float(t) + 0.0 for t in _distinct("temperatures", config.temperatures, notes)]
    seeds = _distinct("seeds", config.seeds, notes)
    methods = [(drafters[name], budget) for name in axes["drafters"] for budget in budgets if budget > 0]
    cells: list[Cell] = []
    rows: dict[Group, tuple[str, ...]] = {}
    for model, task, temperature in itertools.product(axes["models"], axes["tasks"], temperatures):
        for seed in _seeds(config, task, tasks[task], temperature, seeds, notes):
            group = Group(model, task, temperature, seed)
            rows[group] = choose_rows(tasks[task].rows, seed, config.limit, config.shuffle)
            for drafter, budget in [(CONTROL, 0), *methods]:
                cells.append(_cell(config, models[model], tasks[task], drafter, budget, group))
    return Grid(tuple(cells), rows, tuple(dict.fromkeys(notes)))


def choose_rows(rows: Sequence[str], seed: int, limit: int | None, shuffle: bool = True) -> tuple[str, ...]:
    """The first `limit` row ids in the seed's order; a larger limit keeps the smaller one's rows as its beginning."""
    order = list(rows)
    if shuffle:
        random.Random(f"rows/{seed}").shuffle(order)
    return tuple(order[:limit])


def _cell(config: Config, model: ModelSpec, data: DataSet, drafter: DrafterSpec, budget: int, group: Group) -> Cell:
    decode = decode_spec(config, model, group.temperature, group.seed)
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
        drafter_options=_frozen(drafter.options),
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


def _seeds(
    config: Config, task: str, data: DataSet, temperature: float, seeds: list[int], notes: list[str]
) -> list[int]:
    """At temperature 0 noise is unused; where every seed also takes the same rows, one seed says it all."""
    whole = not config.shuffle or config.limit is None or config.limit >= len(data.rows)
    if temperature > 0 or not whole or len(seeds) == 1:
        return seeds
    notes.append(f"{task} at temperature 0 over the same rows: seeds {seeds} all decode alike; only {seeds[0]} is run")
    return seeds[:1]


def _distinct(axis: str, values: Iterable[Any], notes: list[str]) -> list[Any]:
    values = list(values)
    kept = list(dict.fromkeys(values))
    if len(kept) < len(values):
        notes.append(f"{axis}: {values} names a value twice; each counts once")
    return kept


def _frozen(value: Any) -> Any:
    """Lists as tuples, nested ones too, so that a cell read from YAML equals the one written."""
    return tuple(_frozen(item) for item in value) if isinstance(value, list | tuple) else value


def _listed(value: Any) -> Any:
    """Tuples as lists, nested ones too: YAML has no other."""
    return [_listed(item) for item in value] if isinstance(value, tuple) else value
