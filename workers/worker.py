"""A worker: one target with its drafters, doing sample and trace tasks. Plain Python; Ray wraps it in an actor."""

import gc
import hashlib
import json
import platform
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, cast

import torch
from safetensors import SafetensorError
from transformers import AutoTokenizer
from transformers.utils import logging as transformers_logging

from spot import drafters, targets
from spot.decoder import Decoding, Settings, Watch, decode, step_rule
from spot.drafters.oracle import Oracle
from spot.drafters.protocol import Drafter
from spot.drafters.spot_auto import SpotAuto
from spot.noise import Noise
from spot.order_model import provenance
from spot.pass_cost import PassCost, measure_pass_cost
from spot.training.traces import collect, pack
from spot.verdict import explain_difference
from workers import sources, weights
from workers.failure import Cause, cause_of
from workers.memory import peak_bytes, reset_peak
from workers.replay import replay
from workers.store import open_store
from workers.work import (
    UNRESOLVED,
    Absent,
    Chat,
    DecodeSpec,
    DrafterSpec,
    MethodTask,
    ModelSpec,
    SampleTask,
    TraceTask,
    Work,
)

CONTROL = MethodTask("", None, 0)
PROJECT = Path(__file__).resolve().parents[1]
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Worker:
    """Loads `model` once and decodes with it. Every method of a sample task runs back to back with the control."""

    def __init__(self, model: ModelSpec) -> None:
        torch.set_num_threads(model.threads)
        transformers_logging.set_verbosity_error()  # it warns of every model type that is not its own
        folder = checkpoint_folder(model)
        self._model = model
        self._tokenizer = load_tokenizer(folder)
        dtype = DTYPES[model.dtype]
        self.target = targets.load(
            model.family, folder, model.block_length, dtype, model.device, model.mask_id, model.stop_ids
        )
        self.passes = 0
        cast(torch.nn.Module, self.target).register_forward_pre_hook(self._count_pass)
        self._drafters: dict[DrafterSpec, Drafter] = {}
        self._costs: dict[_Asked, PassCost] = {}
        self._warm: set[_Asked] = set()

    def _count_pass(self, *_: object) -> None:
        self.passes += 1

    def run(self, task: Work) -> list[Mapping[str, Any]]:
        """The records of `task`: decode records, or the one of a shard of traces."""
        return [self.trace(task)] if isinstance(task, TraceTask) else self.sample(task)

    def trace(self, task: TraceTask) -> dict[str, Any]:
        """Decode `task`'s prompts draft-free, and write their traces to its store as one shard."""
        prompts = (self.prompt_ids(prompt) for prompt in task.prompts)
        traces = collect(self.target, prompts, decode_settings(task.decode, None))
        open_store(task.store).put(task.shard, pack(traces))
        return {"kind": "trace", "shard": task.shard, "rows": len(task.rows), "blocks": len(traces)}

    def sample(self, task: SampleTask) -> list[Mapping[str, Any]]:
        """Decode records of every pending cell of `task`, the control's first. A method that raises fails alone."""
        timed = [CONTROL, *(m for m in task.methods if not _is_oracle(m))]
        outcomes: dict[str, _Outcome] = {}
        for method in [*_rotate(timed, task.turn), *filter(_is_oracle, task.methods)]:
            control = outcomes[""].decoding if _is_oracle(method) else None
            outcomes[method.cell] = self._attempt(task, method, control)
        paired = outcomes.pop("")
        recorded = [(task.control, paired)] if task.control else []
        recorded += [(method, outcomes[method.cell]) for method in task.methods]
        return [self._record(task, method, outcome, paired) for method, outcome in recorded]

    def prompt_ids(self, prompt: str) -> list[int]:
        """The token ids of one user turn under the target's chat template, or of `prompt` alone without one."""
        chat, text = self._model.chat, prompt
        if chat is not False:
            turns, asked = [{"role": "user", "content": prompt}], dict(chat or ())
            text = self._tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False, **asked)
        return self._tokenizer.encode(text, add_special_tokens=False)

    def decode(
        self,
        task: SampleTask,
        method: MethodTask,
        watch: Watch | None = None,
        gen_length: int | None = None,
        control: Decoding | None = None,
        keep: bool = False,
    ) -> Decoding:
        """Decode `task`'s prompt with one method, to `gen_length` tokens if that is given; `keep` as `decode`'s.

        An oracle needs the `control` whose trajectory it is to know; it is decoded here where it is not given.
        """
        settings = decode_settings(task.decode, method.drafter)
        settings = replace(settings, gen_length=gen_length or settings.gen_length)
        noise = Noise.keyed(task.decode.seed, task.task, task.row)
        drafter = self.drafter(task, method, control) if method.drafter else None
        return decode(self.target, self.prompt_ids(task.prompt), settings, noise, drafter, method.budget, watch, keep)

    def text(self, tokens: list[int], special: bool = False) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=not special)

    def replay(self, task: SampleTask, decoding: Decoding) -> dict[str, Any]:
        """The passes of a decoding of `task` that kept them, as workers/replay.py has them."""
        length = len(self.prompt_ids(task.prompt))
        return replay(decoding, task.prompt, length, self.target.config, lambda token: self.text([token], special=True))

    def _attempt(self, task: SampleTask, method: MethodTask, control: Decoding | None) -> "_Outcome":
        started = time.time()
        try:
            asked = _asked(task, method)
            if asked not in self._warm and not _is_oracle(method):
                self.decode(task, method, gen_length=self.target.config.block_length)
                self._warm.add(asked)
                started = time.time()
            reset_peak(self._model.device)
            decoding = self.decode(task, method, control=control, keep=task.replay)
            return _Outcome(decoding, None, started, time.time(), peak_bytes(self._model.device))
        except Exception as error:  # the border: whatever a method raises is its record, not the worker's end
            cause = cause_of(error)
            if cause == "cuda":
                raise  # the device is not to be trusted after this: the worker ends and its task is tried elsewhere
            said = f"{type(error).__name__}: {error}".splitlines()[0]
        if cause == "oom-cuda":  # outside the handler, whose traceback holds the tensors
            gc.collect()
            torch.cuda.empty_cache()
        return _Outcome(None, said, started, time.time(), cause=cause)

    def drafter(self, task: SampleTask, method: MethodTask, control: Decoding | None = None) -> Drafter:
        """The loaded drafter of `method`; an oracle is told the control, spot-auto what passes cost."""
        spec = method.drafter
        assert spec is not None
        if spec not in self._drafters:
            file = drafter_file(spec)
            self._drafters[spec] = drafters.load(spec.method, file, self._model.device, **dict(spec.options))
        drafter = self._drafters[spec]
        if isinstance(drafter, Oracle):
            return drafter.of(control or self.decode(task, CONTROL))
        if isinstance(drafter, SpotAuto):
            return replace(drafter, cost=self.pass_cost(task, method, drafter))
        return drafter

    def pass_cost(self, task: SampleTask, method: MethodTask, drafter: SpotAuto) -> PassCost:
        """The seconds of a pass by number of drafts, up to the method's budget.

        Measured once for what is asked of a decoding, on `task`'s prompt.
        """
        asked = _asked(task, method)
        if asked not in self._costs:
            settings, prompt = asked[2], self.prompt_ids(task.prompt)
            budgets = [n for n in (1, 2, 4, 8, 16, 32, 64) if n < method.budget] + [method.budget]
            self._costs[asked] = measure_pass_cost(self.target, prompt, settings, drafter.spot, budgets)
        return self._costs[asked]

    def _record(self, task: SampleTask, method: MethodTask, outcome: "_Outcome", control: "_Outcome") -> dict[str, Any]:
        record = {
            "kind": "decode",
            "sweep": task.sweep,
            "cell": method.cell,
            "row": task.row,
            "attempt": method.attempt,
            "device": self._model.device,
            "dtype": self._model.dtype,
            "threads": torch.get_num_threads(),
            "per_gpu": self._model.per_gpu,
            "node": platform.node(),
            "started": outcome.started,
            "finished": outcome.finished,
            "peak_bytes": outcome.peak_bytes,
        }
        if outcome.decoding is None or control.decoding is None:
            error = outcome.error or f"its control failed: {control.error}"
            return record | {"status": "failed", "error": error, "cause": outcome.cause or control.cause}
        identical = outcome.decoding.tokens == control.decoding.tokens
        is_repeat = identical and method.drafter is not None and task.control is not None
        return (
            record
            | {"status": "ok", "error": None, "identical": identical}
            | {"difference": None if identical else self._explain(task, method, outcome.decoding, control.decoding)}
            | self._text_fields(outcome.decoding, control.decoding, is_repeat)
            | _measures(outcome.decoding, control.decoding)
            | ({"replay": self.replay(task, outcome.decoding)} if task.replay else {})
        )

    def _text_fields(self, decoding: Decoding, control: Decoding, is_repeat: bool) -> dict[str, Any]:
        text, control_text = self.text(decoding.tokens), self.text(control.tokens)
        return {
            "text": None if is_repeat else text,
            "tokens": None if is_repeat else decoding.tokens,
            "text_sha": text_sha(text),
            "control_sha": text_sha(control_text),
        }

    def _explain(self, task: SampleTask, method: MethodTask, decoding: Decoding, control: Decoding) -> str:
        noise, settings = Noise.keyed(task.decode.seed, task.task, task.row), decode_settings(task.decode, None)
        return explain_difference(
            control,
            decoding,
            lambda watch: self.decode(task, CONTROL, watch),
            lambda watch: self.decode(task, method, watch, control=control),
            lambda visit: step_rule(self.target, visit, settings, noise),
        )


