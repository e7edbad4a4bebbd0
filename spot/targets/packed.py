"""Stock transformers layers over one packed row of tokens, with an attention of our own (design.md §3).

The projections, rotary angles, MLPs and all weights are transformers' modules. The attention is ours, because several
nodes share one cached prefix, which is never copied; so are norms and rotation, in fewer operations than theirs.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from spot.targets.product import Product

ROOM = 256  # positions by which a cache grows


class KeyValues:
    """Keys (after rotary embedding) and values of the first `length` positions of a text, [K, length, D] a layer.

    What is written beyond `length` is scratch, until the length says otherwise.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        head = model.model.layers[0].self_attn.head_dim
        empty = torch.empty(2, model.config.num_key_value_heads, 0, head, device=model.device, dtype=model.dtype)
        self._layers = [empty] * model.config.num_hidden_layers
        self.length = 0

    def layer(self, index: int, length: int | None = None) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer, [K, P, D], P = `length` or all that is stored."""
        key, value = self._layers[index][:, :, : self.length if length is None else length]
        return key, value

    def write(self, index: int, key: Tensor, value: Tensor) -> None:
        """Put those [K, T, D] of the positions that follow behind the stored ones."""
        end = self.length + key.shape[1]
        held = self._layers[index]
        if held.shape[2] < end:
            room = held.new_empty(2, held.shape[1], -(-end // ROOM) * ROOM, held.shape[3])
            room[:, :, : self.length] = held[:, :, : self.length]
            self._layers[index] = held = room
        held[0, :, self.length : end] = key
        held[1, :, self.length : end] = value


@dataclass(frozen=True)
class Segment:
    """`rows` rows of `length` tokens in a pass, all seeing alike.

    `visible` [length, length] bool within a row; None where all is.
    """

    rows: int
    length: int
    visible: Tensor | None = None

    @property
    def tokens(self) -> int:
        return self.rows * self.length

    def fold(self, x: Tensor) -> Tensor:
        """[H, rows * length, D] to [rows, H, length, D]."""
        return x.unflatten(1, (self.rows, self.length)).transpose(0, 1)

    def unfold(self, x: Tensor) -> Tensor:
        """[rows, H, length, D] to [rows * length, H * D]."""
        return x.transpose(1, 2).reshape(self.tokens, -1)


class Layers:
    """A stock model's layers, run over one packed row; takes over its projections' weights (see `Product`)."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._norm = _Norm(model.model.norm)
        self._head = Product(model.lm_head, tied=model.config.tie_word_embeddings)
        self._layers = [_Layer(layer) for layer in model.model.layers]
        self._turns: tuple[Tensor, Tensor] | None = None

    def run(
        self,
        tokens: Tensor,
        positions: Tensor,
        held: KeyValues,
        text: Segment,
        segments: list[Segment],
        end: int,
        wanted: Tensor,
    ) -> Tensor:
        """Hidden states [W, H] before the last norm, of the tokens at `wanted` [W] int64.

        tokens and positions [T] int64, the latter under `end`: those of `text`, one row that may be empty, then those
        of `segments`. The text follows what is `held` and sees it, the segments see both, and nothing of one another.
        The text's keys and values are written to `held`, whose length stays.
        """
        hidden = self._model.model.embed_tokens(tokens)
        cos, sin = (angles[positions] for angles in self._angles(end, hidden))
        for index, layer in enumerate(self._layers):
            mixed = layer.attend(hidden, cos, sin, held, index, text, segments)
            if index == len(self._layers) - 1:  # of what is not wanted, keys and values were all that is needed
                hidden, mixed = hidden[wanted], mixed[wanted]
                if not wanted.shape[0]:
                    return hidden
            hidden = layer.feed(hidden, mixed)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., V] of hidden states [..., H] before the last norm."""
        flat = self._norm(hidden).flatten(0, -2)
        return self._head(flat).unflatten(0, hidden.shape[:-1])

    def _angles(self, end: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [P, 1, R] of at least `end` positions."""
        if self._turns is None or len(self._turns[0]) < end:
            positions = torch.arange(-(-end // ROOM) * ROOM, device=like.device)
            cos, sin = self._model.model.rotary_emb(like, positions[None])
            self._turns = cos[0, :, None], sin[0, :, None]
        return self._turns


class _Layer:
    """One layer: attention over the held text, then its MLP or experts."""

    def __init__(self, layer) -> None:
        attention, self._mlp = layer.self_attn, layer.mlp
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        self._size = attention.head_dim
        queries, keys, values = (projection.out_features // self._size for projection in projections)
        self._heads, self._turning = [queries + keys, values], [queries, keys]
        self._qkv, self._out = Product(*projections), Product(attention.o_proj)
        self._before, self._after = _Norm(layer.input_layernorm), _Norm(layer.post_attention_layernorm)
        normed = hasattr(attention, "q_norm")
        self._each = _Norm(attention.q_norm, _joined_norms(attention, self._turning)) if normed else None
        self._dense = hasattr(self._mlp, "gate_proj")
        if self._dense:
            self._gate_up, self._down = Product(self._mlp.gate_proj, self._mlp.up_proj), Product(self._mlp.down_proj)

    def attend(
        self,
        hidden: Tensor,
        cos: Tensor,
        sin: Tensor,
        held: KeyValues,
        index: int,
        text: Segment,
        segments: list[Segment],
    ) -> Tensor:
        joined = self._qkv(self._before(hidden)).view(hidden.shape[0], -1, self._size)
        turning, value = joined.split(self._heads, 1)
        if self._each is not None:
            turning = self._each(turning)
        query, key = _rotated(turning, cos, sin).transpose(0, 1).split(self._turning)
        return _mix(query, key, value.transpose(0, 1), held, index, text, segments)

    def feed(self, hidden: Tensor, mixed: Tensor) -> Tensor:
        """`hidden` with what attention `mixed` for it, and what the MLP, or the experts, make of that."""
        hidden = hidden + self._out(mixed)
        normed = self._after(hidden)
        if not self._dense:
            return hidden + self._mlp(normed)
        gate, up = self._gate_up(normed).chunk(2, -1)
        return hidden + self._down(self._mlp.act_fn(gate) * up)


class _Norm:
    """An RMS norm in few operations; in half precision it multiplies by the weight before rounding, stock ones after.

    `weight` is the norm's own, or [H, D] of several in one.
    """

    def __init__(self, norm, weight: Tensor | None = None) -> None:
        self._weight, self._epsilon = norm.weight.data if weight is None else weight, norm.variance_epsilon
        self._shape, size = norm.weight.shape, norm.weight.numel()
        self._on_cpu = self._weight.device.type == "cpu" and self._weight.dtype in (torch.float32, torch.float64)
        if self._on_cpu:
            self._least = self._weight.new_tensor(math.sqrt(size * self._epsilon))
            self._scale = self._weight * math.sqrt(size)

    def __call__(self, x: Tensor) -> Tensor:
        if self._on_cpu:  # torch has no RMS norm of one operation here, but a vector's length
            return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).hypot(self._least) * self._scale
        if self._weight.dim() == 1:
            return F.rms_norm(x, self._shape, self._weight, self._epsilon)
        return F.rms_norm(x, self._shape, eps=self._epsilon) * self._weight


def _joined_norms(attention, heads: list[int]) -> Tensor:
    """The weights of the norms of queries and keys, [H + K, D]."""
    norms = (attention.q_norm, attention.k_norm)
    return torch.cat([norm.weight.expand(count, -1) for norm, count in zip(norms, heads, strict=False)])


def in_one_row(rows: list[tuple[int, int, Tensor | None]], device: torch.device) -> list[Segment]:
    """Nodes of several shapes (how many, their length, what a node sees of itself) in one row under one mask."""
    lengths = [length for count, length, _ in rows for _ in range(count)]
    if len(lengths) < 2:
        return [Segment(*row) for row in rows]
    total = sum(lengths)
    visible = torch.zeros(total, total, dtype=torch.bool, device=device)
    first = 0
    for count, length, own in rows:
        for _ in range(count):
            part = slice(first, first + length)
            visible[part, part] = True if own is None else own
            first = part.stop
    return [Segment(1, total, visible)]


def _mix(
    query: Tensor, key: Tensor, value: Tensor, held: KeyValues, index: int, text: Segment, segments: list[Segment]
) -> Tensor:
    """What attention makes of queries [H, T, D] and keys and values [K, T, D]: [T, H * D]."""
    alone = len(segments) == 1 and _sees_all_before(segments[0], query)
    written = text.tokens + (segments[0].tokens if alone else 0)
    held.write(index, key[:, :written], value[:, :written])
    mixed, first = [], 0
    for segment in ([text] if text.tokens else []) + segments:
        part = slice(first, first + segment.tokens)
        if _sees_all_before(segment, query) and part.stop <= written:
            k, v = held.layer(index, held.length + part.stop)
            grouped = query[:, part].reshape(1, len(k), -1, k.shape[-1])  # without a mask the heads of a group are rows
            found = F.scaled_dot_product_attention(grouped, k[None], v[None]).reshape(1, *query[:, part].shape)
        else:
            prefix = held.layer(index, held.length if segment is text else held.length + text.tokens)
            q, k, v = (segment.fold(x[:, part]) for x in (query, key, value))
            found = shared_prefix_attention(q, k, v, *prefix, segment.visible)
        mixed.append(segment.unfold(found))
        first = part.stop
    return torch.cat(mixed) if len(mixed) > 1 else mixed[0]


def _sees_all_before(segment: Segment, query: Tensor) -> bool:
    """One row without a mask: torch's attention does it at once. In half precision its rounding is not the nodes'."""
    return segment.rows == 1 and segment.visible is None and query.dtype in (torch.float32, torch.float64)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of heads x [T, H, D]; cos and sin [T, 1, R] turn the first R of each."""
    size = cos.shape[-1]
    turning = x[..., :size] if size < x.shape[-1] else x
    one, other = turning.chunk(2, -1)
    turned = turning * cos + torch.cat([-other, one], -1) * sin
    return torch.cat([turned, x[..., size:]], -1) if size < x.shape[-1] else turned


def shared_prefix_attention(
    query: Tensor, key: Tensor, value: Tensor, prefix_key: Tensor, prefix_value: Tensor, visible: Tensor | None
) -> Tensor:
    """Attention of N nodes over one shared prefix and their own positions: one softmax over both score parts.

    query [N, H, S, D]; key, value [N, K, S, D]; prefix_key, prefix_value [K, P, D], never copied per node; visible
    [S, S] bool, True where a query may see a node's own key, or None. Returns [N, H, S, D].
    """
    n, h, s, d = query.shape
    k, p, _ = prefix_key.shape
    g = h // k
    grouped = query.reshape(n, k, g * s, d) * d**-0.5
    own = (grouped @ key.transpose(-1, -2)).view(n, k, g, s, s)
    if visible is not None:
        own = own.masked_fill(~visible, -torch.inf)
    shared = _nodes_last(grouped) @ prefix_key.transpose(-1, -2)
    shared = shared.view(k, n, g, s, p).transpose(0, 1)
    weights = torch.cat([shared, own], -1).softmax(-1, dtype=torch.promote_types(query.dtype, torch.float32))
    shared, own = weights.to(query.dtype).split([p, s], -1)
    from_own = own.reshape(n, k, g * s, s) @ value
    from_prefix = _nodes_last(shared.reshape(n, k, g * s, p)) @ prefix_value
    return (from_own + from_prefix.view(k, n, g * s, d).transpose(0, 1)).view(n, h, s, d)


def _nodes_last(x: Tensor) -> Tensor:
    """[N, K, R, C] to [K, N * R, C]: all nodes' rows in one matrix for each key-value head."""
    n, k, r, c = x.shape
    return x.transpose(0, 1).reshape(k, n * r, c)
