"""The cos/sin tables of rotary embeddings: resident like weights, once per kind of layer, and not split by tensor parallelism.

Source: vllm/model_executor/layers/rotary_embedding (0.32): `get_rope` and each class's `_compute_cos_sin_cache`; gemma3.py and gemma4.py
for models whose sliding and full layers rotate differently. Linear scaling multiplies the table's rows (Gemma-3: eight times).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from firstlight.plan.numbers import fraction, number

MROPE_ROWS = 4  # multimodal positions may run ahead of the token count
WITHOUT = frozenset({"nemotron_h", "jamba"})  # attention without positions


def rope_bytes(config: Mapping[str, Any], element_bytes: int = 2) -> int:
    """All tables of one rank, in the model's dtype. 0 where the model has no positions or does not say its sizes."""
    if str(config.get("model_type")) in WITHOUT or config.get("mla_use_nope"):
        return 0
    return sum(rows * width for rows, width in set(_tables(config))) * element_bytes


def _tables(config: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """(rows, width) of each table; equal ones are shared."""
    for kind, parameters in _kinds(config):
        yield _rows(config, parameters), _width(config, kind, parameters)


def _kinds(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(kind of layer, its RoPE parameters): by layer type where the config has them so; Gemma-3's older form has two without saying."""
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    found = found if isinstance(found, dict) else {}
    by_type = [(kind, value) for kind, value in found.items() if isinstance(value, dict)]
    if by_type:
        yield from by_type
        return
    yield "full_attention", found
    if str(config.get("model_type", "")).startswith("gemma3"):
        yield "sliding_attention", {}


def _rows(config: Mapping[str, Any], parameters: Mapping[str, Any]) -> int:
    """Positions of the table."""
    positions = number(config, "max_position_embeddings")
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    original = number(parameters, "original_max_position_embeddings")
    if kind == "linear":
        positions = int(positions * (fraction(parameters, "factor") or 1))
    elif "yarn" in str(kind) and original:
        positions = int(original * (fraction(parameters, "factor") or 1))
    elif kind == "longrope" and original:
        positions += original
    return positions * (MROPE_ROWS if parameters.get("mrope_section") else 1)


def _width(config: Mapping[str, Any], kind: str, parameters: Mapping[str, Any]) -> int:
    """Numbers of one position: the rotated part of a head."""
    if latent := number(config, "qk_rope_head_dim"):
        return latent
    heads = number(config, "num_attention_heads")
    whole = number(config, "head_dim") or (number(config, "hidden_size") // heads if heads else 0)
    if kind == "full_attention":
        whole = number(config, "global_head_dim") or whole
    if parameters.get("rope_type") == "proportional":
        return whole  # the part that does not rotate is in the table too
    rotated = number(parameters, "rope_dim") or number(config, "rotary_dim")
    share = fraction(config, "partial_rotary_factor") or fraction(parameters, "partial_rotary_factor") or 1.0
    return rotated or int(whole * share)
