"""The state that a linear-attention or Mamba layer keeps for one request, in bytes (vLLM's MambaStateShapeCalculator, TP 1)."""

from collections.abc import Mapping
from typing import Any

from firstlight.inspect.config import integer

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_MODEL_BYTES = 2


def state_bytes(kind: str, config: Mapping[str, Any]) -> int | None:
    """Convolution state in the model's dtype plus recurrent state in its own; None when a size is missing."""
    if kind == "mamba":
        return _mamba2(config) or _mamba1(config)
    return _kimi_delta(config) or _gated_delta(config) or _short_convolution(config)


def _recurrent_bytes(config: Mapping[str, Any]) -> int:
    named = config.get("mamba_ssm_cache_dtype") or config.get("mamba_ssm_dtype")
    return _BYTES.get(str(named).removeprefix("torch."), _MODEL_BYTES)


def _mamba2(config: Mapping[str, Any]) -> int | None:
    heads, width = integer(config, "mamba_num_heads", "mamba_n_heads"), integer(config, "mamba_head_dim", "mamba_d_head")
    states, groups = integer(config, "ssm_state_size", "mamba_d_state"), integer(config, "n_groups", "mamba_n_groups")
    kernel = integer(config, "conv_kernel", "mamba_d_conv")
    if not (heads and width and states and groups and kernel):
        return None
    convolution = (heads * width + 2 * groups * states) * (kernel - 1) * _MODEL_BYTES
    return convolution + heads * width * states * _recurrent_bytes(config)


def _mamba1(config: Mapping[str, Any]) -> int | None:
    hidden, expand = integer(config, "hidden_size"), integer(config, "mamba_expand", "expand")
    states, kernel = integer(config, "mamba_d_state", "state_size"), integer(config, "mamba_d_conv", "conv_kernel")
    if not (hidden and expand and states and kernel):
        return None
    inner = hidden * expand
    return inner * (kernel - 1) * _MODEL_BYTES + inner * states * _recurrent_bytes(config)


def _gated_delta(config: Mapping[str, Any]) -> int | None:
    """Qwen3-Next and later: one convolution over Q, K and V, one matrix a value head."""
    k_heads, v_heads = integer(config, "linear_num_key_heads"), integer(config, "linear_num_value_heads")
    k_width, v_width = integer(config, "linear_key_head_dim"), integer(config, "linear_value_head_dim")
    kernel = integer(config, "linear_conv_kernel_dim")
    if not (k_heads and v_heads and k_width and v_width and kernel):
        return None
    convolution = (2 * k_heads * k_width + v_heads * v_width) * (kernel - 1) * _MODEL_BYTES
    return convolution + v_heads * v_width * k_width * _recurrent_bytes(config)


def _kimi_delta(config: Mapping[str, Any]) -> int | None:
    """Kimi Delta Attention: the recurrent state is fp32 unless asked otherwise."""
    linear = config.get("linear_attn_config")
    if not isinstance(linear, dict):
        return None
    heads, width, kernel = integer(linear, "num_heads"), integer(linear, "head_dim"), integer(linear, "short_conv_kernel_size")
    if not (heads and width and kernel):
        return None
    named = str(config.get("mamba_ssm_cache_dtype") or "float32")
    return 3 * heads * width * (kernel - 1) * _MODEL_BYTES + heads * width * width * _BYTES.get(named, 4)


def _short_convolution(config: Mapping[str, Any]) -> int | None:
    hidden, kernel = integer(config, "hidden_size"), integer(config, "conv_L_cache")
    return hidden * (kernel - 1) * _MODEL_BYTES if hidden and kernel else None
