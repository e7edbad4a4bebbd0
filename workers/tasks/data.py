"""A data set's records, from a local file or the hub; whatever is wrong with one names the file and the line.

    from workers.tasks.data import TEXT, Source, load
    load(Source(path="test.jsonl", hub="openai/gsm8k", config="main", split="test"), {"question": TEXT})

Hub sets come through `datasets`, whose cache serves HF_HUB_OFFLINE=1, by the newest revision that it has; a cell's key
holds the data's own sha256. `hub` may be a local folder too.
"""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Record = dict[str, Any]
Kind = tuple[str, Callable[[Any], bool]]  # what a value should be, and whether it is


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not any("\ud800" <= char <= "\udfff" for char in value)  # no lone surrogates


TEXT: Kind = ("text", lambda value: _is_text(value) and bool(value.strip()))
MAYBE_TEXT: Kind = ("text, or an empty one,", _is_text)
TEXTS: Kind = ("a list of texts", lambda value: isinstance(value, list) and all(map(_is_text, value)))
WHOLE: Kind = ("a whole number", lambda value: type(value) is int)


SIZES = {  # rows of the published splits, by (hub, config, split)
    ("openai/gsm8k", "main", "test"): 1319,
    ("openai/gsm8k", "main", "train"): 7473,
    ("HuggingFaceH4/MATH-500", "default", "test"): 500,
    ("openai/openai_humaneval", "openai_humaneval", "test"): 164,
    ("google-research-datasets/mbpp", "full", "test"): 500,
    ("google-research-datasets/mbpp", "sanitized", "test"): 257,
}


class NotDownloaded(ValueError):
    """The hub's data set is neither in the cache nor to be had; it has `size` rows."""

    def __init__(self, wrong: str, size: int) -> None:
        super().__init__(wrong)
        self.size = size


@dataclass(frozen=True)
class Source:
    """Where records come from: the file `path` if there is one, else `split` of the hub's data set.

    A file is JSON lines (`.gz` of them too) or Parquet. `key` is the option that names it, for what is said of it.
    """

    path: str | None
    hub: str
    config: str
    split: str
    revision: str = "main"
    key: str = "path"


def load(source: Source, columns: Mapping[str, Kind], unique: str | None = None) -> list[Record]:
    """The records of `source`, each with `columns`, no two with one value of the column `unique`.

    Raises ValueError, in one line, for anything else; NotDownloaded for a published split that is not here.
    """
    if not source.split.strip():
        raise ValueError(f"split: {source.split!r}; a name such as 'test' expected")
    records, seen = [], dict[Any, str]()
    for where, record in _local(source) if source.path else _hub(source):
        _check(where, record, columns)
        if unique:
            if first := seen.get(record[unique]):
                before = " ".join(first.split()[-2:])  # line N, or row N
                raise ValueError(f"{where}: {unique} {record[unique]!r} is there before ({before})")
            seen[record[unique]] = where
        records.append(record)
    if not records:
        raise ValueError(f"{source.key}: {source.path or source.hub} has no rows; at least one is wanted")
    return records


def check_shots(shots: int) -> None:
    """Raise ValueError on a number of examples that cannot be, before anything is loaded."""
    if shots < 0:
        raise ValueError(f"shots: {shots}; 0 or more expected")


def examples(shots: int, pool: Sequence[Record], evaluated: Sequence[Record], question: str) -> list[Record]:
    """The first `shots` records of `pool`. Raises ValueError if there are fewer, or if one is to be evaluated."""
    if shots > len(pool):
        raise ValueError(f"shots: {shots}; from 0 to {len(pool)}, the examples that there are, expected")
    asked = {record[question] for record in evaluated}
    for record in pool[:shots]:
        if record[question] in asked:
            raise ValueError(f"shots: the example {record[question][:40]!r} is evaluated too; take other examples")
    return list(pool[:shots])


def _check(where: str, record: Any, columns: Mapping[str, Kind]) -> None:
    if not isinstance(record, dict):
        raise ValueError(f"{where}: {_short(record)} is no row; a JSON object with {', '.join(columns)} expected")
    for column, (expected, fits) in columns.items():
        if column not in record:
            raise ValueError(f"{where}: no column {column!r}; it has {', '.join(map(_short, record)) or 'none'}")
        if not fits(record[column]):
            raise ValueError(f"{where}: {column}: {_short(record[column])} is wrong; {expected} expected")


def _short(value: Any) -> str:
    shown = ascii(value)
    return shown if len(shown) <= 40 else f"{shown[:37]}..."


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _local(source: Source) -> Iterator[tuple[str, Any]]:
    assert source.path
    path = Path(source.path)
    try:
        if not path.is_file():
            raise ValueError(f"{source.key}: no file {path}; JSON lines (plain or .gz) or Parquet expected")
        yield from _parquet(source.key, path) if path.suffix == ".parquet" else _lines(source.key, path)
    except OSError as error:
        raise ValueError(f"{source.key}: {path} cannot be read: {error.strerror or _reason(error)}") from None


def _lines(key: str, path: Path) -> Iterator[tuple[str, Any]]:
    number = 0
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        try:
            for number, line in enumerate(file, start=1):  # bytes: a JSON string may hold other line ends raw
                if line.strip():
                    yield f"{key}: {path} line {number}", _parse(f"{key}: {path} line {number}", line)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise ValueError(f"{key}: {path} line {number + 1}: the gzip file is cut short or damaged") from None


def _parse(where: str, line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: not UTF-8 text (byte {error.start + 1} of the line)") from None
    except (ValueError, RecursionError):
        raise ValueError(f"{where}: not JSON; one object a line expected") from None


def _parquet(key: str, path: Path) -> Iterator[tuple[str, Any]]:
    from pyarrow import ArrowException, parquet

    try:
        records = parquet.read_table(path).to_pylist()
    except (ArrowException, UnicodeDecodeError):
        raise ValueError(f"{key}: {path} is not Parquet") from None
    yield from ((f"{key}: {path} row {number}", record) for number, record in enumerate(records, start=1))


def _hub(source: Source) -> Iterator[tuple[str, Any]]:
    from datasets import load_dataset

    from workers.hub import go_offline_if_unreachable

    go_offline_if_unreachable()
    try:
        records = list(load_dataset(source.hub, source.config, split=source.split, revision=source.revision))
    except Exception as error:  # the hub, the network and the cache each raise their own
        wrong = f"hub: cannot load {source.hub} ({_reason(error)}); a local file goes in {source.key}=FILE"
        size = SIZES.get((source.hub, source.config, source.split))
        raise (ValueError(wrong) if size is None else NotDownloaded(wrong, size)) from None
    yield from ((f"hub: {source.hub} {source.split} row {number}", record) for number, record in enumerate(records, 1))
