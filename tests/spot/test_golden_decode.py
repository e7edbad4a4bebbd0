"""Decoding against trajectories from the authors' own code (tests/golden), family by family.

Runs by the single and threshold rules are decoded by our decoder with every method. The authors' other rules (several
commits a step on a schedule, other measures of confidence, the dual cache) are replayed by a loop here over the same
targets. Accounting differs in this: we do not count the authors' passes that commit nothing (prefills, stores, a second
pass over a block that the first filled).
"""

import json
from collections.abc import Iterator

import pytest
import torch

from spot.decoder import Settings, decode
from spot.noise import Noise
from tests.spot.support import FOLDERS, MASK, golden_target
from tests.spot.test_golden_forward import over_dual_cache

RUNS = {family: json.loads((folder / "golden_decode.json").read_text())["runs"] for family, folder in FOLDERS.items()}
METHODS = ["draft-free", "spot", "spot edge", "blockspec", "absurd"]


def golden_steps(run) -> list[tuple]:
    return [tuple(sorted((p, token) for p, token, _ in step["commit"])) for step in run["forwards"] if step["commit"]]


def asked(family: str, run) -> Settings | None:
    """How our decoder is asked for what the authors' code did; None where its rules do not express it."""
    given = run["params"]
    one_a_step = given.get("denoising_steps", given.get("steps")) == given["block_length"]
    if family == "sdar" and given["strategy"] in ("static", "dynamic") and one_a_step:
        return Settings(given["gen_length"], threshold=given["confidence_threshold"])
    if family == "llada2" and one_a_step:
        return Settings(given["gen_length"], threshold=given["threshold"] if given["threshold"] < 1 else None)
    if family == "llada" and given["steps"] == given["gen_length"] and "dual" not in run["name"]:
        cache = "prefix" in run["name"]
        return Settings(given["gen_length"], stop="length", threshold=given["threshold"], cache=cache)
    return None


EXPRESSED = [(family, run) for family, runs in RUNS.items() for run in runs if asked(family, run)]
OTHERS = [(family, run) for family, runs in RUNS.items() for run in runs if not asked(family, run)]


def named(runs) -> list[str]:
    return [f"{family}-{run['name']}" for family, run in runs]


def stops(family: str, run) -> frozenset[int]:
    given = run["params"]
    return frozenset({"sdar": given.get("stop_ids", []), "llada2": [given.get("eos_id")]}.get(family, []))


@pytest.mark.parametrize(("family", "run"), EXPRESSED, ids=named(EXPRESSED))
@pytest.mark.parametrize("method", METHODS)
def test_every_method_commits_what_the_authors_code_commits_in_the_same_steps(family, run, method, drafters):
    """One position a step, or all over the threshold; without drafts, in as many passes."""
    target = golden_target(run["params"]["block_length"], torch.float32, stops(family, run), family)
    found = decode(target, run["prompt_ids"], asked(family, run), Noise(0), drafters.get(method), 6)
    assert found.steps == golden_steps(run)
    if method == "draft-free":
        assert found.nfe == len(golden_steps(run))


def test_over_half_of_the_authors_runs_are_by_rules_that_the_decoder_has():
    assert len(EXPRESSED) == 45 and len(OTHERS) == 34


@pytest.mark.parametrize("run", [run for run in RUNS["dream"] if run["name"].endswith("maskgit_plus.steps32")])
def test_our_decoder_goes_dreams_way_until_its_schedule_commits_the_last_two_at_once(run):
    """Its schedule of 32 steps begins with one that commits nothing."""
    target = golden_target(32, torch.float32, frozenset(), "dream")
    found = decode(target, run["prompt_ids"], Settings(32, stop="length", cache=False), Noise(0))
    golden = golden_steps(run)
    assert found.steps[:-2] == golden[:-1] and set(found.steps[-2]) < set(golden[-1])


@pytest.mark.parametrize(("family", "run"), OTHERS, ids=named(OTHERS))
def test_the_authors_other_rules_commit_the_same_over_our_targets(family, run):
    assert [step for step in replay(family, run) if step] == golden_steps(run)


def replay(family: str, run) -> Iterator[tuple]:
    """The commits of each pass, by the authors' rule, from our targets' logits."""
    given, prompt = run["params"], run["prompt_ids"]
    length = given.get("gen_length") or given["max_new_tokens"]
    size = given["block_length"] or length
    target = golden_target(size, torch.float32, frozenset(), family)
    first = len(prompt) // size * size if target.config.block_causal else len(prompt)
    end = first + -(-(len(prompt) + length - first) // size) * size
    canvas = prompt + [MASK] * (end - len(prompt))
    for start in range(first, end, size):
        block, before = slice(start, start + size), torch.tensor(canvas)
        target.prefill(canvas[:start], cache="fast_prefix" in run["name"] or target.config.block_causal, end=end)
        number = 0
        while MASK in canvas[block]:
            tokens = torch.tensor(canvas[block])
            if "fast_dual" in run["name"] and number:
                logits = over_dual_cache(target.model, before, block, tokens)
                logits = logits.roll(1, 0) if family == "dream" else logits
            else:
                logits = target(tokens[None])[0]
            places = chosen(family, run, logits, tokens == MASK, number)
            step = [(start + place, int(logits[place].argmax())) for place in places]
            for position, token in step:
                canvas[position] = token
            yield tuple(sorted(step))
            number += 1


def chosen(family: str, run, logits: torch.Tensor, masked: torch.Tensor, number: int) -> list[int]:
    """The places that the authors' rule commits in pass `number` of a block."""
    given, size, left = run["params"], len(masked), int(masked.sum())
    confidence = measure(given.get("alg"), logits).masked_fill(~masked, -torch.inf)
    order = confidence.argsort(descending=True).tolist()
    threshold = given.get("threshold", given.get("confidence_threshold"))
    if family in ("sdar", "llada2"):
        least = min(left, size // given.get("denoising_steps", given.get("steps")))
        if given.get("strategy") == "sequential":
            return masked.nonzero().flatten().tolist()[:least]
        if given.get("strategy") == "low_confidence_dynamic":  # of the top token alone: every confidence is 1
            return masked.nonzero().flatten().tolist()
        sure = (confidence > threshold).nonzero().flatten().tolist() if threshold is not None else []
        return sure if len(sure) >= least else order[:least]
    if family == "dream" and "fast" in run["name"] and number == 0:
        return [0]
    if threshold is not None:
        return [place for rank, place in enumerate(order) if rank == 0 or confidence[place] >= threshold]
    blocks = (given.get("gen_length") or given["max_new_tokens"]) // size
    steps = given["steps"] // blocks
    return order[: size // steps] if family == "llada" else order[: scheduled(left, number, steps)]


def scheduled(left: int, number: int, steps: int) -> int:
    """Dream's number of commits in step `number` of `steps`, with `left` masks."""
    times = torch.linspace(1, 1e-3, steps + 1)
    return int(left * (1 - times[number + 1] / times[number])) if number < steps - 1 else left


def measure(algorithm: str | None, logits: torch.Tensor) -> torch.Tensor:
    p = logits.softmax(-1)
    if algorithm == "entropy":
        return (p * (p + 1e-10).log()).sum(-1)
    best = p.topk(2).values
    return best[:, 0] - best[:, 1] if algorithm == "topk_margin" else best[:, 0]
