"""A grid file and its `key=value` overrides, checked and turned into one frozen `Config`.

    python launch.py plan quickstart limit=5 budgets=[0,8] drafter.spot.tokgate=0.7

OmegaConf lives in this file only. Nothing here touches a model, a data set, Ray or MLflow; whatever is wrong with
the input is a `UserError` naming the file (or the command line) and the key. design.md §5.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    ConfigKeyError,
    GrammarParseError,
    InterpolationResolutionError,
    OmegaConfBaseException,
    ValidationError,
)

from orchestrator.errors import UserError
from workers.store import Place, place

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "configs"
COMMAND_LINE = "command line"
# Folders MLflow has given up; sqlite:// and :memory: would be of one process.
MLFLOW = r"sqlite(\+\w+)?:///[^:?]|(postgresql|mysql|mssql)(\+\w+)?://|https?://[^/]|databricks"
# A user name may have @, and a password /; a server's address has no user but for a password or a token.
PASSWORD = r"(?i)^[\w+]+://[^/]*:[^@]*@|^https?://[^/]*@|[?&].*(passw|pwd|token|secret)"
PASSWORD_REFUSED = (
    "sweep.yaml would keep the password in this address; MLFLOW_TRACKING_PASSWORD, PGPASSWORD or ~/.pgpass give it"
)
AXES = ("models", "tasks", "drafters", "budgets", "temperatures", "seeds")
Settings = TypeVar("Settings")
UNMASKING, LAYOUTS = ("single", "threshold"), ("batch", "concat")
SUFFIXES = ("keep", "skip")
CATALOGUE = {"model": "models", "task": "tasks", "drafter": "drafters"}  # section -> the axis that names its entries
MODEL_KEYS: dict[str, tuple[type, bool]] = {  # key -> type, required
    "family": (str, True),
    "path": (str, True),
    "block_length": (int, True),
    "revision": (str, False),
    "dtype": (str, False),
    "mask_id": (int, False),
    "stop_ids": (list, False),
    "chat": (dict, False),
    "decode": (dict, False),
    "size": (dict, False),
}
CHAT_RESERVED = ("conversation", "add_generation_prompt", "tokenize", "return_tensors", "return_dict")
MODEL_SIZE = ("parameters", "gigabytes")  # what `size` may say


@dataclass(frozen=True)
class Decode:
    """How every sample is decoded (design.md §3). `gen_length` in tokens; `stop` is "eos" or "length".

    `unmasking` "single" commits one position a step, "threshold" every one likelier than `threshold`. `layout` packs
    the nodes of a pass a row each ("batch") or in one row ("concat"). `cache` keeps the prefix's keys and values.
    `suffix` "keep" feeds the masked blocks that follow, as Fast-dLLM's prefix cache does, "skip" leaves them out;
    block-causal targets do not see them anyway. `verify` has one value: a draft is accepted where it equals the
    target's own next state.
    """

    gen_length: int = 128
    stop: str = "eos"
    unmasking: str = "single"
    threshold: float = 0.9
    layout: str = "batch"
    cache: bool = True
    suffix: str = "keep"
    verify: str = "match"

    @property
    def commit_threshold(self) -> float | None:
        """None where one position is committed a step."""
        return self.threshold if self.unmasking == "threshold" else None


@dataclass(frozen=True)
class Workers:
    """Who decodes. None of it is part of a cell's key.

    `count` is a number of actors or "auto" (one a GPU, or one per `threads` cores). `address` is that of a running
    Ray cluster; without one, Ray is started on this machine. `executor: inline` decodes in this process, to debug.
    `scorers` is how many texts are scored at once beside decoding; "auto" takes the cores left over, 1 to 8.
    `per_gpu` workers share a GPU: more texts an hour, and no timing worth the name.

    In seconds: a worker that makes no pass and delivers nothing for `hang_timeout` is ended, and so is one that has not
    loaded its model, fetched first if need be, in `load_timeout`; a cluster without a worker is waited for up to
    `scale_timeout`; what is in flight has `grace` to end after SIGTERM.
    """

    device: str = "cpu"
    count: int | str = "auto"
    threads: int = 1
    executor: str = "ray"
    address: str | None = None
    scorers: int | str = "auto"
    per_gpu: int = 1
    hang_timeout: float = 600.0
    load_timeout: float = 3600.0
    scale_timeout: float = 600.0
    grace: float = 20.0


@dataclass(frozen=True)
class Config:
    """One sweep. The axes multiply into cells; `limit` rows of each task are decoded, all of them if null.

    The axes that an entry of `zip` names go in step: `zip: [[models, drafters]]` pairs the first with the first. An
    entry of `exclude` describes cells that are left out, by any of the axes: `{drafters: spiffy, budgets: [4, 8]}`.
    `cluster` names a file of configs/cluster: what the GPUs there are and cost, which only `plan` asks.
    A drafter's `checkpoint` may have `{model}` in it: each target then has its own.

    `shuffle: false` takes the rows in data-set order instead of in the order given by the seed. `retries` is how many
    worker deaths one sample task may cause before it is taken apart; `tolerate` the share of all samples that may fail
    before nothing more is begun (null: all of them). The records of the first `replays` rows of every cell keep their
    passes, for the report to replay; 0 for none. `store` is a folder or s3://bucket/prefix; the default `mlflow` is
    a database in that folder, or in `runs` here for a store on S3. `model`, `task` and `drafter` hold the entries that
    the axes name: configs/<section>/<name>.yaml, with what the grid file and the command line change in them.
    """

    name: str
    models: list[str] = field(default_factory=list)
    tasks: list[str] = field(default_factory=list)
    drafters: list[str] = field(default_factory=list)
    budgets: list[float] = field(default_factory=list)
    temperatures: list[float] = field(default_factory=lambda: [0.0])
    seeds: list[int] = field(default_factory=lambda: [0])
    zip: list[list[str]] = field(default_factory=list)
    exclude: list[dict[str, Any]] = field(default_factory=list)
    limit: int | None = None
    shuffle: bool = True
    decode: Decode = field(default_factory=Decode)
    workers: Workers = field(default_factory=Workers)
    retries: int = 2
    tolerate: float | None = None
    replays: int = 2
    cluster: str | None = None
    store: str = "runs"
    mlflow: str | None = "sqlite:///${store}/mlflow.db"
    model: dict[str, Any] = field(default_factory=dict)
    task: dict[str, Any] = field(default_factory=dict)
    drafter: dict[str, Any] = field(default_factory=dict)

    def decode_of(self, model: str) -> Decode:
        """How `model` is decoded: the grid's settings, and its entry's own where the grid sets none."""
        return replace(self.decode, **(self.model[model].get("decode") or {}))

    @property
    def folder(self) -> Place:
        """Where the sweep's ledger is: `<store>/<name>`."""
        return place(self.store) / self.name

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as sweep.yaml keeps them; `load_stored` reads them back."""
        plain = OmegaConf.to_container(OmegaConf.structured(self))
        assert isinstance(plain, dict)
        return {**{str(key): value for key, value in plain.items()}, "budgets": [int(n) for n in self.budgets]}


@dataclass(frozen=True)
class Source:
    """Which file, or the command line, a key's value came from: the first thing an error message must say."""

    file: str
    overridden: frozenset[str] = frozenset()

    def of(self, key: str) -> str:
        """The place to look at for `key`; an override of a part of it (`task.gsm8k.path`) counts as one of it."""
        section, _, rest = key.partition(".")
        entry = CONFIGS / section / f"{_named(rest, known(section))}.yaml"
        in_catalogue = section in CATALOGUE and entry.exists() and not self._overrides(key)
        return shown(entry) if in_catalogue else self.of_change(key)

    def of_change(self, key: str) -> str:
        """The place that changed `key`: the command line or the grid file."""
        return COMMAND_LINE if self._overrides(key) else self.file

    def _overrides(self, key: str) -> bool:
        return any(over == key or over.startswith((f"{key}.", f"{key}[")) for over in self.overridden)

    def error(self, key: str, wrong: str) -> UserError:
        """`wrong` as a UserError about `key`."""
        return UserError(self.of(key), key, wrong)


