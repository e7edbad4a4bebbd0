"""A difference from the control is explained: rounding, or a bug."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from spot import verdict as module
from spot.decoder import Settings, decode, step_rule
from spot.noise import Noise
from spot.verdict import explain_difference
from tests.spot.support import golden_target

PROMPT, SETTINGS, NOISE = list(range(11)), Settings(24, stop="length"), Noise(0)


def runs(error: float):
    """The control, and a method whose logits are off by up to `error` of the largest at every pass."""
    target = golden_target(8)
    control = lambda watch=None: decode(target, PROMPT, SETTINGS, NOISE, watch=watch)  # noqa: E731

    def method(watch=None):
        generator = torch.Generator().manual_seed(0)

        def disturb(module, inputs, logits):
            off = 2 * torch.rand(logits.shape, generator=generator, dtype=logits.dtype) - 1
            return logits + error * logits.abs().max() * off if logits.numel() else logits

        handle = target.register_forward_hook(disturb)
        try:
            return decode(target, PROMPT, SETTINGS, NOISE, watch=watch)
        finally:
            handle.remove()

    return control, method


TARGET = golden_target(8)


def verdict(control, method, temperature=0.0, noise=NOISE):
    rule = partial(step_rule, TARGET, settings=replace(SETTINGS, temperature=temperature), noise=noise)
    return explain_difference(control(), method(), control, method, rule)


RULE = partial(step_rule, TARGET, settings=SETTINGS, noise=NOISE)


def test_a_choice_that_does_not_follow_from_equal_logits_is_a_bug():
    """Another noise key moves the choice and leaves the logits: no rounding explains that."""
    settings = replace(SETTINGS, temperature=1.0)

    def runs_with(noise):
        return lambda watch=None: decode(TARGET, PROMPT, settings, noise, watch=watch)

    control, method = runs_with(NOISE), runs_with(Noise(1))
    assert control().commits != method().commits
    assert verdict(control, method, temperature=1.0) == "bug"


def test_logits_within_the_tolerance_are_numeric(monkeypatch):
    control, method = runs(error=0.2)
    assert control().commits != method().commits
    monkeypatch.setitem(module.TOLERANCE, torch.float64, 0.5)
    assert verdict(control, method) == "numeric"


def test_logits_beyond_the_tolerance_are_a_bug():
    assert verdict(*runs(error=0.2)) == "bug"


def test_a_decoding_that_does_not_repeat_itself_is_a_bug(monkeypatch):
    control, method = runs(error=0.2)
    monkeypatch.setitem(module.TOLERANCE, torch.float64, 0.5)
    assert explain_difference(control(), method(), control, control, RULE) == "bug"


@pytest.mark.parametrize("lost", [1, 5])
def test_a_trajectory_that_ends_early_is_a_bug(lost):
    control, _ = runs(error=0.0)
    whole = control()
    short = replace(whole, steps=whole.steps[:-lost])
    assert explain_difference(whole, short, control, control, RULE) == "bug"
