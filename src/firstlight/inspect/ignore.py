"""Names that quantization leaves alone: as the producer meant them, and as each engine reads them. The two differ, and that breaks loads.

The producer's meaning: a module's full name, a parent's, a last part, a shell wildcard, or `re:`. Engines' rules from their source:
vLLM 0.32 modelopt.py is_layer_excluded, quant_utils.py is_layer_skipped, compressed_tensors/utils.py.
"""

import re
from collections.abc import Callable, Iterable
from fnmatch import translate

# vLLM joins projections; a joined layer is asked for under its own name.
JOINED = {
    "q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj", "gate_proj": "gate_up_proj", "up_proj": "gate_up_proj",
    "q_a_proj": "fused_qkv_a_proj", "kv_a_proj_with_mqa": "fused_qkv_a_proj", "w1": "gate_up_proj", "w3": "gate_up_proj",
}  # fmt: skip


class Ignored:
    """A compiled list, asked for thousands of modules."""

    def __init__(self, patterns: Iterable[str]) -> None:
        listed = list(patterns)
        self.exact = {p for p in listed if not p.startswith("re:") and not any(c in p for c in "*?[")}
        wild = [_below(p) for p in listed if not p.startswith("re:") and any(c in p for c in "*?[")]
        self.expressions = [c for c in map(_compiled, (p[3:] for p in listed if p.startswith("re:"))) if c]
        self.wild = re.compile("|".join(wild)) if wild else None

    def __call__(self, module: str) -> bool:
        """Whether the producer left `module` alone."""
        if self.exact and (module in self.exact or module.rpartition(".")[2] in self.exact or self._parent(module)):
            return True
        if self.wild is not None and self.wild.match(module):
            return True
        return any(e.match(module) for e in self.expressions)

    def _parent(self, module: str) -> bool:
        while "." in module:
            module = module.rpartition(".")[0]
            if module in self.exact:
                return True
        return False


def _below(wildcard: str) -> str:
    """A shell wildcard as an expression that also matches everything below what it names."""
    return re.sub(r"\\[Zz]$", "", translate(wildcard)) + r"(?:\..*)?$"


def _compiled(expression: str) -> re.Pattern[str] | None:
    try:
        return re.compile(expression)
    except re.error:
        return None


def vllm_name(module: str) -> str:
    """The layer that vLLM asks the list about: joined projections and experts under their common name."""
    if ".experts." in module:
        return module.partition(".experts.")[0] + ".experts"
    parent, _, last = module.rpartition(".")
    return f"{parent}.{JOINED.get(last, last)}"


def vllm_rule(method: str) -> Callable[[str, list[str]], str | None] | None:
    """The rule of vLLM's loader for this method: the pattern that makes it leave `layer` alone, or None. None: no such rule known."""
    return {
        "modelopt": _modelopt, "fp8": _exact, "fbgemm_fp8": _exact, "compressed-tensors": _equal_or_expression, "awq": _substring,
        "mxfp4": _exact,
    }.get(method)  # fmt: skip


def _modelopt(layer: str, patterns: list[str]) -> str | None:
    """Exact, then substring, then wildcard; `module*` counts as `module` and `module.*`."""
    for pattern in patterns:
        plain = pattern[:-1] if pattern.endswith("*") and not pattern.endswith(".*") else pattern
        if plain in layer or plain in layer.removeprefix("language_model.") or re.match(translate(pattern), layer):
            return pattern
    return _shards(layer, patterns, lambda name, listed: next((p for p in listed if p == name), None))


def _exact(layer: str, patterns: list[str]) -> str | None:
    if "experts" in layer:
        return next((p for p in patterns if "experts" in p and layer in p), None)
    found = next((p for p in patterns if p == layer), None)
    return found or _shards(layer, patterns, lambda name, listed: next((p for p in listed if p == name), None))


def _substring(layer: str, patterns: list[str]) -> str | None:
    return next((p for p in patterns if p in layer), None)


def _equal_or_expression(layer: str, patterns: list[str]) -> str | None:
    for pattern in patterns:
        if pattern == layer:
            return pattern
        if pattern.startswith("re:") and (expression := _compiled(pattern[3:])) and expression.match(layer):
            return pattern
    return None


def _shards(layer: str, patterns: list[str], match: Callable[[str, list[str]], str | None]) -> str | None:
    """A joined layer is left alone when all that it joins are."""
    parent, _, last = layer.rpartition(".")
    members = [name for name, joined in JOINED.items() if joined == last]
    found = [match(f"{parent}.{m}", patterns) for m in members if not m.startswith("w")]
    return found[0] if found and all(found) else None
