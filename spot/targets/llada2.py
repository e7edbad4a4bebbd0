"""LLaDA2 (inclusionAI/LLaDA2.0-mini): GLM-4-MoE layers under a block-causal mask.

The checkpoint has query, key and value in one tensor and every expert by itself; the stock layers have three tensors,
and the experts stacked.
"""

from typing import Any

import torch
from transformers import Glm4MoeConfig, Glm4MoeForCausalLM, PreTrainedModel

from spot.targets.block_causal import BlockCausal
from spot.targets.checkpoint import Part, Parts, expect
from spot.targets.protocol import TargetConfig

MODEL_TYPE = "llada2_moe"
MASK_ID = 156895
BLOCK_CAUSAL = True
_OUTER = {
    "model.word_embeddings.weight": "model.embed_tokens.weight",
    "model.norm.weight": "model.norm.weight",
    "lm_head.weight": "lm_head.weight",
}
_LAYER = {
    "input_layernorm.weight": "input_layernorm.weight",
    "post_attention_layernorm.weight": "post_attention_layernorm.weight",
    "attention.dense.weight": "self_attn.o_proj.weight",
    "attention.query_layernorm.weight": "self_attn.q_norm.weight",
    "attention.key_layernorm.weight": "self_attn.k_norm.weight",
}
_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def build(published: dict[str, Any]) -> PreTrainedModel:
    """The stock model of a config.json. Raises KeyError for a key that is missing, ValueError for an unknown value."""
    expect(published, rope_scaling=None, use_bias=False, use_qkv_bias=False, use_qk_norm=True, use_rmsnorm=True)
    expect(published, score_function="sigmoid", router_dtype="fp32", moe_router_enable_expert_bias=True)
    expect(published, norm_head=False, use_sliding_window=False, using_split_qkv_in_self_attention=False)
    expect(published, hidden_act="silu")
    names = (
        "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
        "max_position_embeddings rms_norm_eps tie_word_embeddings hidden_act moe_intermediate_size num_experts_per_tok "
        "n_group topk_group routed_scaling_factor norm_topk_prob first_k_dense_replace"
    )
    rope = {"rope_type": "default", "rope_theta": float(published["rope_theta"])}
    config = Glm4MoeConfig(
        **{name: published[name] for name in names.split()},
        n_routed_experts=published["num_experts"],
        n_shared_experts=published["num_shared_experts"],
        rope_parameters=rope | {"partial_rotary_factor": published["partial_rotary_factor"]},
        use_qk_norm=True,
        attention_bias=False,
        num_mtp_layers=0,
    )
    return Glm4MoeForCausalLM(config)


def parts(model: PreTrainedModel) -> Parts:
    found: dict[str, tuple[Part, ...]] = {theirs: (Part(ours),) for theirs, ours in _OUTER.items()}
    config = model.config
    for layer in range(config.num_hidden_layers):
        here = f"model.layers.{layer}"
        found |= {f"{here}.{theirs}": (Part(f"{here}.{ours}"),) for theirs, ours in _LAYER.items()}
        query, key = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        found[f"{here}.attention.query_key_value.weight"] = (
            Part(f"{here}.self_attn.q_proj.weight", (0, query)),
            Part(f"{here}.self_attn.k_proj.weight", (query, query + key)),
            Part(f"{here}.self_attn.v_proj.weight", (query + key, None)),
        )
        found |= _moe(f"{here}.mlp", config) if layer >= config.first_k_dense_replace else _mlp(f"{here}.mlp")
    return found


def target(model: PreTrainedModel, config: TargetConfig) -> BlockCausal:
    if model.dtype == torch.float64:
        model.config._experts_implementation = "eager"  # the grouped matrix product knows no float64
    return BlockCausal(model, config)


def _mlp(here: str) -> dict[str, tuple[Part, ...]]:
    return {f"{here}.{name}.weight": (Part(f"{here}.{name}.weight"),) for name in _PROJECTIONS}


def _moe(here: str, config: Glm4MoeConfig) -> dict[str, tuple[Part, ...]]:
    found: dict[str, tuple[Part, ...]] = {
        **_mlp(f"{here}.shared_experts"),
        f"{here}.gate.weight": (Part(f"{here}.gate.weight"),),
        f"{here}.gate.expert_bias": (Part(f"{here}.gate.e_score_correction_bias"),),
    }
    size, both, down = config.moe_intermediate_size, f"{here}.experts.gate_up_proj", f"{here}.experts.down_proj"
    for expert in range(config.n_routed_experts):
        theirs = f"{here}.experts.{expert}"
        found[f"{theirs}.gate_proj.weight"] = (Part(both, at=(expert, slice(size))),)
        found[f"{theirs}.up_proj.weight"] = (Part(both, at=(expert, slice(size, None))),)
        found[f"{theirs}.down_proj.weight"] = (Part(down, at=(expert,)),)
    return found
