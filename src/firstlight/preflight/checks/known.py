"""Dated rules of the catalog: combinations that are known to fail or to disappoint."""

from collections.abc import Iterator

from firstlight.catalog.quirks import Quirk, quirks
from firstlight.core.findings import Finding, Severity
from firstlight.engines.command import has_option
from firstlight.preflight.check import Check
from firstlight.preflight.checks.attention import kv_cache_dtype
from firstlight.preflight.context import Context


def known(context: Context) -> Iterator[Finding]:
    for quirk in quirks():
        if matches(quirk, context):
            yield Finding(
                code=quirk.code,
                severity=Severity(quirk.severity),
                message=quirk.message,
                evidence=[*quirk.seen, f"recorded {quirk.date}"],
                hint=quirk.hint,
                link=quirk.source if quirk.source.startswith("http") else None,
            )


def matches(quirk: Quirk, context: Context) -> bool:
    """Every condition that is given holds."""
    checkpoint = context.checkpoint
    quantization = checkpoint.quantization if checkpoint else None
    conditions = (
        quirk.engine == context.engine,
        quirk.covers(context.release),
        not quirk.sms or bool(set(quirk.sms) & set(context.sms)),
        quirk.device is None or quirk.device == context.device,
        quirk.mla is None or quirk.mla == context.is_mla,
        not quirk.kv_cache_dtypes or kv_cache_dtype(context) in quirk.kv_cache_dtypes,
        not quirk.methods or (quantization is not None and quantization.method in quirk.methods),
        not quirk.formats or (quantization is not None and quantization.format in quirk.formats),
        not quirk.model_types or (checkpoint is not None and checkpoint.model_type in quirk.model_types),
        not quirk.attention or (checkpoint is not None and checkpoint.attention in quirk.attention),
        not quirk.flags or any(_given(flag, context) for flag in quirk.flags),
        quirk.lm_head_quantized is None or quirk.lm_head_quantized == _lm_head_quantized(context),
    )
    return all(conditions)


def _given(flag: str, context: Context) -> bool:
    name, _, value = flag.partition("=")
    return has_option(context.args, name) and (not value or context.option(name) == value)


def _lm_head_quantized(context: Context) -> bool:
    """lm_head has scales in the files, and the ignore list names it."""
    groups = context.checkpoint.tensor_groups if context.checkpoint else []
    quantization = context.checkpoint.quantization if context.checkpoint else None
    listed = quantization is not None and any("lm_head" in entry for entry in quantization.ignore)
    return listed and any(g.pattern.startswith("lm_head.") and "scale" in g.pattern for g in groups)


CHECKS = (Check("known-combinations", ("engine",), known),)
