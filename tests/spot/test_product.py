"""A product is the linear layers' own, in whatever form its matrix is kept."""

import pytest
import torch
from torch import nn

from spot.targets.product import LARGE, Product

LARGE_ROWS = LARGE // 64


def linears(outputs: tuple[int, ...], bias: bool, dtype: torch.dtype) -> list[nn.Linear]:
    torch.manual_seed(0)
    return [nn.Linear(64, size, bias=bias, dtype=dtype).requires_grad_(False) for size in outputs]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("outputs", [(48,), (48, 16), (LARGE_ROWS,), (LARGE_ROWS, 16)])
@pytest.mark.parametrize("rows", [1, 7, 100])
def test_it_is_what_the_layers_give_one_beside_the_other(rows, outputs, bias, dtype):
    layers = linears(outputs, bias, dtype)
    x = torch.randn(rows, 64, dtype=dtype)
    theirs = torch.cat([layer(x) for layer in layers], -1)
    with torch.inference_mode():
        assert torch.allclose(Product(*layers)(x), theirs, atol=3e-2 if dtype == torch.bfloat16 else 1e-5)


@pytest.mark.parametrize("outputs", [48, LARGE_ROWS])
def test_a_weight_that_is_an_embedding_too_stays_as_it_is(outputs):
    (head,) = linears((outputs,), False, torch.float32)
    weight = head.weight
    Product(head, tied=True)
    assert head.weight is weight and weight.device.type == "cpu" and weight.is_contiguous()


def test_a_packed_matrix_is_held_once():
    layers = linears((LARGE_ROWS, 16), False, torch.float32)
    Product(*layers)
    assert [layer.weight.device.type for layer in layers] == ["meta", "meta"]
    assert [layer.weight.shape[0] for layer in layers] == [LARGE_ROWS, 16]