def load_tokenizer(folder: Path) -> Any:
    """A checkpoint's tokenizer by a stock class. Dream's is Qwen2's under a name of its own, whose code is not run."""
    file = folder / "tokenizer_config.json"
    named = json.loads(file.read_text()).get("tokenizer_class") if file.is_file() else None
    stock = {"tokenizer_type": "qwen2"} if named == "DreamTokenizer" else {}
    return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, **stock)


@dataclass(frozen=True)
class _Outcome:
    decoding: Decoding | None
    error: str | None
    started: float
    finished: float
    peak_bytes: int | None = None
    cause: Cause | None = None


def decode_settings(asked: DecodeSpec, drafter: DrafterSpec | None) -> Settings:
    return Settings(
        gen_length=asked.gen_length,
        temperature=asked.temperature,
        stop=asked.stop,
        threshold=asked.threshold,
        layout=asked.layout,
        cache=asked.cache,
        suffix=asked.suffix,
        pad_pieces=drafter.pad_pieces if drafter else 0,
    )


_Asked = tuple[DrafterSpec | None, int, Settings]
"""What decides how long a pass takes: the drafter, its budget, and how it is decoded."""


def _asked(task: SampleTask, method: MethodTask) -> _Asked:
    return method.drafter, method.budget, decode_settings(task.decode, method.drafter)


