"""config.json: read safely, checked field by field, and normalised so that the language model's own keys stand at the top."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from firstlight.core.errors import FirstlightError
from firstlight.core.findings import Finding, Severity
from firstlight.core.ports import FileInfo, Source
from firstlight.inspect.field_types import checked_quantization, kind, wrong_type

CONFIG_LIMIT = 32 << 20  # the largest published one (per-tensor quantization lists) has 3 MB
NESTED = (
    "text_config",
    "llm_config",
    "language_config",
    "thinker_config",
    "language_model",
    "llm",
    "text_model",
    "transformer_layer_config",
)
_NAMED_CONFIGS = tuple(name for name in NESTED if name.endswith("_config"))
_DROPPED = frozenset(NESTED) | {"quantization_config", "compression_config"}
_LAYERS, _WIDTH = 10_000, 1 << 24
_COUNTS = {
    "num_hidden_layers": _LAYERS, "num_nextn_predict_layers": 1000, "mtp_num_hidden_layers": 1000, "num_mtp_modules": 1000,
    "first_k_dense_replace": _LAYERS, "num_kv_shared_layers": _LAYERS, "hidden_size": _WIDTH, "num_attention_heads": 1 << 16,
    "num_key_value_heads": 1 << 16, "head_dim": 1 << 16, "v_head_dim": 1 << 16, "intermediate_size": 1 << 28,
    "moe_intermediate_size": 1 << 28, "max_position_embeddings": 1 << 40, "vocab_size": 1 << 28, "num_experts_per_tok": 1 << 16,
    "num_experts": 1 << 16, "n_routed_experts": 1 << 16, "num_local_experts": 1 << 16, "n_shared_experts": 1 << 16,
    "kv_lora_rank": 1 << 16, "q_lora_rank": 1 << 16, "qk_rope_head_dim": 1 << 16, "qk_nope_head_dim": 1 << 16,
    "sliding_window": 1 << 40, "index_head_dim": 1 << 16, "index_topk": 1 << 24,
}  # fmt: skip
_LISTS = (
    "layer_types",
    "layers_block_type",
    "compress_ratios",
    "indexer_types",
    "hybrid_layer_pattern",
    "mlp_layer_types",
    "block_configs",
)
_TABLES = ("linear_attn_config", "sparse_attention_config", "vision_config", "audio_config")
# The field's usual spelling for names that some families spell their own way.
_ALIASES = {
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "hidden_size": ("n_embd", "d_model", "dim"),
    "num_attention_heads": ("n_head", "n_heads"),
    "num_key_value_heads": ("num_kv_heads", "multi_query_group_num", "n_head_kv"),
    "max_position_embeddings": ("n_positions", "seq_length", "max_sequence_length", "max_seq_len", "model_max_length"),
    "num_experts": ("n_routed_experts", "num_local_experts", "moe_num_experts"),
    "num_experts_per_tok": ("num_experts_per_token", "experts_per_token", "top_k_experts", "moe_topk", "moe_top_k"),
    "n_shared_experts": ("num_shared_experts",),
    "num_nextn_predict_layers": ("mtp_num_hidden_layers",),
    "dtype": ("torch_dtype",),
}


class Config(NamedTuple):
    """raw: the file as it stands. fields: normalised. quantization: from wherever the file keeps it, with its key path."""

    raw: dict[str, Any]
    fields: dict[str, Any]
    quantization: dict[str, Any] | None
    quantization_path: str
    findings: list[Finding]


EMPTY = Config({}, {}, None, "", [])


def read_json(source: Source, info: FileInfo, *, limit: int = CONFIG_LIMIT) -> tuple[Any, Finding | None]:
    """A JSON file's value, or None and the finding that says why not."""
    if info.size > limit:
        found = (f"expected: at most {limit:,} bytes, found: {info.size:,}",)
        return None, _bad("json-too-large", f"{info.path} is far too large for what it should be", *found)
    try:
        raw = source.read(info.path, 0, info.size)
    except FirstlightError as e:
        return None, _bad(e.code, e.message, *e.evidence)
    return parse_json(raw, info.path)


def parse_json(raw: bytes, path: str) -> tuple[Any, Finding | None]:
    if not raw.strip(b"\x00 \t\r\n"):
        return None, _bad("json-empty", f"{path} has no content", f"{len(raw)} bytes, all blank", hint="download it again")
    try:
        return msgspec.json.decode(raw), None
    except RecursionError:
        return None, _bad("json-not-json", f"{path} nests too deeply to be what it should be")
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        return _parse_leniently(raw, path, str(e))


def _parse_leniently(raw: bytes, path: str, strict_error: str) -> tuple[Any, Finding | None]:
    """`Infinity` and `NaN` are no JSON, but Python writes and reads them (Nemotron-H's time_step_limit)."""
    import json

    try:
        return _without_non_finite(json.loads(raw.decode("utf-8-sig"))), None
    except (ValueError, RecursionError):
        pointer = raw.startswith(b"version https://git-lfs")
        code, what = ("lfs-pointer", "is a Git LFS pointer, not the file") if pointer else ("json-not-json", "is not JSON")
        return None, _bad(
            code, f"{path} {what}", strict_error, f"begins with {raw[:40]!r}", hint="git lfs pull" if pointer else "download it again"
        )


