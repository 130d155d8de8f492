"""Whether an attention kernel exists for this model, KV cache dtype, GPU generation and release."""

from collections.abc import Iterator

from msgspec.structs import replace

from firstlight.catalog.backends import Choice, attention_layers, first_release_with, lookup
from firstlight.core.checkpoint import Checkpoint
from firstlight.core.findings import Finding, Severity
from firstlight.preflight.check import Check, blocker, remark
from firstlight.preflight.context import Context
from firstlight.preflight.cuda import capability

CODE = "attn-backend-unsupported-kv-dtype"
_FP8 = ("fp8", "fp8_e4m3", "fp8_e5m2")


def kv_cache_dtype(context: Context) -> str:
    """What the engine will really use, with the plan's flags and overlay."""
    overlaid = context.overlay_removes_kv_cache_dtype
    return _resolved(context, context.planned_kv_cache_dtype, None if overlaid else context.embedded_kv_cache_dtype)


def wished_dtype(context: Context) -> str:
    """What it would use on the checkpoint as it is, with nothing but what the user said."""
    return _resolved(context, context.wished_kv_cache_dtype, context.embedded_kv_cache_dtype)


def _resolved(context: Context, flag: str | None, embedded: str | None) -> str:
    """A flag wins, except where the loader forces the checkpoint's dtype; `auto` follows the checkpoint."""
    if flag and not (embedded and _forced(context)):
        return flag
    return embedded or flag or "auto"


def _forced(context: Context) -> bool:
    """compressed-tensors' kv_cache_scheme on layers that are not MLA overrides the flag up to 0.20.2."""
    quantization = context.checkpoint.quantization if context.checkpoint else None
    method = quantization.method if quantization else None
    return method == "compressed-tensors" and not context.is_mla and () < context.release < (0, 21)


def backend(context: Context) -> Iterator[Finding]:
    """One finding for the first kind of layer that has no kernel on one of the GPUs; a warning where the plan has cured it."""
    wished, planned = wished_dtype(context), kv_cache_dtype(context)
    refused = _refusal(context, wished)
    works = _engine_chose(context) or _refusal(context, planned) is None
    if refused is not None and planned != wished and works:
        yield _as_cured(refused, context)
    elif refused is not None and not _engine_chose(context):
        yield refused


def _engine_chose(context: Context) -> bool:
    """The engine itself, asked with the plan's flags, picked an attention backend: its word counts more than the table's."""
    answer = context.answer
    attention = [b for b in answer.backends if b.layer.startswith(("gqa", "mla", "sparse", "attention"))] if answer else []
    return answer is not None and answer.refusal is None and bool(attention) and all(b.chosen for b in attention)


def _refusal(context: Context, dtype: str) -> Finding | None:
    assert context.checkpoint is not None
    if context.device == "cpu":
        return _on_cpu(context, dtype)
    for layer in _decided_layers(context.checkpoint):
        for sm in context.sms:
            found = lookup(context.version, sm, layer, dtype)
            if found is not None and found.chosen is None:
                return _missing(context, found)
    return None


def _decided_layers(checkpoint: Checkpoint) -> list[str]:
    """Kinds of layers for which the general selector decides. DeepSeek-V4's own model code picks its kernels past it, from 0.22 on."""
    return [layer for layer in attention_layers(checkpoint) if not layer.endswith("(v4)")]


def _missing(context: Context, found: Choice) -> Finding:
    where = f"compute capability {capability(found.sm)}"
    if not found.known_dtype:
        return blocker(
            "kv-cache-dtype-unknown",
            f"{context.named} has no KV cache dtype {found.kv_cache_dtype}",
            evidence=[_said_by(context, found.kv_cache_dtype)],
            hint=_upgrade(context, found) or "--kv-cache-dtype auto",
        )
    if found.late:
        return blocker(
            "kv-cache-dtype-fails-late",
            f"{context.named} accepts a KV cache in {found.kv_cache_dtype} and dies while it builds the attention backend on {where}",
            evidence=[_said_by(context, found.kv_cache_dtype), f"the engine's words: {found.late}"],
            hint="--kv-cache-dtype fp8, or auto",
        )
    if found.kv_cache_dtype == "auto" or not _works_on_auto(context, found):
        return blocker(
            "attn-backend-unsupported",
            f"{context.named} has no attention backend for this model's attention on {where}",
            evidence=[f"layer {found.layer}, KV cache dtype {found.kv_cache_dtype}, {where}: no backend in release {found.release}"],
            hint=_upgrade(context, found) or f"another engine or GPU: no release up to the newest in the catalog has one for {where}",
        )
    return _no_backend_for_dtype(context, found, where)


def _works_on_auto(context: Context, found: Choice) -> bool:
    plain = lookup(context.version, found.sm, found.layer, "auto")
    return plain is not None and plain.chosen is not None


def _no_backend_for_dtype(context: Context, found: Choice, where: str) -> Finding:
    plain = lookup(context.version, found.sm, found.layer, "auto")
    return blocker(
        CODE,
        f"{context.named} has no attention backend for a KV cache in {found.kv_cache_dtype} on {where}",
        evidence=[
            _said_by(context, found.kv_cache_dtype),
            f"layer {found.layer}, KV cache dtype {found.kv_cache_dtype}, {where}: no backend in release {found.release}",
            f"with a 16-bit KV cache the release picks {plain.chosen if plain else None}",
        ],
        note=_note(context, found.kv_cache_dtype),
        hint="; or ".join(_cures(context, found)),
    )