def _is_oracle(method: MethodTask) -> bool:
    return method.drafter is not None and method.drafter.method == "oracle"


def _rotate(methods: list[MethodTask], turn: int) -> list[MethodTask]:
    turn %= len(methods)
    return methods[turn:] + methods[:turn]


def _measures(decoding: Decoding, control: Decoding) -> dict[str, Any]:
    drafted = [p for p in decoding.passes if p.drafted]
    deepest = max((p.accepted for p in drafted), default=0)
    return {
        "length": decoding.length,
        "nfe": decoding.nfe,
        "cache_passes": decoding.cache_passes,
        "steps": len(decoding.steps),
        "drafted": sum(p.drafted for p in drafted),
        "drafted_passes": len(drafted),
        "accepted": sum(p.accepted for p in drafted),
        "accepted_by_depth": [sum(p.accepted >= depth for p in drafted) for depth in range(1, deepest + 1)],
        "seconds": decoding.seconds,
        "control_nfe": control.nfe,
        "control_seconds": sum(control.seconds.values()),
    }


def text_sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# ---- what a configuration means, without loading a target


def locate(path: str) -> str:
    """A path as it stands, or under the project's root if its folder is there; hub ids pass through."""
    inside = PROJECT / path
    return str(inside) if not Path(path).exists() and inside.parent.is_dir() else path


def checkpoint_folder(model: ModelSpec) -> Path:
    """The folder with a target's checkpoint; one on S3 or the hub is fetched, once a machine."""
    if weights.is_s3(model.path):
        return weights.fetch(model.path, model.revision)
    return targets.fetch(locate(model.path), model.revision)


def drafter_file(drafter: DrafterSpec) -> Path | None:
    """The file with a drafter's checkpoint, if it has one; one on S3 is fetched, once a machine."""
    if drafter.checkpoint is None:
        return None
    if weights.is_s3(drafter.checkpoint):
        return weights.fetch_file(drafter.checkpoint, drafter.sha)
    return Path(locate(drafter.checkpoint))


def resolve_model(name: str, options: dict[str, Any]) -> ModelSpec:
    """The spec of a configs/model/ entry, its revision resolved to the weights themselves.

    Raises ValueError, in one line, for a wrong value or a checkpoint that is not there; Absent where the hub may have
    it. A commit that the entry names needs no hub to be planned.
    """
    if (options.get("dtype") or "float32") not in DTYPES:
        raise ValueError(f"dtype: no dtype {options['dtype']!r}; there are {', '.join(DTYPES)}")
    family, path, stop_ids = options["family"], options["path"], options.get("stop_ids")
    stops = None if stop_ids is None else tuple(stop_ids)

    def spec(revision: str) -> ModelSpec:
        return ModelSpec(
            name=name,
            family=family,
            path=path,
            revision=revision,
            block_length=options["block_length"],
            dtype=options.get("dtype") or "float32",
            mask_id=options.get("mask_id"),
            stop_ids=stops,
            chat=_chat(options.get("chat")),
            exact=targets.exact(family),
        )

    asked, tokens = options.get("revision"), (options.get("mask_id"), stops)
    try:
        if weights.is_s3(path):
            return spec(_resolve_s3(family, path, *tokens))
        return spec(targets.resolve(family, locate(path), asked, *tokens))
    except targets.Unreachable as error:
        raise Absent(str(error), spec(asked or UNRESOLVED)) from None


