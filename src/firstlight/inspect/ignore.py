"""Names that quantization leaves alone: as the producer meant them, and as each engine reads them. The two differ, and that breaks loads.

The producer's meaning: a module's full name, a parent's, a last part, a shell wildcard, or `re:`. Engines' rules from their source:
vLLM 0.32 modelopt.py is_layer_excluded, quant_utils.py is_layer_skipped, config_utils.py find_matching_patterns, gptq_utils.py
get_dynamic_override. llama.cpp has no such list: a GGUF says each tensor's type.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from fnmatch import translate
from typing import NamedTuple

# vLLM joins projections; a joined layer is asked for under its own name, then by its parts.
PARTS = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj"),
    "fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"), "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
}  # fmt: skip
JOINED = {part: joined for joined, parts in PARTS.items() for part in parts}

EXPRESSION_LIMIT = 1000
_EXPRESSION = ("re:", "-:")  # compressed-tensors, GPTQ's `dynamic`
_NESTED_REPEAT = re.compile(r"[*+}][^()]*\)[*+{]|\)[*+{][^()]*\)[*+{]")


class Ignored:
    """A compiled list, asked for thousands of modules. substring: a plain name also counts inside a longer word (AWQ's own rule)."""

    def __init__(self, patterns: Iterable[str], *, substring: bool = False) -> None:
        listed = list(patterns)
        plain = [p for p in listed if not p.startswith(_EXPRESSION)]
        wild = [p for p in plain if any(c in p for c in "*?[")]
        self.exact = set(plain) - set(wild)
        self.parts = tuple(self.exact) if substring else ()
        self.prefixes = tuple(p[:-1] for p in wild if p[-1] == "*" and not any(c in p[:-1] for c in "*?["))  # nearly all of them
        others = [_below(p) for p in wild if p[:-1] not in self.prefixes]
        self.wild = re.compile("|".join(others)) if others else None
        self.expressions = _expressions(listed)

    def __call__(self, module: str) -> bool:
        """Whether the producer left `module` alone."""
        if (self.exact and (module in self.exact or self._names(module))) or any(p in module for p in self.parts):
            return True
        if module.startswith(self.prefixes) or (self.wild is not None and self.wild.match(module)):
            return True
        return any(e.match(module) for e, _ in self.expressions)

    def _names(self, module: str) -> bool:
        """Whether any run of the module's dotted words is listed: its last, a parent, a name without the outer model's."""
        words = module.split(".")
        return any(".".join(words[i:j]) in self.exact for i in range(len(words)) for j in range(i + 1, len(words) + 1))


def _below(wildcard: str) -> str:
    """A shell wildcard as an expression that also matches everything below what it names."""
    return re.sub(r"\\[Zz]$", "", translate(wildcard)) + r"(?:\..*)?$"


def _expressions(patterns: Iterable[str]) -> list[tuple[re.Pattern[str], str]]:
    return [(e, p) for p in patterns if p.startswith(_EXPRESSION) and (e := _compiled(p[3:] if p.startswith("re:") else p[2:]))]


def _compiled(expression: str) -> re.Pattern[str] | None:
    """None for what is no expression, or one whose nested repeats could take forever: a checkpoint must not be able to hang us."""
    if len(expression) > EXPRESSION_LIMIT or _NESTED_REPEAT.search(expression):
        return None
    try:
        return re.compile(expression)
    except (re.error, OverflowError, RecursionError):
        return None


class Layer(NamedTuple):
    """A layer as vLLM builds it. parts: the checkpoint's modules that it joins, none for a layer of its own."""

    name: str
    parts: tuple[str, ...] = ()


def vllm_layers(modules: Iterable[str], method: str = "") -> dict[str, Layer]:
    """The layer that each module goes into: joined projections (where two or more are there), and experts under their common name."""
    by_joined: dict[str, list[str]] = defaultdict(list)
    result: dict[str, Layer] = {}
    for module in modules:
        parent, _, last = module.rpartition(".")
        if ".experts." in module:
            # compressed-tensors asks for the first expert's projections by name, the others for all experts at once
            result[module] = Layer(module if method == "compressed-tensors" else module.partition(".experts.")[0] + ".experts")
        elif last in JOINED:
            by_joined[f"{parent}.{JOINED[last]}"].append(module)
        else:
            result[module] = Layer(module)
    for name, parts in by_joined.items():
        result |= {m: Layer(name, tuple(parts)) if len(parts) > 1 else Layer(m) for m in parts}
    return result


class Caught(NamedTuple):
    """pattern: the name that makes vLLM leave a layer alone. partly: only some of its parts, which vLLM refuses."""

    pattern: str
    partly: bool = False


Rule = Callable[[Layer], Caught | None]
_Match = Callable[[str], str | None]


def vllm_rule(method: str, patterns: Sequence[str]) -> Rule | None:
    """vLLM's own rule for this method over these names: what makes it leave a layer alone, or None. None: no such rule known."""
    build = {
        "modelopt": _modelopt, "fp8": _exact, "fbgemm_fp8": _exact, "compressed-tensors": _equal_or_expression, "awq": _substring,
        "awq_marlin": _substring, "mxfp4": _exact, "gptq": _dynamic, "gptq_marlin": _dynamic, "gptqmodel": _dynamic,
    }.get(method)  # fmt: skip
    return build(patterns) if build else None


def _by_parts(match: _Match) -> Rule:
    """The layer's own name first; a joined one else by its parts, which must agree."""

    def rule(layer: Layer) -> Caught | None:
        found = match(layer.name)
        if found or not layer.parts:
            return Caught(found) if found else None
        hits = [match(part) for part in layer.parts]
        first = next((h for h in hits if h), None)
        return Caught(first, partly=not all(hits)) if first else None

    return rule


def _exact(patterns: Sequence[str]) -> Rule:
    listed = frozenset(patterns)
    experts = [p for p in patterns if "experts" in p]
    by_parts = _by_parts(lambda name: name if name in listed else None)

    def rule(layer: Layer) -> Caught | None:
        if "experts" in layer.name and not layer.parts:
            found = next((p for p in experts if layer.name in p), None)  # the other way round: a list that names one expert stands for all
            return Caught(found) if found else None
        return by_parts(layer)

    return rule


def _modelopt(patterns: Sequence[str]) -> Rule:
    """Exact, then substring, then wildcard; `module*` counts as `module` and `module.*`, so its substring decides."""
    plain = [(p[:-1] if p.endswith("*") and not p.endswith(".*") else p, p) for p in patterns if p]
    wild = [(re.compile(translate(p)), p) for short, p in plain if any(c in short for c in "*?[")]
    exact = _exact([short for short, _ in plain])

    def rule(layer: Layer) -> Caught | None:
        found = exact(layer)
        if found is not None:
            return found
        inner = layer.name.removeprefix("language_model.")
        pattern = next((p for short, p in plain if short in layer.name or short in inner), None)
        pattern = pattern or next((p for expression, p in wild if expression.match(layer.name)), None)
        return Caught(pattern) if pattern else None

    return rule


def _substring(patterns: Sequence[str]) -> Rule:
    return _by_parts(lambda name: next((p for p in patterns if p in name), None))


def _equal_or_expression(patterns: Sequence[str]) -> Rule:
    compiled = _expressions(patterns)
    listed = frozenset(patterns)
    return _by_parts(lambda name: name if name in listed else next((p for e, p in compiled if e.match(name)), None))


def _dynamic(patterns: Sequence[str]) -> Rule:
    """GPTQModel's `-:` expressions, matched against the joined layer's name alone."""
    compiled = _expressions(patterns)

    def rule(layer: Layer) -> Caught | None:
        found = next((p for e, p in compiled if e.match(layer.name)), None)
        return Caught(found) if found else None

    return rule
