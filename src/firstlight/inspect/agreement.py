"""Do the quantization config and the tensors agree, and does the engine read the list of exceptions as its author meant it?"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from firstlight.core.checkpoint import QuantSpec, TensorGroup
from firstlight.core.findings import Finding, Severity
from firstlight.inspect.ignore import Caught, Ignored, Layer, vllm_layers, vllm_rule

_ROLES = ("attention", "dense_mlp", "routed_experts", "shared_experts", "lm_head")
_STORED_AS = {
    "nvfp4": ("U8", "I8", "F4"), "mxfp4": ("U8", "I8", "F4"), "fp8": ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ"), "mxfp8": ("F8_E4M3",),
    "fp8-block": ("F8_E4M3",), "int4": ("I32", "U8", "I8"), "int8": ("I8", "I32", "U8"),
}  # fmt: skip
_PLAIN = ("F64", "F32", "BF16", "F16")
# Linear layers that every quantizer leaves alone without saying so: too narrow to be worth it.
_NEVER = (
    "in_proj_a",
    "in_proj_b",
    "in_proj_ba",
    "shared_expert_gate",
    "weights_proj",
    "conv1d",
    "x_proj",
    "dt_proj",
    "g_proj",
    "wgate",
    "ape",
)


class _Linear(NamedTuple):
    """One matrix of one layer. module: its full name (expert 0 for all experts)."""

    module: str
    quantized: bool


def agreement_findings(quant: QuantSpec | None, groups: Sequence[TensorGroup], from_config: bool) -> list[Finding]:
    """from_config: whether a JSON file says it, not the tensors."""
    found = list(_stored_as_said(quant, groups, from_config))
    if quant is not None and from_config and not found:
        linears = list(_linears(groups))
        found += [] if quant.layers else _unsaid(quant, linears)  # a mixed checkpoint lists what is quantized, the rest needs no exception
        found += _overreach(quant, linears)
    return found


def _stored_as_said(quant: QuantSpec | None, groups: Sequence[TensorGroup], from_config: bool) -> Iterator[Finding]:
    if quant is None:
        return
    if not from_config:
        evidence = ["neither config.json nor hf_quant_config.json names a quantization"]
        yield _mismatch(f"the tensors are quantized ({quant.format}), and no file says so", evidence)
        return
    expected = _STORED_AS.get(quant.format or "")
    dtypes = {g.dtype for g in groups if g.role in _ROLES}
    if expected and dtypes and not dtypes.intersection(expected) and not _all_excepted(quant, groups):
        evidence = [f"expected: weights stored as {' or '.join(expected)}", f"found: {', '.join(sorted(dtypes))}"]
        yield _mismatch(f"the config says {quant.format}, and the tensors are not", evidence)


def _all_excepted(quant: QuantSpec, groups: Sequence[TensorGroup]) -> bool:
    """The list of exceptions names every matrix: only the KV cache is quantized, and plain weights are as said."""
    ignored = Ignored(quant.ignore, substring=quant.method.startswith("awq"))
    linears = list(_linears(groups))
    return bool(linears) and all(not n.quantized and ignored(n.module) for n in linears)


def _mismatch(message: str, evidence: list[str]) -> Finding:
    return Finding(code="quant-config-checkpoint-mismatch", severity=Severity.BLOCKER, message=message, evidence=evidence)


def _linears(groups: Iterable[TensorGroup]) -> Iterator[_Linear]:
    for g in groups:
        module, _, leaf = g.pattern.rpartition(".")
        if g.role not in _ROLES or leaf not in ("weight", "weight_packed", "qweight") or len(g.shape) != 2 or module.endswith(_NEVER):
            continue
        quantized = g.dtype not in _PLAIN
        name = module.replace("{expert}", "0")
        for layer in g.layers or [0]:
            yield _Linear(name.replace("{layer}", str(layer)), quantized)


def _unsaid(quant: QuantSpec, linears: list[_Linear]) -> Iterator[Finding]:
    ignored = Ignored(quant.ignore, substring=quant.method.startswith("awq"))
    unsaid = [n.module for n in linears if not n.quantized and not ignored(n.module) and not n.module.endswith("lm_head")]
    if unsaid and quant.ignore:
        evidence = [*unsaid[:4], *([f"and {len(unsaid) - 4:,} more"] if len(unsaid) > 4 else [])]
        yield _mismatch("matrices are stored unquantized that the list of exceptions does not name", evidence)


def _overreach(quant: QuantSpec, linears: list[_Linear]) -> Iterator[Finding]:
    """vLLM's reading of the list: quantized layers that it would build unquantized, and joined layers of which it catches only a part."""
    rule = None if quant.method == "fp8" and quant.format == "mixed" else vllm_rule(quant.method, quant.ignore)
    if rule is None or not quant.ignore:
        return
    layers = vllm_layers((n.module for n in linears), quant.method)
    quantized = dict.fromkeys(layers[n.module] for n in linears if n.quantized)
    caught = [(layer, hit) for layer in quantized if (hit := rule(layer))]
    if caught:
        evidence = [_caught_line(layer, hit) for layer, hit in caught[:4]]
        yield Finding(
            code="quant-ignore-overreach",
            severity=Severity.WARNING,
            message=f"vLLM's rule for {quant.method} leaves {len(caught):,} quantized layers unquantized, and their load will fail",
            evidence=evidence,
            note=_RULES.get(quant.method),
            hint="an overlay can name the exceptions in full",
        )


_RULES = {
    "modelopt": "vLLM looks for each name as a part of the layer's name",
    "awq": "vLLM looks for each name as a part of the layer's name",
    "compressed-tensors": "vLLM takes a name as it is, and `re:` as an expression that matches from the start",
    "fp8": "vLLM takes each name as it is",
}


def _caught_line(layer: Layer, hit: Caught) -> str:
    if hit.partly:
        return f"{hit.pattern} catches a part of {layer.name}, which vLLM builds as one: it refuses"
    return f"{hit.pattern} also catches {layer.name} (stored quantized)"
