"""LLaDA (GSAI-ML/LLaDA-8B-*): Llama layers without a mask, under names of the authors' own."""

from typing import Any

from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from spot.targets.bidirectional import Bidirectional
from spot.targets.checkpoint import Part, Parts, expect
from spot.targets.protocol import TargetConfig

MODEL_TYPE = "llada"
MASK_ID = 126336
BLOCK_CAUSAL = False
_OUTER = {
    "wte.weight": "model.embed_tokens.weight",
    "ln_f.weight": "model.norm.weight",
    "ff_out.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ff_norm": "post_attention_layernorm",
    "ff_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "ff_out": "mlp.down_proj",
}


def build(published: dict[str, Any]) -> PreTrainedModel:
    """The stock model of a config.json. Raises KeyError for a key that is missing, ValueError for an unknown value."""
    expect(published, block_type="llama", layer_norm_type="rms", activation_type="silu", rope=True, alibi=False)
    expect(published, include_bias=False, include_qkv_bias=False, bias_for_layer_norm=False, attention_layer_norm=False)
    expect(published, input_emb_norm=False, scale_logits=False, weight_tying=False, rope_scaling=None)
    heads = published["n_heads"]
    config = LlamaConfig(
        vocab_size=published.get("embedding_size") or published["vocab_size"],
        hidden_size=published["d_model"],
        intermediate_size=published["mlp_hidden_size"],
        num_hidden_layers=published["n_layers"],
        num_attention_heads=heads,
        num_key_value_heads=published.get("n_kv_heads") or heads,
        max_position_embeddings=published["max_sequence_length"],
        rms_norm_eps=published["rms_norm_eps"],
        rope_parameters={"rope_type": "default", "rope_theta": float(published["rope_theta"])},
        tie_word_embeddings=False,
        attention_bias=False,
        hidden_act="silu",
    )
    return LlamaForCausalLM(config)


def parts(model: PreTrainedModel) -> Parts:
    names = {f"model.transformer.{theirs}": ours for theirs, ours in _OUTER.items()}
    for layer in range(model.config.num_hidden_layers):
        for theirs, ours in _LAYER.items():
            names[f"model.transformer.blocks.{layer}.{theirs}.weight"] = f"model.layers.{layer}.{ours}.weight"
    return {theirs: (Part(ours),) for theirs, ours in names.items()}


def target(model: PreTrainedModel, config: TargetConfig) -> Bidirectional:
    return Bidirectional(model, config)