def load(grid: str, overrides: Sequence[str] = ()) -> tuple[Config, Source]:
    """The grid `grid`, a name in configs/grid or the path of a YAML file, with `key=value` overrides.

    Raises UserError for anything misspelt, unknown, empty, or of the wrong type.
    """
    path = find_grid(grid)
    if path is None:
        raise UserError(COMMAND_LINE, grid, f"no such grid; known: {listed(known('grid'))}, or the path of a YAML file")
    raw = read(path)
    raw.setdefault("name", path.stem)
    return _build(raw, shown(path), overrides)


def load_stored(raw: dict[str, Any], file: Place, overrides: Sequence[str] = ()) -> tuple[Config, Source]:
    """The config that sweep.yaml keeps, with overrides. Its entries are the ones of the first run, not of today."""
    axes = {key: value for key, value in raw.items() if key not in CATALOGUE}
    return _build(axes, shown(file), overrides, {section: raw.get(section, {}) for section in CATALOGUE})


def relocated(raw: dict[str, Any], folder: Place) -> dict[str, Any]:
    """The stored config `raw` of a sweep that lies in `folder` now; an MLflow database in its store moved along."""
    moved = raw | {"name": folder.name, "store": str(folder.parent)}
    if raw["mlflow"] == mlflow_beside(raw["store"]):
        moved["mlflow"] = mlflow_beside(str(folder.parent))
    return moved


