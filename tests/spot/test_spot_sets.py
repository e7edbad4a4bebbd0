"""SPOT-Sets: the likeliest sets, their masses, and drafts under the threshold rule."""

import itertools
import math

import pytest
import torch

from spot.decoder import Settings, decode
from spot.drafters.spot_sets import SpotSets, likeliest_sets
from spot.noise import Noise
from spot.order_model import provenance
from spot.sets_model import SetsModel, load_sets_model, save_sets_model
from spot.training.sets import SetsSettings, SetsTraces, calibrate_sets, set_accuracy
from spot.training.traces import collect
from tests.spot.support import golden_target, random_order_model


def sets_model() -> SetsModel:
    torch.manual_seed(1)
    return SetsModel(random_order_model()).eval().requires_grad_(False)


def brute_force(log_q, passing, masked) -> dict[frozenset[int], float]:
    """Every set's log probability where positions pass independently; single positions share what none has."""
    where = [i for i, m in enumerate(masked) if m]
    p = {i: 1 / (1 + math.exp(-passing[i])) for i in where}
    found = {}
    for chosen in itertools.chain.from_iterable(itertools.combinations(where, n) for n in range(1, len(where) + 1)):
        found[frozenset(chosen)] = sum(math.log(p[i] if i in chosen else 1 - p[i]) for i in where)
    none = sum(math.log(1 - p[i]) for i in where)
    return found, {i: none + log_q[i] for i in where}


def test_likeliest_sets_have_the_probabilities_that_counting_gives():
    generator = torch.Generator().manual_seed(3)
    masked = torch.tensor([[True, True, False, True, True]])
    passing = torch.randn(1, 5, generator=generator) * 2
    log_q = torch.randn(1, 5, generator=generator).masked_fill(~masked, -torch.inf).log_softmax(-1)
    log_mass, sets = likeliest_sets(log_q, passing, masked)
    expected, singles = brute_force(log_q[0].tolist(), passing[0].tolist(), masked[0].tolist())
    found: dict[frozenset[int], float] = {}
    for mass, chosen in zip(log_mass[0].tolist()[:32], sets[0][:32], strict=True):
        if mass > -math.inf:
            found[frozenset(chosen.nonzero().squeeze(-1).tolist())] = mass
    assert found == pytest.approx(expected, abs=1e-5)
    assert log_mass[0, 32:].tolist() == pytest.approx([singles.get(i, -math.inf) for i in range(5)], abs=1e-5)


@pytest.mark.parametrize("threshold", [None, 0.1, 0.2, 0.5])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafted_sets_leave_the_text_as_it_is(threshold, temperature):
    target, asked = golden_target(8), Settings(24, temperature, "length", threshold)
    control = decode(target, list(range(13)), asked, Noise(5))
    for budget, edge in [(1, False), (6, False), (6, True), (20, True)]:
        found = decode(target, list(range(13)), asked, Noise(5), SpotSets(sets_model(), edge), budget)
        assert (found.steps, found.tokens) == (control.steps, control.tokens)
        assert found.nfe <= control.nfe


def test_a_saved_sets_model_says_what_it_said(tmp_path):
    model, path = sets_model(), tmp_path / "sets.safetensors"
    save_sets_model(model, path, {"task": "arith"})
    loaded = load_sets_model(path)
    assert provenance(path) == {"task": "arith"}
    assert all(
        torch.equal(a, b) for a, b in zip(model.state_dict().values(), loaded.state_dict().values(), strict=True)
    )


def test_calibration_learns_who_passes_and_leaves_the_order_model_alone():
    target, threshold = golden_target(8), 0.2
    prompts = [list(range(n)) for n in range(9, 21)]
    traces = SetsTraces(collect(target, prompts, Settings(24, 0.0, "length", threshold)), threshold)
    order = random_order_model()
    before = {name: value.clone() for name, value in order.state_dict().items()}
    questions, untrained = traces.every(0), SetsModel(order)
    model = calibrate_sets(order, [traces], SetsSettings(steps=60), lambda line: None)
    assert questions.loss(model) < questions.loss(untrained) * 0.9
    assert all(torch.equal(value, before[name]) for name, value in order.state_dict().items())
    found = set_accuracy(model, traces)
    assert len(found["sets_model"]) == len(found["stale_confidence"])


def test_a_threshold_that_fills_every_block_in_one_step_leaves_nothing_to_calibrate():
    traces = collect(golden_target(8), [[1, 2, 3]], Settings(16, 0.0, "length", 1e-6))
    with pytest.raises(ValueError, match="one step"):
        SetsTraces(traces, 1e-6)
