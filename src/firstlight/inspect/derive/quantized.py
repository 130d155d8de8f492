"""Modules -> the tensors that a quantized checkpoint stores for them, with the names that each method writes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from firstlight.core.checkpoint import QuantSpec, TensorGroup
from firstlight.inspect.derive.parts import Part
from firstlight.inspect.ignore import Ignored

Tensors = list[tuple[str, str, tuple[int, ...]]]  # leaf, dtype, shape


class Scheme(NamedTuple):
    """How one module is stored. style: whose names (modelopt, compressed-tensors, fp8, deepseek-v4, awq, gptq, mxfp4).

    group: numbers that share a scale; 0: a whole row.
    """

    style: str
    format: str
    group: int = 0
    activation: bool = True
    scale_dtype: str = "F32"


def tensor_groups(
    parts: Sequence[Part], quant: QuantSpec | None, config: Mapping[str, Any], raw: Mapping[str, Any] | None
) -> list[TensorGroup]:
    """Every part as the groups that a checkpoint of this quantization has for it."""
    dtype = _dtype(config)
    scheme_of = _resolver(quant, config, raw)
    groups: list[TensorGroup] = []
    for part in parts:
        for scheme, layers in _by_scheme(part, scheme_of).items():
            one = part._replace(layers=layers)
            groups += [_group(one, one.pattern, part.dtype or dtype, part.shape)] if scheme is None else _stored(one, scheme)
    return groups


def _dtype(config: Mapping[str, Any]) -> str:
    names = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
    return names.get(str(config.get("dtype") or "bfloat16").removeprefix("torch."), "BF16")


def _by_scheme(part: Part, scheme_of: Callable[[Part, str], Scheme | None]) -> dict[Scheme | None, tuple[int, ...]]:
    if not part.linear:
        return {None: part.layers}
    if not part.layers:
        return {scheme_of(part, part.name): ()}
    result: dict[Scheme | None, tuple[int, ...]] = {}
    for layer in part.layers:
        scheme = scheme_of(part, part.name.replace("{layer}", str(layer)).replace("{expert}", "0"))
        result[scheme] = (*result.get(scheme, ()), layer)
    return result


def _group(part: Part, pattern: str, dtype: str, shape: tuple[int, ...]) -> TensorGroup:
    count = max(len(part.layers), 1) * part.experts
    return TensorGroup(pattern=pattern, role=part.role, dtype=dtype, shape=list(shape), count=count, layers=list(part.layers))


def _stored(part: Part, scheme: Scheme) -> list[TensorGroup]:
    if len(part.shape) == 3 and scheme.style in _ONE_BY_ONE and part.leaf == "":
        return [g for one in _unfused(part) for g in _stored(one, scheme)]
    shape = _out_first(part) if scheme.style == "mxfp4" else part.shape
    return [_group(part, part.name + leaf, dtype, stored) for leaf, dtype, stored in _WRITERS[scheme.style](shape, scheme)]


def _out_first(part: Part) -> tuple[int, ...]:
    """[…, out, in], whichever way the unquantized tensor is stored."""
    *front, one, other = part.shape
    return (*front, other, one) if part.transposed else part.shape


def _unfused(part: Part) -> list[Part]:
    """Quantizers store experts one by one, whatever the unquantized checkpoint does."""
    experts, out, into = _out_first(part)
    base = part.name.rpartition(".")[0] + ".{expert}"
    if part.name.endswith("gate_up_proj"):
        names = [(f"{base}.gate_proj", out // 2), (f"{base}.up_proj", out // 2)]
    else:
        names = [(f"{base}.down_proj", out)]
    return [part._replace(name=name, shape=(rows, into), experts=experts, leaf="weight") for name, rows in names]


def _resolver(quant: QuantSpec | None, config: Mapping[str, Any], raw: Mapping[str, Any] | None) -> Callable[[Part, str], Scheme | None]:
    if quant is None:
        return lambda part, module: None
    if quant.method == "mxfp4":
        return lambda part, module: Scheme("mxfp4", "mxfp4", 32) if part.role == "routed_experts" else None
    if config.get("model_type") in ("deepseek_v4", "deepseek_ref") and quant.method == "fp8":
        return _deepseek_v4(quant, config)
    if quant.method == "modelopt" and quant.layers:
        return _listed(quant)
    if quant.method == "compressed-tensors":
        return _compressed(quant, raw or {})
    return _uniform(quant, config)


def _uniform(quant: QuantSpec, config: Mapping[str, Any]) -> Callable[[Part, str], Scheme | None]:
    """One scheme for every linear layer that is not left out; the head only where a list says so."""
    scheme = _scheme(quant, config)
    ignored = Ignored(quant.ignore)

    def scheme_of(part: Part, module: str) -> Scheme | None:
        head = part.role == "lm_head" or (part.role == "mtp" and quant.method == "modelopt" and "mtp." in module)
        return None if scheme is None or head or ignored(module) else scheme

    return scheme_of


def _scheme(quant: QuantSpec, config: Mapping[str, Any]) -> Scheme | None:
    group = max(quant.group_size, 0) if isinstance(quant.group_size, int) else 0
    if quant.method == "modelopt":
        return Scheme("modelopt", quant.format or "fp8", group or 16, quant.activation != "none")
    if quant.method == "fp8":
        qwen = str(config.get("model_type") or "").startswith("qwen")
        block = max(quant.group_size[0], 0) if isinstance(quant.group_size, list) and quant.group_size else 0
        return Scheme("fp8", "fp8-block" if block else "fp8", block, scale_dtype="BF16" if qwen else "F32")
    if quant.method == "fbgemm_fp8":
        return Scheme("compressed-tensors", "fp8", 0)
    if quant.method in ("awq", "gptq", "awq_marlin", "gptq_marlin", "gptqmodel"):
        whole_row = quant.group_size == -1
        style, bits = "awq" if quant.method.startswith("awq") else "gptq", quant.bits or 4
        return Scheme(style, f"int{bits}", 0 if whole_row else group or 128) if 0 < bits <= 32 else None
    return None


def _listed(quant: QuantSpec) -> Callable[[Part, str], Scheme | None]:
    """ModelOpt's mixed precision: only what `quantized_layers` names, itself or its experts as a whole."""
    formats = {"FP8": "fp8", "MXFP8": "mxfp8", "FP8_PB_WO": "fp8-block"}

    def scheme_of(part: Part, module: str) -> Scheme | None:
        algo = quant.layers.get(module) or quant.layers.get(module.replace(".experts.0.", ".experts.*."))
        algo = algo or quant.layers.get(module.partition(".experts.")[0] + ".experts" if ".experts." in module else "")
        if not algo:
            return None
        form = formats.get(str(algo), "nvfp4")
        return Scheme("modelopt", form, 32 if form == "mxfp8" else 16, not str(algo).startswith("W4A16"))

    return scheme_of


