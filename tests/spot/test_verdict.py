"""A difference from the control is explained: rounding, or a bug."""

import pytest
import torch

from spot.decoder import Settings, decode
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


def verdict(control, method):
    return explain_difference(control(), method(), control, method)


def test_logits_within_the_tolerance_are_numeric(monkeypatch):
    control, method = runs(error=0.2)
    assert control().commits != method().commits
    monkeypatch.setitem(__import__("spot.verdict").verdict.TOLERANCE, torch.float64, 0.5)
    assert verdict(control, method) == "numeric"


def test_logits_beyond_the_tolerance_are_a_bug():
    assert verdict(*runs(error=0.2)) == "bug"


def test_a_decoding_that_does_not_repeat_itself_is_a_bug(monkeypatch):
    control, method = runs(error=0.2)
    monkeypatch.setitem(__import__("spot.verdict").verdict.TOLERANCE, torch.float64, 0.5)
    assert explain_difference(control(), method(), control, control) == "bug"


@pytest.mark.parametrize("lost", [1, 5])
def test_a_trajectory_that_ends_early_is_a_bug(lost):
    control, _ = runs(error=0.0)
    whole = control()
    short = type(whole)(whole.tokens, whole.length, whole.commits[:-lost], whole.passes, 1, whole.seconds)
    assert explain_difference(whole, short, control, control) == "bug"