def here(store: str) -> str:
    """The folder for what belongs to `store` and has to be on a disk: the store itself, or `runs` for one on S3."""
    return Config.store if "://" in store else store


def mlflow_beside(store: str) -> str:
    """The MLflow database of a store by default. `sync` makes it again on any machine."""
    return f"sqlite:///{here(store).replace('%', '%25').replace('?', '%3F')}/mlflow.db"


def settings(defaults: Settings, overrides: Sequence[str]) -> Settings:
    """A flat settings dataclass with `key=value` overrides, checked like a grid's.

    A ValueError of the dataclass's own, `key: what is wrong`, is a UserError too.
    """
    merged = OmegaConf.structured(defaults)
    for text in overrides:
        merged = _override(merged, text)
    try:
        return cast(Settings, OmegaConf.to_object(merged))
    except OmegaConfBaseException as error:
        raise _explain(error, merged, "", COMMAND_LINE) from None
    except ValueError as error:
        key, _, wrong = str(error).partition(": ")
        raise UserError(COMMAND_LINE, key, wrong) from None


def read_as(kind: type[Settings], file: Path) -> Settings:
    """A YAML file as a flat dataclass. Raises UserError, naming file and key, for what is missing, unknown or wrong."""
    merged: Any = OmegaConf.structured(kind)
    for key, value in read(file).items():
        merged = _merge(merged, {key: value}, key, shown(file))
    for key in sorted(OmegaConf.missing_keys(merged)):
        raise UserError(shown(file), key, "missing; every file of this kind has one")
    return cast(Settings, OmegaConf.to_object(merged))


def find_grid(grid: str) -> Path | None:
    """The file that `grid` names, or None."""
    for path in (CONFIGS / "grid" / f"{grid}.yaml", Path(grid)):
        if path.is_file():
            return path
    return None


def grids(name: str) -> list[str]:
    """The grids in the folder `name` of configs/grid, sorted, or else `name` itself."""
    return [grid for grid in known("grid") if grid.startswith(f"{name.rstrip('/')}/")] or [name]


