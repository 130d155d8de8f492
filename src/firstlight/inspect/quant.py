"""How the weights and the KV cache are quantized, from config.json, hf_quant_config.json and the tensors themselves."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from firstlight.core.checkpoint import KvCacheQuantization, QuantSpec, TensorGroup

_MODELOPT = {
    "FP8": ("fp8", 8, None), "FP8_PER_CHANNEL_PER_TOKEN": ("fp8", 8, None), "FP8_PB_WO": ("fp8-block", 8, 128), "NVFP4": ("nvfp4", 4, 16),
    "W4A16_NVFP4": ("nvfp4", 4, 16), "NVFP4_AWQ": ("nvfp4", 4, 16), "W4A8_NVFP4_FP8": ("nvfp4", 4, 16), "MXFP4": ("mxfp4", 4, 32),
    "W4A8_MXFP4_FP8": ("mxfp4", 4, 32), "MXFP8": ("mxfp8", 8, 32), "W4A16_AWQ": ("int4", 4, 128), "W4A8_AWQ": ("int4", 4, 128),
    "W4A16": ("int4", 4, 128), "W8A16": ("int8", 8, None), "INT8_SQ": ("int8", 8, None), "W8A8_SQ_PER_CHANNEL": ("int8", 8, None),
}  # fmt: skip
_ACTIVATIONS = {
    "W4A16_NVFP4": "none",
    "NVFP4": "nvfp4",
    "FP8": "fp8",
    "FP8_PB_WO": "fp8",
    "W4A8_AWQ": "fp8",
    "W4A8_NVFP4_FP8": "fp8",
    "INT8_SQ": "int8",
}


def quant_spec(
    config: Mapping[str, Any] | None, hf_quant: Mapping[str, Any] | None, groups: Iterable[TensorGroup] = ()
) -> QuantSpec | None:
    """What config.json says wins; hf_quant_config.json fills in; without either, the tensors' own names and dtypes tell."""
    body = hf_quant.get("quantization") if hf_quant else None
    if config:
        return _from_config(config, body if isinstance(body, dict) else None, hf_quant)
    if isinstance(body, dict) and hf_quant is not None:
        return _modelopt(body, hf_quant.get("producer"))
    return from_tensors(groups)


def _from_config(config: Mapping[str, Any], body: Mapping[str, Any] | None, hf_quant: Mapping[str, Any] | None) -> QuantSpec:
    config = _flat(config)
    method = str(config.get("quant_method") or ("modelopt" if config.get("quant_algo") else config.get("quant_type") or "unknown")).lower()
    if method.startswith("modelopt") or (config.get("quant_algo") and method in ("fp8", "unknown")):
        spec = _modelopt({**(body or {}), **config}, config.get("producer") or (hf_quant or {}).get("producer"))
        return spec if method != "fp8" else _with_method(spec, "fp8")
    reader = _READERS.get(method, _named)
    return reader(config, method)


