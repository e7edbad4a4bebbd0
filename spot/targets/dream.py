"""Dream (Dream-org/Dream-v0-*): Qwen2 layers without a mask; logits shifted by one. Names equal Qwen2's."""

from typing import Any

from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from spot.targets.bidirectional import Bidirectional
from spot.targets.checkpoint import Part, Parts, expect
from spot.targets.protocol import TargetConfig

MODEL_TYPE = "Dream"
MASK_ID = 151666
BLOCK_CAUSAL = False


def build(published: dict[str, Any]) -> PreTrainedModel:
    """The stock model of a config.json. Raises KeyError for a key that is missing, ValueError for an unknown value."""
    expect(published, rope_scaling=None, use_sliding_window=False, use_mrope=False, hidden_act="silu")
    names = (
        "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads "
        "max_position_embeddings rms_norm_eps tie_word_embeddings hidden_act"
    )
    rope = {"rope_type": "default", "rope_theta": float(published["rope_theta"])}
    return Qwen2ForCausalLM(Qwen2Config(**{name: published[name] for name in names.split()}, rope_parameters=rope))


def parts(model: PreTrainedModel) -> Parts:
    return {name: (Part(name),) for name in model.state_dict()}


def target(model: PreTrainedModel, config: TargetConfig) -> Bidirectional:
    return Bidirectional(model, config, shifted=True)