def known(section: str) -> list[str]:
    """Names in configs/<section>, sorted; one in a folder there is `folder/name`."""
    folder = CONFIGS / section
    return sorted(str(path.relative_to(folder)).removesuffix(".yaml") for path in folder.rglob("*.yaml"))


def listed(names: Iterable[str]) -> str:
    """`a, b, c`, or "none"."""
    return ", ".join(names) or "none"


def shown(path: Place) -> str:
    """`path` as a person would write it: relative to the project or to where they stand, if it is inside."""
    if not isinstance(path, Path):
        return str(path)
    for base in (Path.cwd(), ROOT):
        if path.resolve().is_relative_to(base):
            return str(path.resolve().relative_to(base))
    return str(path)


# ---- merging


def _build(
    raw: dict[str, Any], file: str, overrides: Sequence[str], stored: dict[str, dict[str, Any]] | None = None
) -> tuple[Config, Source]:
    source = Source(file, frozenset(text.partition("=")[0] for text in overrides))
    merged = OmegaConf.structured(Config)
    for key, value in raw.items():  # one at a time, so that an error has a key
        merged = _merge(merged, {key: value}, key, file)
    for text in overrides:
        merged = _override(merged, text, stored)
    try:
        for key in OmegaConf.missing_keys(merged):
            raise source.error(key.partition("[")[0], "???: a value is missing")
        chosen = _decode_keys(overrides) | (set(raw.get("decode") or ()) if stored is None else set())
        for section, axis in CATALOGUE.items():
            bases = (stored or {}).get(section, {})
            merged[section] = {
                name: _entry(merged, section, name, bases.get(name), source, chosen) for name in merged[axis]
            }
        config = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        raise _explain(error, merged, "", source.of_change(str(error.full_key))) from None
    assert isinstance(config, Config)
    if config.mlflow == f"sqlite:///{config.store}/mlflow.db":  # the default
        config = replace(config, mlflow=mlflow_beside(config.store))
    _check(config, source)
    return config, source


def _merge(config: Any, change: Any, key: str, where: str) -> DictConfig:
    """`change` merged into `config`, in struct mode."""
    for missing in _missing(OmegaConf.to_container(change) if isinstance(change, DictConfig) else change):
        raise UserError(where, missing, "???: a value is missing")  # a merge would keep what was there before
    try:
        merged = OmegaConf.merge(config, change)
    except OmegaConfBaseException as error:
        raise _explain(error, config, key, where) from None
    except TypeError:  # a mapping where a list belongs
        axis = key.partition(".")[0]
        raise UserError(where, key, f"the wrong type; {_expected(OmegaConf.get_type(config), axis)} expected") from None
    assert isinstance(merged, DictConfig)
    OmegaConf.set_readonly(merged, False)
    return merged


