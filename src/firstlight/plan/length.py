"""The longest request that vLLM takes from a model's config, and the refusal of a longer one. Pure.

Source: vllm/config/model.py `_get_and_verify_max_len`, transformers_utils/model_arch_config_convertor.py (0.25, as from 0.14 on).
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from firstlight.core.checkpoint import Checkpoint
from firstlight.core.findings import Finding, Severity
from firstlight.plan.numbers import fraction, number
from firstlight.plan.wish import Wish

KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
UNSCALED = frozenset({"su", "longrope", "llama3", "default"})
# Flags that change what the config says: then nothing is known before the engine has read them.
OVERRIDES = ("--hf-overrides", "--hf_overrides", "--rope-scaling", "--rope_scaling")
ALLOWED = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"


def derived_length(config: Mapping[str, Any]) -> int | None:
    """Tokens; None where no key of the config says a length (vLLM then takes any)."""
    lengths = [number(config, key) for key in KEYS if number(config, key)]
    length = number(config, "model_max_length") or min(lengths, default=0)
    if not length:
        return None
    if "gemma3" in str(config.get("model_type")):
        return length
    factor = 1.0
    for parameters in _rope(config):
        kind = str(parameters.get("rope_type") or parameters.get("type") or "default")
        if kind in UNSCALED:
            continue
        factor = fraction(parameters, "factor") or factor
        if kind == "yarn":
            length = number(parameters, "original_max_position_embeddings") or length
    return int(length * factor)


def _rope(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The RoPE parameters, of each kind of layer where there are several."""
    found = config.get("rope_parameters") or config.get("rope_scaling")
    if not isinstance(found, dict):
        return []
    nested: list[Mapping[str, Any]] = [v for v in found.values() if isinstance(v, dict)]
    return nested or [found]


def as_vllm_reads(checkpoint: Checkpoint, wish: Wish) -> Checkpoint:
    """The checkpoint with the length that vLLM derives, where it differs from the config's own number."""
    length = derived_length(checkpoint.config)
    if length is None or length == checkpoint.max_position_embeddings or _overridden(wish):
        return checkpoint
    return msgspec.structs.replace(checkpoint, max_position_embeddings=length)


def too_long(checkpoint: Checkpoint, wish: Wish) -> Finding | None:
    """The engine's own refusal of the context that was asked, before anything is started."""
    asked, length = wish.max_model_len, derived_length(checkpoint.config)
    if asked is None or length is None or asked <= length or _overridden(wish):
        return None
    if (wish.user_env | wish.env).get(ALLOWED, "0") not in ("", "0"):
        return None
    return Finding(
        code="max-model-len-too-large",
        severity=Severity.BLOCKER,
        message=f"{asked:,} tokens a request were asked for, and the model's config allows {length:,}",
        evidence=[f"{key}: {number(checkpoint.config, key):,}" for key in KEYS if number(checkpoint.config, key)],
        hint=f"--max-model-len {length}, or --env {ALLOWED}=1 where the model is known to take more",
    )


def _overridden(wish: Wish) -> bool:
    return any(word.partition("=")[0] in OVERRIDES for word in (*wish.extra_args, *wish.flags))
