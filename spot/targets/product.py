"""Products with a target's fixed matrices, each kept in the form that its device multiplies quickest by."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LARGE = 1 << 19  # elements from which a product gains more by a packed matrix than its call costs


class Product:
    """x [T, I] -> [T, O]: the linear layers `linears`, which share their input, as one matrix.

    On a CPU it is kept transposed, which a few rows are quicker multiplied by; a large float32 one is packed as oneDNN
    reads it, which is what torch's compiler does to constant weights. The layers' own weights become parts of the
    joined matrix (packed, shapes without memory), unless they are `tied` to an embedding.
    """

    def __init__(self, *linears: nn.Linear, tied: bool = False) -> None:
        biases = [linear.bias for linear in linears if linear.bias is not None]
        self._bias = torch.cat(biases) if biases else None
        weight = torch.cat([linear.weight.data for linear in linears]) if len(linears) > 1 else linears[0].weight.data
        self._on_cpu = weight.device.type == "cpu"
        self._packed = self._on_cpu and weight.dtype == torch.float32 and weight.numel() >= LARGE
        if self._packed:
            self._weight, theirs = torch.ops.mkldnn._reorder_linear_weight(weight), weight.to("meta")
        else:
            self._weight = weight.t().contiguous() if self._on_cpu else weight
            theirs = self._weight.t() if self._on_cpu else weight
        if not tied:
            parts = theirs.split([linear.out_features for linear in linears])
            for linear, part in zip(linears, parts, strict=True):
                linear.weight = nn.Parameter(part, requires_grad=False)

    def __call__(self, x: Tensor) -> Tensor:
        if self._packed:
            return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        if not self._on_cpu:
            return F.linear(x, self._weight, self._bias)
        return x @ self._weight if self._bias is None else torch.addmm(self._bias, x, self._weight)