def _missing(value: Any, key: str = "") -> Iterator[str]:
    """The keys, below `key`, whose value is OmegaConf's word for a missing one."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _missing(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for inner in value:
            yield from _missing(inner, key)
    elif value == "???":
        yield key


def _override(config: DictConfig, text: str, stored: Mapping[str, Any] | None = None) -> DictConfig:
    key, equals, _ = text.partition("=")
    if not equals or not key:
        raise UserError(COMMAND_LINE, text, "not an override; write key=value, for instance limit=5")
    try:
        change = OmegaConf.from_dotlist([text])
    except (yaml.YAMLError, GrammarParseError):
        raise UserError(COMMAND_LINE, key, f"{text!r} is not YAML; quote it, or close its brackets") from None
    section, _, rest = key.partition(".")
    if section in CATALOGUE and section in config:
        names = [*known(section), *config[section], *(stored or {}).get(section, {})]
        name = _named(rest, names)
        if name not in names:
            raise unknown(COMMAND_LINE, key, section, name, names)
        change = OmegaConf.from_dotlist([f"{section}[{name}]{text.removeprefix(f'{section}.{name}')}"])
    return _merge(config, change, key, COMMAND_LINE)


def _named(rest: str, names: Iterable[str]) -> str:
    """The entry that `rest` of a key begins with; a name may have dots, as sdar-1.7b has."""
    found = [name for name in names if rest == name or rest.startswith(f"{name}.")]
    return max(found, key=len, default=rest.partition(".")[0])


def _decode_keys(overrides: Sequence[str]) -> set[str]:
    """The decode settings that the command line makes."""
    return {str(key) for text in overrides for key in OmegaConf.from_dotlist([text]).get("decode") or ()}


def _entry(
    config: DictConfig, section: str, name: str, base: dict[str, Any] | None, source: Source, decode: set[str]
) -> dict[str, Any]:
    """The catalogue entry `name`: `base` or its file, with the changes of the grid file and the command line.

    A model's own decode settings give way to those in `decode`, which the grid makes.
    """
    path, changes = CONFIGS / section / f"{name}.yaml", config[section].get(name, OmegaConf.create({}))
    if not isinstance(changes, DictConfig):
        key, wrong = f"{section}.{name}", f"{changes!r} is the wrong type; key: value lines expected"
        raise UserError(source.of_change(key), key, wrong)
    if base is None and not path.exists():
        if not changes:
            raise unknown(source.of(CATALOGUE[section]), CATALOGUE[section], section, name, known(section))
        return _plain(changes)
    entry = base if base is not None else read(path)
    if section == "model":
        return _model(entry, decode, _plain(changes))
    for key, value in _plain(changes).items():
        full = f"{section}.{name}.{key}"
        if key not in entry:
            raise UserError(source.of_change(full), full, f"unknown key{_suggest(key, entry)}")
        _check_type(source, full, entry[key], value)
    return {**entry, **_plain(changes)}


def _model(
    entry: Mapping[str, Any], decode: Iterable[str] = (), changes: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A model's entry with every key that it may have, without its settings of `decode`, and with the `changes`.

    Values are checked later, against MODEL_KEYS: what is null in the file has a type too.
    """
    found = {**dict.fromkeys(MODEL_KEYS), **entry}
    if isinstance(found["decode"], dict):
        found["decode"] = {key: value for key, value in found["decode"].items() if key not in decode}
    for key, value in (changes or {}).items():
        old = found.get(key)
        found[key] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
    return found


def models() -> dict[str, dict[str, Any]]:
    """Every entry of configs/model by name. Raises UserError, naming file and key, for one that is wrong."""
    found = {}
    for name in known("model"):
        file = CONFIGS / "model" / f"{name}.yaml"
        found[name] = _model(read(file))
        for key, holds, wrong in _model_rules(name, found[name]):
            if not holds:
                raise UserError(shown(file), key, wrong)
    return found


def _plain(node: Any) -> dict[str, Any]:
    container = OmegaConf.to_container(node, resolve=False)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def _check_type(source: Source, key: str, old: Any, new: Any) -> None:
    """An entry's value keeps its type; null says nothing about one, and a whole number is fine for a float."""
    if old is None or new is None or type(new) is type(old) or (isinstance(old, float) and type(new) is int):
        return
    wrong = f"{new!r} is the wrong type; {type(old).__name__} expected, such as {old!r}"
    raise UserError(source.of_change(key), key, wrong)


def read(path: Path) -> dict[str, Any]:
    """A YAML file of key: value lines. Raises UserError for any other, and for one that cannot be read."""
    try:
        node = OmegaConf.load(path)
    except yaml.YAMLError as error:
        raise UserError(shown(path), "", f"not YAML: {error}") from None
    except UnicodeDecodeError:
        raise UserError(shown(path), "", "not UTF-8 text") from None
    except OmegaConfBaseException as error:  # a key that is null
        raise UserError(shown(path), "", str(error).splitlines()[0]) from None
    except OSError as error:  # without a number, it is OmegaConf's word for a file that holds one bare value
        wrong = f"cannot be read: {error.strerror}" if error.errno else "not a mapping; write key: value lines"
        raise UserError(shown(path), "", wrong) from None
    if not isinstance(node, DictConfig):
        raise UserError(shown(path), "", "not a mapping; write key: value lines")
    return _plain(node)