def _flat(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """ModelOpt's early writers put hf_quant_config.json's body into config.json as it stood, under `quantization`."""
    inner = config.get("quantization")
    return {**config, **inner} if isinstance(inner, dict) else config


def _with_method(spec: QuantSpec, method: str) -> QuantSpec:
    """DeepSeek V4's NVFP4 experts inside an FP8 checkpoint: the engine's loader is named by `quant_method`."""
    return QuantSpec(
        method=method,
        format="mixed",
        group_size=spec.group_size,
        ignore=spec.ignore,
        activation=spec.activation,
        producer=spec.producer,
        layers=spec.layers,
    )


def _modelopt(body: Mapping[str, Any], producer: Any) -> QuantSpec:
    algo = str(body.get("quant_algo") or "").upper()
    quantized = body.get("quantized_layers")
    layers = dict(quantized) if isinstance(quantized, dict) else {}
    form, bits, group = _MODELOPT.get(algo, (algo.lower() or None, None, None))
    if algo in ("MIXED_PRECISION", "") and layers:
        form, bits, group = "mixed", None, None
    return QuantSpec(
        method="modelopt",
        format=form,
        group_size=_int(body.get("group_size")) or _group_size(body) or group,
        bits=bits,
        ignore=_strings(body.get("ignore") or body.get("exclude_modules")),
        activation=_ACTIVATIONS.get(algo) if not layers else None,
        producer=_producer(producer),
        layers=_compact_layers(layers),
    )


def _group_size(body: Mapping[str, Any]) -> int | None:
    for group in config_groups(body):
        weights = group.get("weights")
        if isinstance(weights, dict) and isinstance(weights.get("group_size"), int):
            return int(weights["group_size"])
    return None


def config_groups(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    groups = body.get("config_groups")
    return [g for g in groups.values() if isinstance(g, dict)] if isinstance(groups, dict) else []


def _compact_layers(layers: Mapping[str, Any]) -> dict[str, Any]:
    """Per-layer lists of hundreds of thousands of entries shrink to one an algorithm where experts differ only by number."""
    import re

    result: dict[str, Any] = {}
    for name, how in layers.items():
        algo = str(how.get("quant_algo")) if isinstance(how, dict) else str(how)
        result[re.sub(r"\.experts\.\d+\.", ".experts.*.", str(name))] = algo
    return result


def _compressed_tensors(config: Mapping[str, Any], method: str) -> QuantSpec:
    groups = config_groups(config)
    forms = [scheme(g, str(config.get("format") or "")) for g in groups]
    if not forms:  # sparse, or compressed without quantization
        return QuantSpec(method=method, format=config.get("format") or None, ignore=_strings(config.get("ignore")))
    same = len(set(forms)) == 1
    form, bits, group, activation = forms[0] if same else ("mixed", None, None, None)
    layers = {} if same else {_targets(g, i): f[0] for i, (g, f) in enumerate(zip(groups, forms, strict=True))}
    return QuantSpec(
        method=method,
        format=form,
        group_size=group,
        bits=bits,
        ignore=_strings(config.get("ignore")),
        activation=activation,
        producer=f"compressed-tensors {config['version']}" if config.get("version") else None,
        layers=layers,
    )


def _targets(group: Mapping[str, Any], number: int) -> str:
    return ", ".join(_strings(group.get("targets"))[:4]) or f"group {number}"


def scheme(group: Mapping[str, Any], outer: str) -> tuple[str, int | None, int | None, str | None]:
    """(format, bits, group size, activation) of one config group."""
    weights = group.get("weights") or {}
    acts = group.get("input_activations") or {}
    bits, kind, size = _int(weights.get("num_bits")), str(weights.get("type") or "int"), _int(weights.get("group_size"))
    how = str(group.get("format") or outer)
    if kind == "float" and bits == 4:
        form = "mxfp4" if "mxfp4" in how or size == 32 else "nvfp4"
    elif kind == "float" and bits == 8:
        form = "mxfp8" if "mxfp8" in how else "fp8-block" if weights.get("strategy") == "block" else "fp8"
    else:
        form = f"{kind}{bits}" if bits else how or "unknown"
    block = weights.get("block_structure")
    activation = f"{'fp' if acts.get('type') == 'float' else 'int'}{acts['num_bits']}" if acts.get("num_bits") else "none"
    return form, bits, size if not isinstance(block, list) else _int(block[-1]), activation


def _fp8(config: Mapping[str, Any], method: str) -> QuantSpec:
    block = config.get("weight_block_size")
    sizes = [n for n in block if _int(n) is not None] if isinstance(block, list) else None
    return QuantSpec(
        method=method,
        format="fp8-block" if sizes else "fp8",
        group_size=sizes,
        bits=8,
        ignore=_strings(config.get("modules_to_not_convert") or config.get("ignored_layers")),
        activation=f"fp8 {config.get('activation_scheme') or 'dynamic'}",
    )


def _fbgemm(config: Mapping[str, Any], method: str) -> QuantSpec:
    return QuantSpec(method=method, format="fp8", bits=8, ignore=_strings(config.get("modules_to_not_convert")), activation="fp8 dynamic")


def _mxfp4(config: Mapping[str, Any], method: str) -> QuantSpec:
    return QuantSpec(
        method=method, format="mxfp4", bits=4, group_size=32, ignore=_strings(config.get("modules_to_not_convert")), activation="none"
    )


def _integer(config: Mapping[str, Any], method: str) -> QuantSpec:
    """AWQ and GPTQ: one width and group size for every linear layer that is not named."""
    bits = _int(config.get("bits") or config.get("w_bit"))
    dynamic = config.get("dynamic")
    skipped = [k for k in dynamic if k.startswith("-:")] if isinstance(dynamic, dict) else []
    return QuantSpec(
        method=method,
        format=f"int{bits}" if bits else None,
        group_size=_int(config.get("group_size") or config.get("q_group_size")),
        bits=bits,
        ignore=_strings(config.get("modules_to_not_convert")) + skipped,
        activation="none",
    )


def _bitsandbytes(config: Mapping[str, Any], method: str) -> QuantSpec:
    four = bool(config.get("load_in_4bit"))
    return QuantSpec(
        method=method,
        format=str(config.get("bnb_4bit_quant_type") or "fp4") if four else "int8",
        bits=4 if four else 8,
        group_size=64 if four else None,
        ignore=_strings(config.get("llm_int8_skip_modules")),
        activation="none" if four else "int8",
    )


def _named(config: Mapping[str, Any], method: str) -> QuantSpec:
    """A method that this table only knows by name: what it says about itself is passed on."""
    return QuantSpec(
        method=method,
        bits=_int(config.get("bits") or config.get("nbits")),
        group_size=_int(config.get("group_size")),
        ignore=_strings(config.get("modules_to_not_convert") or config.get("ignore") or config.get("exclude")),
    )


_READERS = {
    "compressed-tensors": _compressed_tensors, "fp8": _fp8, "fbgemm_fp8": _fbgemm, "mxfp4": _mxfp4, "gpt_oss_mxfp4": _mxfp4,
    "awq": _integer, "awq_marlin": _integer, "gptq": _integer, "gptq_marlin": _integer, "gptqmodel": _integer, "auto-round": _integer,
    "bitsandbytes": _bitsandbytes,
}  # fmt: skip


def from_tensors(groups: Iterable[TensorGroup]) -> QuantSpec | None:
    """Scales and packed weights without a config that names them; None when the weights are plain."""
    listed = list(groups)
    suffixes = {g.pattern.rpartition(".")[2] for g in listed}
    dtypes = {g.dtype for g in listed}
    if "weight_scale_2" in suffixes and "U8" in dtypes:
        return QuantSpec(method="unknown", format="nvfp4", bits=4, group_size=16)
    if suffixes & {"qweight", "qzeros"}:
        return QuantSpec(method="unknown", format="int4", bits=4)
    if any(d.startswith("F8_E4M3") for d in dtypes) and suffixes & {"weight_scale", "weight_scale_inv"}:
        return QuantSpec(method="unknown", format="fp8-block" if "weight_scale_inv" in suffixes else "fp8", bits=8)
    return None


def gguf_quant(tensors: Iterable[tuple[str, int]], file_type: str | None) -> QuantSpec | None:
    """tensors: (type, bytes). The type with the most bytes names the format; every type is listed with its bytes."""
    by_type: Counter[str] = Counter()
    for dtype, size in tensors:
        by_type[dtype] += size
    if not by_type:
        return None
    main = max(by_type, key=lambda t: by_type[t])
    return QuantSpec(method="gguf", format=file_type or main, bits=None, layers=dict(sorted(by_type.items())))


def kv_quantization(config: Mapping[str, Any] | None, where: str, hf_quant: Mapping[str, Any] | None) -> KvCacheQuantization | None:
    """The KV cache dtype that the files ask for, with each `file:key.path` that does."""
    found = [(_scheme_dtype(config.get("kv_cache_scheme")), f"config.json:{where}.kv_cache_scheme")] if config else []
    if config:
        found.append((_algo_dtype(config.get("kv_cache_quant_algo")), f"config.json:{where}.kv_cache_quant_algo"))
        inner = config.get("quantization")
        if isinstance(inner, dict):
            found.append((_algo_dtype(inner.get("kv_cache_quant_algo")), f"config.json:{where}.quantization.kv_cache_quant_algo"))
    body = hf_quant.get("quantization") if hf_quant else None
    if isinstance(body, dict):
        found.append((_algo_dtype(body.get("kv_cache_quant_algo")), "hf_quant_config.json:quantization.kv_cache_quant_algo"))
        found.append((_scheme_dtype(body.get("kv_cache_scheme")), "hf_quant_config.json:quantization.kv_cache_scheme"))
    set_by = [(dtype, source) for dtype, source in found if dtype]
    return KvCacheQuantization(dtype=str(set_by[0][0]), sources=[s for _, s in set_by]) if set_by else None


def _scheme_dtype(value: Any) -> str | None:
    """compressed-tensors and ModelOpt write a table, early ModelOpt a word."""
    if isinstance(value, str):
        return _algo_dtype(value)
    if not isinstance(value, dict):
        return None
    bits, kind = _int(value.get("num_bits")), str(value.get("type") or "float")
    return {("float", 8): "fp8", ("float", 4): "nvfp4", ("int", 8): "int8", ("int", 4): "int4"}.get((kind, bits or 0), f"{kind}{bits}")


def _algo_dtype(value: Any) -> str | None:
    if not isinstance(value, str) or value.lower() in ("", "none", "auto"):
        return None
    return {"FP8": "fp8", "NVFP4": "nvfp4", "INT8": "int8"}.get(value.upper(), value.lower())


def _producer(value: Any) -> str | None:
    if not isinstance(value, dict):
        return value if isinstance(value, str) else None
    return " ".join(str(value[k]) for k in ("name", "version") if value.get(k)) or None


def _strings(value: Any) -> list[str]:
    return [str(v) for v in value] if isinstance(value, list) else []


def _int(value: Any) -> int | None:
    """A width or group size; None for what cannot be one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 31 else None
