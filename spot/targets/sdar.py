"""SDAR (JetLM/SDAR-*): Qwen3 layers under a block-causal mask. Names in the checkpoint equal Qwen3's."""

from typing import Any

from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from spot.targets.block_causal import BlockCausal
from spot.targets.checkpoint import Part, Parts, expect
from spot.targets.protocol import TargetConfig

MODEL_TYPE = "sdar"
MASK_ID = 151669  # the hub's config.json does not name it
BLOCK_CAUSAL = True


def build(published: dict[str, Any]) -> PreTrainedModel:
    """The stock model of a config.json. Raises KeyError for a key that is missing, ValueError for an unknown value."""
    return Qwen3ForCausalLM(qwen3_config(published))


def parts(model: PreTrainedModel) -> Parts:
    return {name: (Part(name),) for name in model.state_dict()}


def target(model: PreTrainedModel, config: TargetConfig) -> BlockCausal:
    return BlockCausal(model, config)


def qwen3_config(published: dict[str, Any]) -> Qwen3Config:
    """Qwen3's configuration from SDAR's config.json."""
    expect(published, rope_scaling=None, use_sliding_window=False, hidden_act="silu")
    names = (
        "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
        "max_position_embeddings rms_norm_eps tie_word_embeddings attention_bias hidden_act"
    )
    rope = {"rope_type": "default", "rope_theta": float(published["rope_theta"])}
    return Qwen3Config(**{name: published[name] for name in names.split()}, rope_parameters=rope)