def _said_by(context: Context, dtype: str) -> str:
    embedded = context.checkpoint.kv_cache_quantization if context.checkpoint else None
    if embedded and dtype == embedded.dtype:
        return f"the checkpoint asks for {dtype}: {', '.join(embedded.sources)}"
    return f"asked for: --kv-cache-dtype {dtype}"


def _note(context: Context, dtype: str) -> str | None:
    if dtype != context.embedded_kv_cache_dtype or context.command:
        return None
    return "`firstlight up` takes a cure by itself; the checkpoint is never touched"


def _cures(context: Context, found: Choice) -> list[str]:
    """In the order of what costs least, only what works in this release."""
    embedded = context.checkpoint.kv_cache_quantization if context.checkpoint else None
    cures = []
    if embedded is None or found.kv_cache_dtype != embedded.dtype:
        return ["--kv-cache-dtype auto", *_upgrades(context, found)]
    if _flag_works(context, found):
        cures.append("--kv-cache-dtype bfloat16")
    cures.append(f"an overlay without {' and '.join(embedded.sources)}")
    return [*cures, *_upgrades(context, found)]


def _flag_works(context: Context, found: Choice) -> bool:
    """`auto` follows the checkpoint, a 16-bit dtype does not, from 0.16 on, unless the loader forces the checkpoint's."""
    plain = lookup(context.version, found.sm, found.layer, "bfloat16")
    return not _forced(context) and context.release >= (0, 16) and (plain is None or plain.chosen is not None)


def _upgrades(context: Context, found: Choice) -> list[str]:
    upgrade = _upgrade(context, found)
    return [upgrade] if upgrade else []


def _upgrade(context: Context, found: Choice) -> str | None:
    first = first_release_with(found.sm, found.layer, found.kv_cache_dtype, after=found.release)
    return f"`firstlight engines install vllm@{first}`, the first release in the catalog that has one" if first else None


def _as_cured(finding: Finding, context: Context) -> Finding:
    """What would have blocked, had the plan not taken care of it."""
    assert context.candidate is not None
    changed = [f"{p.file}: {'.'.join(p.path)}" for p in context.candidate.overlay.patches] if context.candidate.overlay else []
    how = f"the plan's overlay removes {', '.join(changed)}" if changed else f"the plan sets --kv-cache-dtype {kv_cache_dtype(context)}"
    return replace(
        finding,
        severity=Severity.WARNING,
        evidence=[*finding.evidence, how],
        note="cured by the plan: the KV cache keeps the model's own 16 bits, twice the bytes of FP8; the checkpoint is not touched",
        hint=None,
    )


def _on_cpu(context: Context, dtype: str) -> Finding | None:
    """vLLM's CPU backend accepts the dtype for MLA, becomes ready, and dies on the first request (measured on 0.32.0)."""
    if not context.is_mla or dtype not in _FP8:
        return None
    embedded = context.checkpoint.kv_cache_quantization if context.checkpoint else None
    cures = [f"an overlay without {' and '.join(embedded.sources)}"] if embedded and dtype == embedded.dtype else ["--kv-cache-dtype auto"]
    return blocker(
        CODE,
        f"{context.named} on CPU has no MLA attention for a KV cache in {dtype}: it becomes ready and dies on the first request",
        evidence=[_said_by(context, dtype), "device: cpu, attention: MLA", "measured on vLLM 0.32.0"],
        note=_note(context, dtype),
        hint="; or ".join(cures),
    )


def fp8_available(context: Context) -> Iterator[Finding]:
    """FP8 halves the KV cache where a kernel reads it."""
    assert context.checkpoint is not None
    layers = attention_layers(context.checkpoint)
    sizes = context.checkpoint.kv_bytes_per_token
    plain, small = sizes.get("bf16"), sizes.get("fp8")
    if not layers or not context.sms or context.release == () or not plain or not small:
        return
    cells = [lookup(context.version, sm, layer, "fp8") for layer in layers for sm in context.sms]
    if not all(c is not None and c.chosen for c in cells):
        return
    used = kv_cache_dtype(context)
    names = ", ".join(sorted({str(c.chosen) for c in cells if c}))
    evidence = [f"{names} reads FP8 on compute capability {', '.join(map(capability, context.sms))} in {context.named}"]
    evidence.append(f"KV cache per token: {small:,} bytes instead of {plain:,}")
    times = f"{plain / small:.1f}".removesuffix(".0")
    if used in _FP8:
        yield remark("kv-cache-fp8", f"the KV cache is FP8: {times} times the tokens of a 16-bit one", evidence=evidence)
    elif used == "auto" and context.wished_kv_cache_dtype is None:
        message = f"an FP8 KV cache would hold {times} times the tokens"
        hint = "--kv-cache-dtype fp8, then `firstlight verify`: without scales in the checkpoint it costs some accuracy"
        yield remark("kv-cache-fp8", message, evidence=evidence, hint=hint)


CHECKS = (
    Check("attention-backend", ("checkpoint", "machine", "candidate"), backend, engines=("vllm",)),
    Check("kv-cache-fp8", ("checkpoint", "machine", "candidate"), fp8_available, engines=("vllm",)),
)
