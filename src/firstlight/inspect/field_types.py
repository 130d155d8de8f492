"""A quantization config's own fields: what has the wrong type is said and left out, so that every reader may rely on the types."""

from collections.abc import Mapping
from typing import Any

from firstlight.core.findings import Finding, Severity

_TEXTS = ("quant_method", "quant_type", "quant_algo", "kv_cache_quant_algo", "format", "activation_scheme", "bnb_4bit_quant_type")
_NAMES = ("ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers", "llm_int8_skip_modules")
_TABLES = ("config_groups", "quantized_layers", "dynamic", "quantization")
_WORDS: dict[type, str] = {str: "a string", list: "a list", dict: "an object"}


def wrong_type(path: str, key: str, expected: str, value: Any) -> Finding:
    """`config-wrong-type`; key: where in the file, empty for the file itself."""
    shown = repr(value)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    message = f"{path} has a wrong type in {key}" if key else f"{path} is not {expected}"
    evidence = [f"expected: {expected}, found: {kind(value)} {shown}"]
    return Finding(code="config-wrong-type", severity=Severity.BLOCKER, message=message, evidence=evidence)


def kind(value: Any) -> str:
    """JSON's word for a value's type."""
    names = {dict: "object", list: "list", str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
    return names.get(type(value), type(value).__name__)


def checked_quantization(body: Mapping[str, Any], path: str, where: str, findings: list[Finding]) -> dict[str, Any]:
    """`body` without what cannot be meant. where: its key path in the file."""
    result = dict(body)
    for keys, expected in ((_TEXTS, str), (_NAMES, list), (_TABLES, dict)):
        for key in keys:
            _keep(result, key, expected, path, where, findings)
    for key in _NAMES:
        _keep_strings(result, key, path, where, findings)
    if isinstance(result.get("quantization"), dict):
        result["quantization"] = checked_quantization(result["quantization"], path, f"{where}.quantization", findings)
    groups = result.get("config_groups")
    if groups:
        result["config_groups"] = {
            name: _group(g, path, f"{where}.config_groups.{name}", findings) for name, g in groups.items() if isinstance(g, dict)
        }
        findings += [wrong_type(path, f"{where}.config_groups.{n}", "an object", g) for n, g in groups.items() if not isinstance(g, dict)]
    return result


def _group(group: Mapping[str, Any], path: str, where: str, findings: list[Finding]) -> dict[str, Any]:
    result = dict(group)
    for key in ("weights", "input_activations", "output_activations"):
        _keep(result, key, dict, path, where, findings)
    _keep(result, "targets", list, path, where, findings)
    _keep(result, "format", str, path, where, findings)
    return result


def _keep(table: dict[str, Any], key: str, expected: type, path: str, where: str, findings: list[Finding]) -> None:
    value = table.get(key)
    if value is not None and not isinstance(value, expected):
        findings.append(wrong_type(path, f"{where}.{key}", _WORDS[expected], value))
        table[key] = None


def _keep_strings(table: dict[str, Any], key: str, path: str, where: str, findings: list[Finding]) -> None:
    value = table.get(key)
    bad = [v for v in value if not isinstance(v, str)] if value else []
    if bad:
        findings.append(wrong_type(path, f"{where}.{key}", "strings", bad[0]))
        table[key] = [v for v in value or [] if isinstance(v, str)]