def _compressed(quant: QuantSpec, raw: Mapping[str, Any]) -> Callable[[Part, str], Scheme | None]:
    from firstlight.inspect.quant import config_groups, scheme

    groups = [(g.get("targets") or ["Linear"], scheme(g, str(raw.get("format") or ""))) for g in config_groups(raw)]
    ignored = Ignored(quant.ignore)
    targets = [(Ignored([t for t in listed if t != "Linear"]), "Linear" in listed, form) for listed, form in groups]

    def scheme_of(part: Part, module: str) -> Scheme | None:
        if part.role in ("mtp", "lm_head") and not any(match(module) for match, _, _ in targets):
            return None
        if ignored(module):
            return None
        for match, everything, (form, _, size, activation) in targets:
            if match(module) or everything:
                return Scheme("compressed-tensors", form, max(size or 0, 0), activation != "none", "BF16")
        return None

    return scheme_of


def _deepseek_v4(quant: QuantSpec, config: Mapping[str, Any]) -> Callable[[Part, str], Scheme | None]:
    """FP8 blocks with 8-bit exponents as scales; routed experts in FP4, or NVFP4 where ModelOpt redid them."""
    four = config.get("expert_dtype") == "fp4"

    def scheme_of(part: Part, module: str) -> Scheme | None:
        if part.role == "lm_head":
            return None
        if ".experts." in module and quant.layers:
            return Scheme("modelopt", "nvfp4", 16) if not module.startswith("mtp") else Scheme("deepseek-v4", "fp4", 32)
        return Scheme("deepseek-v4", "fp4", 32) if four and ".experts." in module else Scheme("deepseek-v4", "fp8-block", 128)

    return scheme_of