def _without_non_finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_non_finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_without_non_finite(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def normalise(raw: Any, path: str = "config.json") -> Config:
    """Lifts the language model's keys, gives them the field's names, and drops (with a finding) what has the wrong type."""
    if not isinstance(raw, dict):
        return EMPTY._replace(findings=[_bad("config-wrong-type", f"{path} is not a JSON object", f"found: {kind(raw)}")])
    findings: list[Finding] = []
    quantization, where = _find_quantization(raw, findings, path)
    fields = _lift(raw)
    findings += [wrong_type(path, key, "an object", raw[key]) for key in _NAMED_CONFIGS if not isinstance(raw.get(key), dict | None)]
    for canonical, names in _ALIASES.items():
        if fields.get(canonical) is None:
            given = next((fields[n] for n in names if fields.get(n) is not None), None)
            if given is not None:
                fields[canonical] = given
    _check_types(fields, findings, path)
    _complete(fields)
    return Config(raw, fields, quantization, where, findings)


def _lift(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Outer keys first, then every nested language model's over them, outermost to innermost."""
    fields = {k: v for k, v in raw.items() if k not in _DROPPED}
    level: Any = raw
    for _ in range(4):
        level = next((level[n] for n in NESTED if isinstance(level.get(n), dict)), None)
        if level is None:
            break
        fields |= {k: v for k, v in level.items() if k not in _DROPPED and v is not None}
    if isinstance(raw.get("architectures"), list):
        fields["architectures"] = raw["architectures"]
    return fields


def _find_quantization(raw: Mapping[str, Any], findings: list[Finding], path: str) -> tuple[dict[str, Any] | None, str]:
    level: Any = raw
    where = ""
    for _ in range(5):
        for key in ("quantization_config", "compression_config"):
            value = level.get(key)
            if isinstance(value, dict):
                return checked_quantization(value, path, where + key, findings), f"{where}{key}"
            if value is not None:
                findings.append(wrong_type(path, where + key, "an object", value))
        nested = next((n for n in NESTED if isinstance(level.get(n), dict)), None)
        if nested is None:
            break
        level, where = level[nested], f"{where}{nested}."
    return None, ""


def _check_types(fields: dict[str, Any], findings: list[Finding], path: str) -> None:
    """Removes what cannot be meant, so that everything after may rely on the types."""
    for key in fields.keys() & _COUNTS.keys():
        value = fields[key]
        if value is None:
            continue
        if isinstance(value, float) and value.is_integer():
            fields[key] = value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            if not _a_number_a_layer(value):  # those are handled where they are known
                findings.append(wrong_type(path, key, "an integer", value))
                fields[key] = None
        elif not 0 <= value <= _COUNTS[key]:
            findings.append(_bad("config-absurd-value", f"{path} has an impossible {key}", f"{key}: {value}", f"limit: {_COUNTS[key]:,}"))
            fields[key] = None
    for key, expected, word in [(k, list, "a list") for k in _LISTS] + [(k, dict, "an object") for k in _TABLES]:
        value = fields.get(key)
        if value is not None and not isinstance(value, expected):
            findings.append(wrong_type(path, key, word, value))
            fields[key] = None
    architectures = fields.get("architectures")
    if architectures is not None and not (isinstance(architectures, list) and all(isinstance(a, str) for a in architectures)):
        findings.append(wrong_type(path, "architectures", "a list of strings", architectures))
        fields["architectures"] = None
    if fields.get("model_type") is not None and not isinstance(fields["model_type"], str):
        findings.append(wrong_type(path, "model_type", "a string", fields["model_type"]))
        fields["model_type"] = None


def _a_number_a_layer(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(n is None or isinstance(n, int) for n in value)


def _complete(fields: dict[str, Any]) -> None:
    """What follows from other fields: the number of layers from lists with one entry a layer, the head's width from the model's."""
    if fields.get("num_hidden_layers") is None:
        listed = next((fields[k] for k in ("layers_block_type", "layer_types", "block_configs") if isinstance(fields.get(k), list)), None)
        pattern = fields.get("hybrid_override_pattern")
        if listed is not None or isinstance(pattern, str):
            fields["num_hidden_layers"] = len(listed if listed is not None else pattern or "")
    if fields.get("head_dim") is None and isinstance(fields.get("attention_head_dim"), int):
        fields["head_dim"] = fields["attention_head_dim"]


def integer(fields: Mapping[str, Any], *keys: str) -> int | None:
    """The first of `keys` that is a whole number."""
    for key in keys:
        value = fields.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def _bad(code: str, message: str, *evidence: str, hint: str | None = None) -> Finding:
    return Finding(code=code, severity=Severity.BLOCKER, message=message, evidence=list(evidence), hint=hint)
