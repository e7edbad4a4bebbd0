"""Stock transformers layers over one packed row of tokens, with an attention of our own (design.md §3).

The projections, norms, rotary embedding and MLP are transformers' modules. The attention is ours, because several nodes
share one cached prefix, which is never copied.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.glm4_moe.modeling_glm4_moe import apply_rotary_pos_emb  # turns what there is to turn of a head

Cache = list[tuple[Tensor, Tensor]]
"""Keys after rotary embedding, and values, [K, P, D] each, a layer."""


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


def run_layers(
    model: PreTrainedModel, tokens: Tensor, positions: Tensor, prefix: Cache, text: Segment, segments: list[Segment]
) -> tuple[Tensor, Cache]:
    """Hidden states [T, H] before the last norm, and `prefix` with the keys and values of `text` after it.

    tokens and positions [T] int64: those of `text`, one row that may be empty, then those of `segments`. The text sees
    the prefix, the segments see both, and nothing of one another.
    """
    body = model.model
    hidden = body.embed_tokens(tokens[None])
    rotary = body.rotary_emb(hidden, positions[None])
    stored: Cache = []
    for before, layer in zip(prefix, body.layers, strict=True):
        mixed, after = _attend(layer.self_attn, layer.input_layernorm(hidden), rotary, before, text, segments)
        stored.append(after)
        hidden = hidden + mixed
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    return hidden[0], stored


def logits(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """[..., V] of hidden states [..., H] before the last norm."""
    return model.lm_head(model.model.norm(hidden))


def empty_cache(model: PreTrainedModel) -> Cache:
    """No positions yet."""
    attention = model.model.layers[0].self_attn
    shape = (model.config.num_key_value_heads, 0, attention.head_dim)
    empty = torch.empty(shape, device=model.device, dtype=model.dtype)
    return [(empty, empty)] * model.config.num_hidden_layers


def in_one_row(rows: list[tuple[int, int, Tensor | None]], device: torch.device) -> list[Segment]:
    """Nodes of several shapes (how many, their length, what a node sees of itself) in one row under one mask."""
    lengths = [length for count, length, _ in rows for _ in range(count)]
    if not lengths:
        return []
    total = sum(lengths)
    visible = torch.zeros(total, total, dtype=torch.bool, device=device)
    first = 0
    for count, length, own in rows:
        for _ in range(count):
            part = slice(first, first + length)
            visible[part, part] = True if own is None else own
            first = part.stop
    return [Segment(1, total, visible)]


def _attend(attention, hidden, rotary, prefix, text, segments) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    heads = (1, hidden.shape[1], -1, attention.head_dim)
    query, key = attention.q_proj(hidden).view(heads), attention.k_proj(hidden).view(heads)
    if hasattr(attention, "q_norm"):
        query, key = attention.q_norm(query), attention.k_norm(key)
    value = attention.v_proj(hidden).view(heads).transpose(1, 2)
    query, key = apply_rotary_pos_emb(query.transpose(1, 2), key.transpose(1, 2), *rotary)
    mixed, first = [], 0
    for segment in ([text] if text.length else []) + segments:
        part = slice(first, first + segment.tokens)
        q, k, v = (segment.fold(x[0, :, part]) for x in (query, key, value))
        before_key, before_value = prefix
        mixed.append(segment.unfold(shared_prefix_attention(q, k, v, before_key, before_value, segment.visible)))
        if segment is text:  # what follows sees the text
            prefix = (torch.cat([before_key, k[0]], 1), torch.cat([before_value, v[0]], 1))
        first = part.stop
    return attention.o_proj(torch.cat(mixed)[None]), prefix


def shared_prefix_attention(query, key, value, prefix_key, prefix_value, visible) -> Tensor:
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
