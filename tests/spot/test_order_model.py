"""The order model: a distribution over masked positions, of the published size, that knows no tokens."""

import json

import pytest
import torch
from safetensors import safe_open

from spot.drafters.protocol import StaleTable
from spot.order_model import load_order_model, provenance, save_order_model
from tests.spot.support import random_order_model

MODEL = random_order_model()


def table(seed: int = 0, block: int = 32, vocabulary: int = 100) -> StaleTable:
    logits = 6 * torch.randn(block, vocabulary, generator=torch.Generator().manual_seed(seed))
    tokens = [vocabulary - 1 if place >= 5 else 0 for place in range(block)]
    return StaleTable.read(logits[5:], tokens, mask_id=vocabulary - 1)


def ask(stale: StaleTable, masked: torch.Tensor) -> torch.Tensor:
    root = stale.masked & (torch.arange(len(stale.masked)) != 5)
    return MODEL(stale.log_probs.expand(len(masked), -1, -1), stale.masked, root, masked)


def test_it_has_the_published_number_of_parameters():
    assert sum(p.numel() for p in MODEL.parameters()) == pytest.approx(0.62e6, rel=0.02)


def test_it_is_a_distribution_over_the_masked_positions_of_each_branch():
    masked = torch.rand(6, 32, generator=torch.Generator().manual_seed(1)) < 0.5
    masked[:, :6] = False
    q = ask(table(), masked).exp()
    assert torch.allclose(q.sum(-1), torch.ones(6))
    assert (q[~masked] == 0).all() and (q[masked] > 0).all()


def test_a_branch_is_judged_alike_alone_and_among_others():
    masked = torch.rand(6, 32, generator=torch.Generator().manual_seed(1)) < 0.5
    together = ask(table(), masked)
    alone = torch.cat([ask(table(), row[None]) for row in masked])
    assert torch.allclose(together, alone, atol=1e-5)


def test_it_reads_short_blocks_and_small_vocabularies():
    stale = table(block=8, vocabulary=12)
    assert torch.isfinite(ask(stale, stale.masked[None]).exp()).all()


def test_a_table_keeps_the_digits_of_a_confident_target():
    logits = torch.zeros(2, 40)
    logits[0, 7], logits[1, 7] = 30.0, 31.0
    stale = StaleTable.read(logits, [39, 39], mask_id=39)
    assert stale.indices[:, 0].tolist() == [7, 7]
    assert 0 > stale.log_probs[1, 0] > stale.log_probs[0, 0] > -1e-9


def test_the_mask_token_is_never_in_a_table_but_counts_in_its_probabilities():
    logits = torch.zeros(1, 40)
    logits[0, 39] = 5.0
    stale = StaleTable.read(logits, [39], mask_id=39)
    assert 39 not in stale.indices[0].tolist()
    assert stale.log_probs[0].exp().sum().item() == pytest.approx(32 / (39 + torch.tensor(5.0).exp().item()), rel=1e-4)


def test_a_table_holds_the_likeliest_tokens_of_masked_positions_best_first():
    logits = torch.randn(4, 100, generator=torch.Generator().manual_seed(0))
    stale = StaleTable.read(logits[::2], [99, 5, 99, 6], mask_id=99)
    assert stale.masked.tolist() == [True, False, True, False]
    for place in (0, 2):
        likely = logits[place].log_softmax(-1)[:99].sort(descending=True)
        assert torch.equal(stale.indices[place], likely.indices[:32])
        assert torch.allclose(stale.log_probs[place], likely.values[:32], atol=1e-6)
    for place in (1, 3):
        assert not stale.log_probs[place].any() and not stale.indices[place].any()


def test_a_vocabulary_smaller_than_the_table_leaves_the_rest_impossible():
    stale = StaleTable.read(torch.zeros(1, 8), [7], mask_id=7)
    assert sorted(stale.indices[0, :7].tolist()) == list(range(7))
    assert stale.log_probs[0].exp().tolist() == pytest.approx([1 / 8] * 7 + [0] * 25)


def test_half_precision_logits_are_read_in_float32():
    stale = StaleTable.read(torch.tensor([[20.0, 0.0, 0.0]], dtype=torch.bfloat16), [2], mask_id=2)
    assert stale.log_probs.dtype == torch.float32 and -1e-7 < stale.log_probs[0, 0] < 0


def test_a_checkpoint_carries_its_provenance_and_loads_without_pickle(tmp_path):
    path = tmp_path / "order.safetensors"
    save_order_model(MODEL, path, {"target": "tiny", "accuracy": [0.7]})
    assert provenance(path) == {"target": "tiny", "accuracy": [0.7]}
    loaded = load_order_model(path)
    assert all(
        torch.equal(a, b) for a, b in zip(loaded.state_dict().values(), MODEL.state_dict().values(), strict=True)
    )
    with safe_open(path, "pt") as file:
        assert json.loads(file.metadata()["spot"])["target"] == "tiny"