def _resolve_s3(family: str, address: str, mask_id: int | None, stop_ids: tuple[int, ...] | None) -> str:
    try:
        folder, revision = weights.outline(address)
    except (ValueError, OSError) as error:
        raise ValueError(f"path: {error}") from None
    try:
        targets.check_folder(family, folder, mask_id, stop_ids)
    except ValueError as error:
        raise ValueError(str(error).replace(str(folder), address)) from None
    return revision


def _chat(asked: dict[str, Any] | Literal[False] | None) -> Chat:
    """`asked` as a spec holds it; no arguments are the template's defaults."""
    return False if asked is False else tuple(sorted((asked or {}).items())) or None


def resolve_drafter(name: str, options: dict[str, Any]) -> DrafterSpec:
    """The spec of a configs/drafter/ entry with its checkpoint's hash.

    Builds it once, on the CPU: what is wrong with the checkpoint or a value is a ValueError, in one line, here; Absent
    for a checkpoint that is not made yet.
    """
    options = dict(options)
    method, checkpoint = options.pop("method", name), options.pop("checkpoint", None)
    pad_pieces = options.pop("pad_pieces", 0)
    if type(pad_pieces) is not int or pad_pieces < -1:
        raise ValueError(f"pad_pieces: {pad_pieces!r}; drafts to pad a pass to, 0 for none, -1 for the budget")
    drafters.check(method, checkpoint, options)
    longest = drafters.longest_block(method)

    def spec(sha: str | None) -> DrafterSpec:
        return DrafterSpec(name, method, checkpoint, sha, tuple(sorted(options.items())), pad_pieces, longest)

    try:
        file, sha = drafter_file(DrafterSpec(name, method, checkpoint)), None
    except OSError as error:
        raise ValueError(f"checkpoint: {error}") from None
    if file is not None:
        if not file.is_file():
            remedy = f"made by: {drafters.made_by(method)}, with --out {checkpoint}"
            raise Absent(f"checkpoint: no file {checkpoint}; {remedy}", spec(UNRESOLVED))
        sha = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    try:
        drafters.load(method, file, "cpu", **options)
    except (ValueError, LookupError, TypeError, RuntimeError, SafetensorError) as error:
        if isinstance(error, ValueError) and str(error).partition(": ")[0] in options:
            raise
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(f"checkpoint: {checkpoint} is no checkpoint for {method} ({reason})") from None
    return spec(sha)


def trained_rows(spec: DrafterSpec) -> dict[str, frozenset[str]]:
    """The row ids, by task, that a drafter was trained or calibrated on; nothing where its checkpoint names none.

    Raises ValueError, in one line, for a checkpoint that is no such file.
    """
    file = drafter_file(spec)
    if file is None:
        return {}
    try:
        made_of = json.loads(file.read_text()) if file.suffix == ".json" else provenance(file)
        return {task: frozenset(rows) for task, rows in made_of.get("trained_on", {}).items()}
    except (ValueError, KeyError, TypeError, AttributeError, SafetensorError):
        made_by = drafters.made_by(spec.method)
        raise ValueError(f"checkpoint: {spec.checkpoint} was not made by {made_by}") from None


def environment(model: ModelSpec) -> dict[str, Any]:
    """What a sweep's numbers depend on beside its cells: versions, machine and our sources. Kept in sweep.yaml."""
    packages = ("torch", "transformers", "ray", "mlflow")
    return {
        "python": platform.python_version(),
        **{package: version(package) for package in packages},
        "machine": platform.machine(),
        "device": torch.cuda.get_device_name() if model.device == "cuda" and torch.cuda.is_available() else "cpu",
        "threads": model.threads,
        "commit": _commit(),
        "decoder": sources.decoder(),
        "scorers": sources.scorers(),
    }


def _commit() -> str | None:
    """The project's git commit, with a plus if the tree differs from it; None outside a checkout."""
    git = ["git", "-C", str(PROJECT)]
    try:
        commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        dirty = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit.stdout.strip() + ("+" if dirty.stdout.strip() else "")