def _up(n: int, block: int) -> int:
    return -(-n // block)


def _modelopt(shape: tuple[int, ...], s: Scheme) -> Tensors:
    *front, out, into = shape
    if s.format in ("nvfp4", "int4"):
        tensors: Tensors = [(".weight", "U8", (*front, out, into // 2)), (".weight_scale", "F8_E4M3", (*front, out, _up(into, s.group)))]
        return tensors + [(".weight_scale_2", "F32", ())] + ([(".input_scale", "F32", ())] if s.activation else [])
    if s.format == "mxfp8":
        return [(".weight", "F8_E4M3", shape), (".weight_scale", "U8", (*front, out, _up(into, 32)))]
    if s.format == "fp8-block":
        return [(".weight", "F8_E4M3", shape), (".weight_scale", "F32", (*front, _up(out, 128), 1, _up(into, 128), 1))]
    return [(".weight", "F8_E4M3", shape), (".weight_scale", "F32", ()), (".input_scale", "F32", ())]


def _fp8(shape: tuple[int, ...], s: Scheme) -> Tensors:
    if not s.group:
        return [(".weight", "F8_E4M3", shape), (".weight_scale", "F32", ())]
    *front, out, into = shape
    return [(".weight", "F8_E4M3", shape), (".weight_scale_inv", s.scale_dtype, (*front, _up(out, s.group), _up(into, s.group)))]


def _deepseek_v4_tensors(shape: tuple[int, ...], s: Scheme) -> Tensors:
    *front, out, into = shape
    if s.format == "fp4":
        return [(".weight", "I8", (*front, out, into // 2)), (".scale", "F8_E8M0", (*front, out, into // s.group))]
    return [(".weight", "F8_E4M3", shape), (".scale", "F8_E8M0", (*front, _up(out, s.group), _up(into, s.group)))]


def _compressed_tensors(shape: tuple[int, ...], s: Scheme) -> Tensors:
    *front, out, into = shape
    if s.format == "nvfp4":
        tensors: Tensors = [(".weight_packed", "U8", (*front, out, into // 2)), (".weight_scale", "F8_E4M3", (*front, out, into // 16))]
        return tensors + [(".weight_global_scale", "F32", (1,))] + ([(".input_global_scale", "F32", (1,))] if s.activation else [])
    if s.format == "mxfp4":
        return [(".weight_packed", "U8", (*front, out, into // 2)), (".weight_scale", "U8", (*front, out, _up(into, 32)))]
    if (bits := _integer_bits(s.format)) and bits != 8:
        return [
            (".weight_packed", "I32", (*front, out, _up(into * bits, 32))),
            (".weight_scale", "BF16", (*front, out, _up(into, s.group or into))),
            (".weight_shape", "I32", (2,)),
        ]
    if s.format == "fp8-block":
        return [(".weight", "F8_E4M3", shape), (".weight_scale", "BF16", (*front, _up(out, 128), _up(into, 128)))]
    return [(".weight", "I8" if s.format.startswith("int") else "F8_E4M3", shape), (".weight_scale", s.scale_dtype, (*front, out, 1))]


def _integer_bits(form: str) -> int | None:
    """`int4` -> 4; None for what is no width of an integer (`int-quantized` without one)."""
    width = form.removeprefix("int")
    return int(width) if width != form and width.isdecimal() and 0 < int(width) <= 64 else None


def _awq(shape: tuple[int, ...], s: Scheme) -> Tensors:
    *front, out, into = shape
    rows = _up(into, s.group or into)
    return [
        (".qweight", "I32", (*front, into, out // 8)),
        (".qzeros", "I32", (*front, rows, out // 8)),
        (".scales", "F16", (*front, rows, out)),
    ]


def _gptq(shape: tuple[int, ...], s: Scheme) -> Tensors:
    *front, out, into = shape
    bits, rows = int(s.format[3:]), _up(into, s.group or into)
    packed: Tensors = [(".qweight", "I32", (*front, into * bits // 32, out)), (".qzeros", "I32", (*front, rows, out * bits // 32))]
    return [*packed, (".scales", "F16", (*front, rows, out)), (".g_idx", "I32", (*front, into))]


def _mxfp4(shape: tuple[int, ...], s: Scheme) -> Tensors:
    """gpt-oss: blocks of 32 numbers in 16 bytes along `in`, and one exponent each."""
    *front, out, into = shape
    return [("_blocks", "U8", (*front, out, into // 32, 16)), ("_scales", "U8", (*front, out, into // 32))]


_ONE_BY_ONE = ("modelopt", "fp8", "awq", "gptq")  # experts that the unquantized checkpoint stores together
_WRITERS: dict[str, Callable[[tuple[int, ...], Scheme], Tensors]] = {
    "modelopt": _modelopt,
    "fp8": _fp8,
    "deepseek-v4": _deepseek_v4_tensors,
    "compressed-tensors": _compressed_tensors,
    "awq": _awq,
    "gptq": _gptq,
    "mxfp4": _mxfp4,
}