# ---- saying what is wrong


def unknown(where: str, key: str, section: str, name: str, names: Iterable[str]) -> UserError:
    """An entry that is in no file of configs/<section>."""
    near = difflib.get_close_matches(name, names := sorted(set(names)), n=1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    return UserError(where, key, f"no such {section}: {name!r}; {meant}known: {listed(names)}")


def check_one(section: str, name: str) -> None:
    """Raises UserError unless the command line's `name` is one entry of configs/<section>: a name, not a list."""
    if name not in known(section):
        raise unknown(COMMAND_LINE, CATALOGUE[section], section, name, known(section))


def _suggest(word: str, words: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, names := sorted(words), n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; one of {listed(names)}"


def _explain(error: OmegaConfBaseException, config: Any, key: str, where: str) -> UserError:
    """OmegaConf's several lines as one of ours."""
    key = re.sub(r"\[\d+\]$", "", str(error.full_key or key))
    if isinstance(error, ConfigKeyError):
        parent = OmegaConf.select(config, key.rpartition(".")[0]) if "." in key else config
        return UserError(where, key, f"unknown key{_suggest(key.rpartition('.')[2], [str(k) for k in parent])}")
    if isinstance(error, InterpolationResolutionError | GrammarParseError) and not isinstance(error, ValidationError):
        return UserError(where, key, str(error).splitlines()[0])
    said = re.search(r"(?:Value '|value: )(.*?)(?:' of|$)", str(error).splitlines()[0])
    value = f"{said.group(1)} is " if said else ""
    return UserError(where, key, f"{value}the wrong type; {_expected(OmegaConf.get_type(config), key)} expected")


KINDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    type(None): "null",
    list: "a list",
    dict: "key: value lines",
}


def _expected(hint: Any, key: str) -> str:
    """The type that the dataclass `hint` gives `key`, in words."""
    for part in key.split(".") if key else ():
        hint = get_type_hints(hint)[part] if is_dataclass(hint) else Any
    if get_origin(hint) is list:
        (item,) = get_args(hint)
        return f"a list ({KINDS[get_origin(item) or item]} each)"
    return " or ".join(KINDS.get(kind, "key: value lines") for kind in get_args(hint) or (hint,))


# ---- checks of meaning


def _check(config: Config, source: Source) -> None:
    for key, holds, wrong in _rules(config):
        if not holds:
            raise source.error(key, wrong)


def _rules(config: Config) -> Iterable[tuple[str, bool, str]]:
    """(key, does it hold, what to say if not)."""
    workers = config.workers
    for name, entry in config.model.items():
        yield from _model_rules(name, entry)
    for axis in AXES:
        yield axis, bool(getattr(config, axis)), "an empty axis; give it at least one value"
    yield from _product_rules(config)
    yield "name", bool(re.fullmatch(r"[\w.-]*\w", config.name)), f"{config.name!r}: letters, digits, '.', '_', '-' only"
    whole = all(budget >= 0 and float(budget).is_integer() for budget in config.budgets)
    yield "budgets", whole, f"{config.budgets}: budgets are whole numbers, 0 or more"
    yield "temperatures", all(0 <= t < float("inf") for t in config.temperatures), "a temperature is 0 or more"
    yield "store", _is_place(config.store), f"{config.store!r}: a folder, or s3://bucket/prefix"
    yield "mlflow", not has_password(config.mlflow), PASSWORD_REFUSED  # first: it is not repeated
    on_s3 = f"{config.mlflow!r}: no database can be on S3; sqlite:///FILE, a server, or null (`sync` makes it later)"
    yield "mlflow", config.mlflow is None or "s3://" not in config.mlflow, on_s3
    wrong = f"{config.mlflow!r}: sqlite:///FILE, the address of an MLflow server or database, or null for none"
    yield "mlflow", config.mlflow is None or bool(re.match(MLFLOW, config.mlflow)), wrong
    yield "limit", config.limit is None or config.limit > 0, f"{config.limit}: one row or more, or null for all"
    unknown_cluster = f"no such cluster: {config.cluster!r}; known: {listed(known('cluster'))}"
    yield "cluster", config.cluster is None or config.cluster in known("cluster"), unknown_cluster
    yield "retries", config.retries > 0, f"{config.retries}: 1 or more"
    yield "replays", config.replays >= 0, f"{config.replays}: rows a cell, 0 for none"
    for key, holds, wrong in _decode_rules(config.decode):
        yield f"decode.{key}", holds, wrong
    yield "workers.device", workers.device in ("cpu", "cuda"), f"{workers.device!r}: 'cpu' or 'cuda'"
    yield "workers.executor", workers.executor in ("ray", "inline"), f"{workers.executor!r}: 'ray' or 'inline'"
    yield "workers.threads", workers.threads > 0, f"{workers.threads}: one thread or more"
    counted = workers.count == "auto" or (isinstance(workers.count, int) and workers.count > 0)
    yield "workers.count", counted, f"{workers.count!r}: 'auto' or one worker or more"
    scored = workers.scorers == "auto" or (isinstance(workers.scorers, int) and workers.scorers > 0)
    yield "workers.per_gpu", workers.per_gpu > 0, f"{workers.per_gpu}: one worker or more"
    for key in ("hang_timeout", "load_timeout", "scale_timeout", "grace"):
        yield f"workers.{key}", getattr(workers, key) > 0, f"{getattr(workers, key)}: seconds, more than 0"
    tolerated = config.tolerate is None or 0 <= config.tolerate <= 1
    yield "tolerate", tolerated, f"{config.tolerate}: a share of the samples, 0 to 1, or null for however many"
    yield "workers.scorers", scored, f"{workers.scorers!r}: 'auto' or one scorer or more"


def has_password(uri: str | None) -> bool:
    """Whether an MLflow address tells a secret: it is neither to be kept nor said."""
    return uri is not None and bool(re.search(PASSWORD, uri))


def _product_rules(config: Config) -> Iterable[tuple[str, bool, str]]:
    """What `zip` and `exclude` say is of axes, and of values that these have."""
    zipped = [axis for axes in config.zip for axis in axes]
    for axes in config.zip:
        for axis in axes:
            yield "zip", axis in AXES, f"{axis!r} is no axis{_suggest(axis, AXES)}"
            yield "zip", zipped.count(axis) == 1, f"{axis} is named twice; an axis goes in step with others once"
        yield "zip", len(axes) > 1, f"[{', '.join(axes)}]: two axes or more go in step"
        lengths = {axis: len(getattr(config, axis)) for axis in axes}
        said = ", ".join(f"{axis} has {length}" for axis, length in lengths.items())
        yield "zip", len(set(lengths.values())) == 1, f"{said}; axes in step have as many values each"
    for entry in config.exclude:
        yield "exclude", bool(entry), "an empty entry describes every cell; name an axis and its value"
        for axis, values in described(entry).items():
            yield "exclude", axis in AXES, f"{axis!r} is no axis{_suggest(axis, AXES)}"
            there = list(getattr(config, axis))
            for value in values:
                wrong = f"{axis} has no {value!r}; one of {listed(str(held) for held in there)}"
                yield "exclude", value in there, wrong
            yield "exclude", bool(values), f"{axis}: an empty list describes nothing; give it a value"
            control = axis == "budgets" and 0 in values
            yield "exclude", not control, "budgets: 0 is the control, which every method is measured against"


def described(entry: Mapping[str, Any]) -> dict[str, list[Any]]:
    """An entry of `exclude`, every axis with a list of values."""
    return {str(axis): values if isinstance(values, list) else [values] for axis, values in entry.items()}


def _is_place(where: str) -> bool:
    try:
        return bool(place(where))
    except ValueError:
        return False


def _decode_rules(decode: Decode) -> Iterable[tuple[str, bool, str]]:
    yield "gen_length", decode.gen_length > 0, f"{decode.gen_length}: one token or more"
    yield "stop", decode.stop in ("eos", "length"), f"{decode.stop!r}: 'eos' or 'length'"
    yield "unmasking", decode.unmasking in UNMASKING, f"{decode.unmasking!r}: {' or '.join(UNMASKING)}"
    yield "threshold", 0 < decode.threshold < 1, f"{decode.threshold}: a probability between 0 and 1"
    yield "layout", decode.layout in LAYOUTS, f"{decode.layout!r}: {' or '.join(LAYOUTS)}"
    yield "suffix", decode.suffix in SUFFIXES, f"{decode.suffix!r}: {' or '.join(SUFFIXES)}"
    yield "verify", decode.verify == "match", f"{decode.verify!r}: 'match', the exact one, is all there is"


def _model_rules(name: str, entry: Mapping[str, Any]) -> Iterable[tuple[str, bool, str]]:
    at = f"model.{name}"
    for key in entry:
        yield f"{at}.{key}", key in MODEL_KEYS, f"unknown key{_suggest(key, MODEL_KEYS)}"
    for key, (kind, required) in MODEL_KEYS.items():
        value, expected = entry.get(key), KINDS[kind] + (", false or null" if key == "chat" else "")
        wrong = f"{value!r} is the wrong type; {expected} expected"
        yield f"{at}.{key}", value is not None or not required, "missing; every model has one"
        yield f"{at}.{key}", value is None or type(value) is kind or (key == "chat" and value is False), wrong
    length, mask, stops = entry["block_length"], entry.get("mask_id"), entry.get("stop_ids")
    yield f"{at}.block_length", length > 0, f"{length}: one position or more"
    yield f"{at}.mask_id", mask is None or mask >= 0, f"{mask}: a token id is 0 or more"
    tokens = stops is None or (bool(stops) and all(type(token) is int and token >= 0 for token in stops))
    yield f"{at}.stop_ids", tokens, f"{stops!r}: a list of token ids, or null for the checkpoint's"
    for key, value in (entry.get("chat") or {}).items():
        wrong = f"{key!r}: {value!r}; `name: value`, with text, a number, true or false, expected"
        yield f"{at}.chat", isinstance(key, str) and isinstance(value, str | int | float), wrong
        yield f"{at}.chat", key not in CHAT_RESERVED, f"{key}: set by the product, not here"
    for key, value in (entry.get("size") or {}).items():
        yield f"{at}.size", key in MODEL_SIZE, f"{key}: unknown key{_suggest(str(key), MODEL_SIZE)}"
        wrong = f"{key}: {value!r} is the wrong type; a number expected"
        yield f"{at}.size", type(value) in (int, float), wrong
    yield from _model_decode_rules(f"{at}.decode", entry.get("decode") or {})


def _model_decode_rules(at: str, changes: Mapping[str, Any]) -> Iterable[tuple[str, bool, str]]:
    hints = get_type_hints(Decode)
    for key, value in changes.items():
        yield at, key in hints, f"{key}: unknown key{_suggest(str(key), hints)}"
        fits = type(value) is hints[key] or (hints[key] is float and type(value) is int)
        yield at, fits, f"{key}: {value!r} is the wrong type; {KINDS[hints[key]]} expected"
    for key, holds, wrong in _decode_rules(replace(Decode(), **changes)):
        yield at, holds, f"{key}: {wrong}"
