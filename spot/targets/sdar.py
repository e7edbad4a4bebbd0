"""SDAR: Qwen3 layers under a block-causal mask, loaded from the authors' checkpoints without their code.

The projections, norms, rotary embedding and MLP are transformers' Qwen3 modules; the attention is ours, because several
nodes share one cached prefix (design.md §3). Names in the checkpoint equal Qwen3's.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3RotaryEmbedding, apply_rotary_pos_emb

from spot.targets.protocol import TargetConfig

PUBLISHED_MASK_ID = 151669  # the hub's config.json does not name it


class Sdar(nn.Module):
    """A target: `prefill`, then `self(nodes)` and `advance(block)` until the text is done. One call is one pass.

    Holds the keys and values of all stored blocks. A finished block is *pending* until the next call stores it on its
    way, so that storing costs no pass of its own. Without the prefix cache, all text stays pending.
    """

    def __init__(self, model: Qwen3ForCausalLM, config: TargetConfig) -> None:
        super().__init__()
        self.model = model.eval().requires_grad_(False)
        self.config = config
        self._pending = torch.empty(0, dtype=torch.long)
        self._clear("batch", True)

    @property
    def device(self) -> torch.device:
        return self.model.device

    def prefill(self, prompt: list[int], layout: str = "batch", cache: bool = True) -> int:
        """Forget the last text and store the prompt's whole blocks. Returns the passes that took: 0 or 1."""
        self._clear(layout, cache)
        whole = len(prompt) // self.config.block_length * self.config.block_length
        self.advance(torch.tensor(prompt[:whole], dtype=torch.long, device=self.device))
        if whole == 0 or not cache:
            return 0
        self(torch.empty(0, self.config.block_length, dtype=torch.long, device=self.device))
        return 1

    def advance(self, block: Tensor) -> None:
        """Append a finished block [B] to the text; the next call stores it."""
        self._pending = torch.cat([self._pending, block])

    @torch.inference_mode()
    def forward(self, nodes: Tensor, edges: Tensor | None = None) -> Tensor:
        """Logits [N + E, B, V] of nodes [N, B] and edges [E, 2B], each seeing the text and itself."""
        body, size = self.model.model, self.config.block_length
        pending = len(self._pending)
        rows = [nodes, *([] if edges is None else [edges])]
        base = self._stored + pending
        own = [base + torch.arange(r.shape[1], device=self.device).repeat(len(r)) for r in rows]
        positions = torch.cat([torch.arange(self._stored, base, device=self.device), *own])
        segments = self._segments(rows, positions[pending:] // size)
        hidden = body.embed_tokens(torch.cat([self._pending, *(r.flatten() for r in rows)])[None])
        blocks = positions[:pending] // size
        rotary = body.rotary_emb(hidden, positions[None])
        text = Segment(1, pending, blocks[:, None] >= blocks[None, :])
        for index, layer in enumerate(body.layers):
            residual, normed = hidden, layer.input_layernorm(hidden)
            hidden = residual + self._attend(index, layer.self_attn, normed, rotary, text, segments)
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        if self._cached:
            self._stored += pending
            self._pending = self._pending[:0]
        opened = [part.view(*r.shape, hidden.shape[-1])[:, -size:] for r, part in _split(hidden[0, pending:], rows)]
        return self.model.lm_head(body.norm(torch.cat(opened)))

    def _segments(self, rows: list[Tensor], blocks: Tensor) -> list["Segment"]:
        """How the nodes' tokens are attended: alike rows together, or all in one row under one mask."""
        if self._layout == "batch":
            parts = [(r, block[: r.shape[1]]) for r, block in _split(blocks, rows) if len(r)]
            return [Segment(len(r), r.shape[1], block[:, None] >= block[None, :]) for r, block in parts]
        first, owner = 0, []
        for r in rows:
            owner.append(torch.arange(first, first + len(r), device=self.device).repeat_interleave(r.shape[1]))
            first += len(r)
        node = torch.cat(owner)
        visible = (node[:, None] == node[None, :]) & (blocks[:, None] >= blocks[None, :])
        return [Segment(1, len(node), visible)] if len(node) else []

    def _attend(self, index: int, attention: Qwen3Attention, hidden, rotary, text, segments) -> Tensor:
        heads = (1, hidden.shape[1], -1, attention.head_dim)
        query = attention.q_norm(attention.q_proj(hidden).view(heads)).transpose(1, 2)
        key = attention.k_norm(attention.k_proj(hidden).view(heads)).transpose(1, 2)
        value = attention.v_proj(hidden).view(heads).transpose(1, 2)
        query, key = apply_rotary_pos_emb(query, key, *rotary)
        prefix = self._cache[index]
        mixed, first = [], 0
        for segment in ([text] if text.length else []) + segments:
            part = slice(first, first + segment.rows * segment.length)
            q, k, v = (segment.fold(x[0, :, part]) for x in (query, key, value))
            mixed.append(segment.unfold(shared_prefix_attention(q, k, v, *prefix, segment.visible)))
            if segment is text:  # what follows sees the text
                prefix = (torch.cat([prefix[0], k[0]], 1), torch.cat([prefix[1], v[0]], 1))
                if self._cached:
                    self._cache[index] = prefix
            first = part.stop
        return attention.o_proj(torch.cat(mixed)[None])

    def _clear(self, layout: str, cache: bool) -> None:
        config = self.model.config
        shape = (config.num_key_value_heads, 0, config.head_dim)
        empty = torch.empty(shape, device=self.device, dtype=self.model.dtype)
        self._cache = [(empty, empty)] * config.num_hidden_layers
        self._stored, self._layout, self._cached = 0, layout, cache
        self._pending = torch.empty(0, dtype=torch.long, device=self.device)


@dataclass(frozen=True)
class Segment:
    """`rows` rows of `length` tokens in a pass, all seeing alike: `visible` [length, length] bool within a row."""

    rows: int
    length: int
    visible: Tensor

    def fold(self, x: Tensor) -> Tensor:
        """[H, rows * length, D] to [rows, H, length, D]."""
        return x.unflatten(1, (self.rows, self.length)).transpose(0, 1)

    def unfold(self, x: Tensor) -> Tensor:
        """[rows, H, length, D] to [rows * length, H * D]."""
        return x.transpose(1, 2).reshape(self.rows * self.length, -1)


def _split(flat: Tensor, rows: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """`flat` [sum of tokens, ...] cut into the parts of each of `rows`."""
    return list(zip(rows, flat.split([r.numel() for r in rows]), strict=True))


def shared_prefix_attention(query, key, value, prefix_key, prefix_value, visible) -> Tensor:
    """Attention of N nodes over one shared prefix and their own positions: one softmax over both score parts.

    query [N, H, S, D]; key, value [N, K, S, D]; prefix_key, prefix_value [K, P, D], never copied per node; visible
    [S, S] bool, True where a query may see a node's own key. Returns [N, H, S, D].
    """
    n, h, s, d = query.shape
    k, p, _ = prefix_key.shape
    g = h // k
    grouped = query.reshape(n, k, g * s, d) * d**-0.5
    own = (grouped @ key.transpose(-1, -2)).view(n, k, g, s, s).masked_fill(~visible, -torch.inf)
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


def load(folder: Path, block_length: int, dtype: torch.dtype, device: str) -> Sdar:
    """An SDAR checkpoint folder as a target.

    Raises ValueError naming a tensor that is missing or not expected, or a key of config.json.
    """
    published = json.loads((folder / "config.json").read_text())
    try:
        config, stop_ids = qwen3_config(published), published["eos_token_id"]
    except KeyError as missing:
        raise ValueError(f"{folder / 'config.json'}: no {missing.args[0]}") from None
    mask_id = published.get("mask_token_id")
    if mask_id is None:
        mask_id = PUBLISHED_MASK_ID
    if mask_id >= config.vocab_size:
        raise ValueError(f"{folder / 'config.json'}: mask_token_id {mask_id} of a vocab_size {config.vocab_size}")
    with torch.device("meta"):
        model = Qwen3ForCausalLM(config)
    weights: dict[str, Tensor] = {}
    for shard in sorted(folder.glob("model*.safetensors")):
        weights |= {name: value.to(dtype) for name, value in load_file(shard, device).items()}
    if config.tie_word_embeddings:
        weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"])
    _check_names(folder, set(weights), set(model.state_dict()))
    model.load_state_dict(weights, assign=True)
    model.model.rotary_emb = Qwen3RotaryEmbedding(config).to(device)  # its buffers are not in the checkpoint
    return Sdar(
        model,
        TargetConfig(
            block_length=block_length,
            mask_id=mask_id,
            stop_ids=frozenset([stop_ids] if isinstance(stop_ids, int) else stop_ids),
        ),
    )


def qwen3_config(published: dict) -> Qwen3Config:
    """Qwen3's configuration from SDAR's config.json."""
    names = (
        "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
        "max_position_embeddings rms_norm_eps tie_word_embeddings attention_bias hidden_act"
    )
    rope = {"rope_type": "default", "rope_theta": float(published["rope_theta"])}
    return Qwen3Config(**{name: published[name] for name in names.split()}, rope_parameters=rope)


def _check_names(folder: Path, found: set[str], wanted: set[str]) -> None:
    for problem, names in (("missing", wanted - found), ("unexpected", found - wanted)):
        if names:
            raise ValueError(f"{folder}: {problem} tensor {min(names)!r} ({len(names)} in all)")
