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


EXPRESSION_LIMIT = 1000
_NESTED_REPEAT = re.compile(r"[*+}][^()]*\)[*+{]|\)[*+{][^()]*\)[*+{]")


class Ignored:
    """A compiled list, asked for thousands of modules."""

    def __init__(self, patterns: Iterable[str]) -> None:
        listed = list(patterns)
        plain = [p for p in listed if not p.startswith("re:")]
        wild = [p for p in plain if any(c in p for c in "*?[")]
        self.exact = set(plain) - set(wild)
        self.prefixes = tuple(p[:-1] for p in wild if p[-1] == "*" and not any(c in p[:-1] for c in "*?["))  # nearly all of them
        others = [_below(p) for p in wild if p[:-1] not in self.prefixes]
        self.wild = re.compile("|".join(others)) if others else None
        self.expressions = [c for c in map(_compiled, (p[3:] for p in listed if p.startswith("re:"))) if c]

    def __call__(self, module: str) -> bool:
        """Whether the producer left `module` alone."""
        if self.exact and (module in self.exact or module.rpartition(".")[2] in self.exact or self._parent(module)):
            return True
        if module.startswith(self.prefixes) or (self.wild is not None and self.wild.match(module)):
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
    """None for what is no expression, or one whose nested repeats could take forever: a checkpoint must not be able to hang us."""
    if len(expression) > EXPRESSION_LIMIT or _NESTED_REPEAT.search(expression):
        return None
    try:
        return re.compile(expression)
    except (re.error, OverflowError, RecursionError):
        return None


def vllm_name(module: str) -> str:
    """The layer that vLLM asks the list about: joined projections and experts under their common name."""
    if ".experts." in module:
        return module.partition(".experts.")[0] + ".experts"
    parent, _, last = module.rpartition(".")
    return f"{parent}.{JOINED.get(last, last)}"


Rule = Callable[[str], str | None]


def vllm_rule(method: str, patterns: list[str]) -> Rule | None:
    """vLLM's own rule for this method over these names: the one that makes it leave a layer alone, or None. None: no such rule known."""
    build = {
        "modelopt": _modelopt, "fp8": _exact, "fbgemm_fp8": _exact, "compressed-tensors": _equal_or_expression, "awq": _substring,
        "mxfp4": _exact,
    }.get(method)  # fmt: skip
    return build(patterns) if build else None


def _modelopt(patterns: list[str]) -> Rule:
    """Exact, then substring, then wildcard; `module*` counts as `module` and `module.*`, so its substring decides."""
    plain = [(p[:-1] if p.endswith("*") and not p.endswith(".*") else p, p) for p in patterns]
    wild = [(re.compile(translate(p)), p) for short, p in plain if any(c in short for c in "*?[")]
    shards = _all_shards(frozenset(patterns))

    def rule(layer: str) -> str | None:
        inner = layer.removeprefix("language_model.")
        found = next((p for short, p in plain if short in layer or short in inner), None)
        return found or next((p for expression, p in wild if expression.match(layer)), None) or shards(layer)

    return rule


def _exact(patterns: list[str]) -> Rule:
    listed = frozenset(patterns)
    experts = [p for p in patterns if "experts" in p]
    shards = _all_shards(listed)

    def rule(layer: str) -> str | None:
        if "experts" in layer:
            return next((p for p in experts if layer in p), None)
        return layer if layer in listed else shards(layer)

    return rule


def _substring(patterns: list[str]) -> Rule:
    return lambda layer: next((p for p in patterns if p in layer), None)


def _equal_or_expression(patterns: list[str]) -> Rule:
    compiled = [(e, p) for p in patterns if p.startswith("re:") and (e := _compiled(p[3:]))]
    listed = frozenset(patterns)
    return lambda layer: layer if layer in listed else next((p for e, p in compiled if e.match(layer)), None)


def _all_shards(listed: frozenset[str]) -> Rule:
    """A joined layer is left alone when all that it joins are."""

    def rule(layer: str) -> str | None:
        parent, _, last = layer.rpartition(".")
        members = [f"{parent}.{name}" for name, joined in JOINED.items() if joined == last and not name.startswith("w")]
        return members[0] if members and listed.issuperset(members) else None

    return rule
