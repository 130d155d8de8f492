"""Whether the release knows the checkpoint's number format, and whether float16 can hold its values."""

from collections.abc import Iterator

from firstlight.catalog import vocabulary
from firstlight.core.findings import Finding
from firstlight.preflight.check import Check, blocker, warning
from firstlight.preflight.context import Context
from firstlight.preflight.cuda import capability, numbers

_FP16_OVERFLOWS = ("gemma", "gemma2", "gemma3", "gemma3_text", "gemma4", "glm4", "t5", "mt5", "umt5")


def methods(context: Context) -> list[str]:
    """vLLM's names for the checkpoint's method, most exact first."""
    quantization = context.checkpoint.quantization if context.checkpoint else None
    if quantization is None:
        return []
    form = quantization.format or ""
    if quantization.method == "modelopt":
        exact = {"nvfp4": "modelopt_fp4", "mixed": "modelopt_mixed", "mxfp8": "modelopt_mxfp8"}.get(form)
        return [exact] if exact else ["modelopt"]
    return {"awq": ["auto_awq", "awq"], "gptq": ["auto_gptq", "gptq"], "mxfp4": ["mxfp4"]}.get(quantization.method, [quantization.method])


def method(context: Context) -> Iterator[Finding]:
    assert context.checkpoint is not None
    names = methods(context)
    known = [vocabulary.has("quantization", n, context.version) for n in names]
    quantization = context.checkpoint.quantization
    if quantization is None or None in known:
        return
    if not any(known):
        yield _unknown(context, names, f"{quantization.method} {quantization.format or ''}".strip())
        return
    lowest = next((m for n in names if (m := vocabulary.min_capability(n, context.version)) is not None), None)
    low = [g for g in context.gpus if g.sm is not None and lowest is not None and g.sm < lowest]
    if low and lowest is not None:
        yield blocker(
            "quantization-needs-newer-gpu",
            f"{context.named} runs {names[0]} from compute capability {capability(lowest)} on",
            evidence=[f"GPU {g.index}: {g.name}, compute capability {capability(g.sm or 0)}" for g in low[:4]],
            hint="a checkpoint in another format (AWQ or GPTQ INT4 for older GPUs), or newer GPUs",
        )


def _unknown(context: Context, names: list[str], text: str) -> Finding:
    firsts = [s for n in names if (s := vocabulary.since("quantization", n)) and numbers(s) > context.release]
    lasts = [s for n in names if (s := vocabulary.until("quantization", n))]
    hint = "a checkpoint in another format"
    if firsts:
        hint = f"`firstlight engines install vllm@{firsts[0]}`, the first release in the catalog that has it"
    elif "gguf" in names:
        hint = "`--engine llamacpp`: llama.cpp runs GGUF files as they are"
    elif lasts:
        hint = f"`firstlight engines install vllm@{lasts[0]}`, the last release in the catalog that has it"
    return blocker(
        "quantization-unsupported",
        f"{context.named} has no quantization method for {text}",
        evidence=[f"the checkpoint's method: {text}", f"looked for: {', '.join(names)}"],
        hint=hint,
    )


def fp16(context: Context) -> Iterator[Finding]:
    """A bfloat16 model forced into float16 can overflow to NaN; so can FP8 products accumulated into it."""
    assert context.checkpoint is not None
    said = context.option("--dtype") or (context.intent.pins.dtype if context.intent else None)
    old = [g for g in context.gpus if g.sm is not None and g.sm < 80]
    wrote = str(context.checkpoint.config.get("dtype") or context.checkpoint.config.get("torch_dtype") or "")
    if said not in ("half", "float16", "fp16") and not (old and said in (None, "auto")):
        return
    form = context.checkpoint.quantization.format if context.checkpoint.quantization else None
    risky = context.checkpoint.model_type in _FP16_OVERFLOWS or (form or "").startswith("fp8")
    if not risky or "bfloat16" not in wrote:
        return
    evidence = [f"config.json: dtype {wrote}, model type {context.checkpoint.model_type}", f"computing in float16: {_why(said)}"]
    yield warning(
        "garbage-output-fp16-overflow",
        "float16 can overflow in this model: its values reach beyond 65,504",
        evidence=evidence,
        hint="--dtype bfloat16" if not old else "--dtype float32, or GPUs of compute capability 8.0 or newer",
    )


def _why(said: str | None) -> str:
    return f"--dtype {said}" if said not in (None, "auto") else "the GPU has no bfloat16"


CHECKS = (
    Check("quantization-method", ("checkpoint",), method, engines=("vllm",)),
    Check("fp16-overflow", ("checkpoint",), fp16, engines=("vllm", "sglang")),
)
