"""A replay has every state of a decoding: what was offered, what was accepted, what was committed."""

import json

import pytest

from spot.decoder import Settings, decode
from spot.noise import Noise
from tests.spot.support import TOLD, every_drafter, golden_target, random_order_model, told
from workers.replay import replay
from workers.single import narrate

PROMPT = [3, 1, 4, 1, 5]
TARGET = golden_target(4, stop_ids=frozenset())
METHODS = [name for name in (*every_drafter(random_order_model()), *TOLD) if name != "absurd"]
ASKED = [*((name, None) for name in METHODS), ("spot-sets", 0.15), ("foresight", 0.15)]


@pytest.fixture(scope="module")
def drafters():
    return every_drafter(random_order_model())


def made(drafters, method, settings, budget=6):
    """A decoding that kept its passes, and its replay."""
    noise = Noise.keyed(0, "task", "row")
    control = decode(TARGET, PROMPT, settings, noise)
    drafter = drafters.get(method) or told(method, control)
    found = decode(TARGET, PROMPT, settings, noise, drafter, budget, keep=True)
    return found, replay(found, "how many?", len(PROMPT), TARGET.config, "<{}>".format)


def pairs(flat):
    return list(zip(flat[::2], flat[1::2], strict=True))


@pytest.mark.parametrize(("method", "threshold"), ASKED)
def test_the_states_of_a_decoding_can_be_made_again_from_its_replay(drafters, method, threshold):
    found, kept = made(drafters, method, Settings(12, 0.7, "length", threshold))
    text: dict[int, int] = {}
    for one, (steps, drafts, accepted) in zip(found.passes, kept["passes"], strict=True):
        states = {0: dict(text)}
        while len(states) <= len(drafts):  # a parent may come after its child
            for number, (parent, *commits) in enumerate(drafts, start=1):
                if parent in states:
                    states[number] = states[parent] | dict(pairs(commits))
        offered = [
            {at - len(PROMPT): token for at, token in enumerate(node, one.start) if at >= len(PROMPT)}
            for node in one.nodes[1:]
        ]
        before = {at: token for at, token in text.items() if at < one.start - len(PROMPT)}
        assert [{at: kept["pieces"][piece] for at, piece in states[n].items()} for n in range(1, len(states))] == [
            {at: kept["pieces"][piece] for at, piece in before.items()}
            | {at: f"<{token}>" for at, token in state.items() if token != TARGET.config.mask_id}
            for state in offered
        ]
        for step, entered in zip(steps, [*accepted, None], strict=True):
            text |= dict(pairs(step))
            assert entered is None or states[entered] == text
    written = [kept["pieces"][text[at]] for at in range(found.length)]
    assert written == [f"<{token}>" for token in found.tokens]


def test_the_control_has_a_pass_a_step_and_no_drafts(drafters):
    found = decode(TARGET, PROMPT, Settings(12), Noise(0), keep=True)
    passes = replay(found, "", len(PROMPT), TARGET.config, str)["passes"]
    assert [(len(steps), drafts, accepted) for steps, drafts, accepted in passes] == [(1, [], [])] * found.nfe


def test_blocks_start_where_the_prompts_last_one_does(drafters):
    _, kept = made(drafters, "stale", Settings(12))
    assert (kept["start"], kept["block"], kept["prompt"]) == (-1, 4, "how many?")


def test_drafts_that_contradict_the_block_are_shown_too(drafters):
    found, kept = made(drafters, "absurd", Settings(12))
    assert [len(drafts) for _, drafts, _ in kept["passes"]] == [one.drafted for one in found.passes]


def test_a_replay_is_plain_and_small(drafters):
    found, kept = made(drafters, "stale", Settings(12), budget=20)
    assert json.loads(json.dumps(kept)) == kept
    assert len(json.dumps(kept)) < 600 + 20 * sum(one.drafted + one.accepted + 1 for one in found.passes)


def test_keeping_passes_changes_nothing_of_a_decoding(drafters):
    plain = decode(TARGET, PROMPT, Settings(12, 1.0), Noise(0), drafters["spot edge"], 8)
    kept = decode(TARGET, PROMPT, Settings(12, 1.0), Noise(0), drafters["spot edge"], 8, keep=True)
    assert (plain.steps, plain.tokens, plain.nfe) == (kept.steps, kept.tokens, kept.nfe)
    assert [one.nodes for one in plain.passes] == [()] * plain.nfe
    assert all(len(one.nodes) == one.drafted + 1 for one in kept.passes)


def test_a_line_a_pass_says_what_was_offered_accepted_and_committed(drafters):
    kept = {"pieces": [" a", "b"], "passes": [[[[2, 0]], [], []], [[[0, 1], [1, 0]], [[0, 0, 1]], [1]]]}
    assert list(narrate(kept)) == [
        "pass   1  drafted  0  accepted  0  2:' a'",
        "pass   2  drafted  1  accepted  1  0:'b'  1:' a'",
    ]
