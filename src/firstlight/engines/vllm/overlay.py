"""When a checkpoint's embedded FP8 KV cache must be taken out, and which JSON keys that means."""

from firstlight.catalog.backends import attention_layers, choose, lookup
from firstlight.core.checkpoint import Checkpoint
from firstlight.core.machine import EngineInstall, Machine
from firstlight.core.plan import Candidate, JsonPatch, OverlaySpec
from firstlight.engines.command import option_value

_FULL_PRECISION = frozenset({"bf16", "bfloat16", "fp16", "float16", "half"})


def overlay_for(checkpoint: Checkpoint, candidate: Candidate, machine: Machine, install: EngineInstall | None) -> OverlaySpec | None:
    """The plan's own overlay, or the one that strips an embedded KV dtype that this build and device cannot serve; None: nothing.

    vLLM turns `auto` into the embedded dtype. Where no attention backend has it, a start fails late (GPU) or the first request
    kills a ready engine (CPU). A dtype that the user pinned is left alone: preflight speaks about it.
    """
    if candidate.overlay is not None:
        return candidate.overlay
    embedded = checkpoint.kv_cache_quantization
    if embedded is None or not embedded.sources or _pinned_to_embedded(candidate):
        return None
    why = no_backend(checkpoint, machine, install, embedded.dtype)
    if why is None:
        return None
    because = f"the checkpoint embeds a KV cache of {embedded.dtype}, and {why}"
    return OverlaySpec(patches=[_removal(source, because) for source in embedded.sources], because=because)


def no_backend(checkpoint: Checkpoint, machine: Machine, install: EngineInstall | None, dtype: str) -> str | None:
    """Why this build has no attention backend for a KV cache of `dtype` here, as a clause; None where it has one or nothing is known.

    GPUs: the table of what each release's own selector answers. CPU: the MLA decode kernel takes the query's dtype only.
    """
    version = install.version if install else None
    named = f"vLLM {version}" if version else "vLLM"
    if _on_cpu(machine, install):
        return f"{named} on CPU has no MLA attention with FP8 KV" if _is_mla(checkpoint) else None
    for sm in sorted({a.sm for a in machine.accelerators if a.sm is not None}):
        for layer in attention_layers(checkpoint):
            cell = lookup(version, sm, layer, dtype)
            if cell is not None and cell.chosen is None and choose(version, sm, layer) is not None:
                return f"{named} has no attention backend with it for {layer} on compute capability {sm / 10:.1f}"
    return None


def _on_cpu(machine: Machine, install: EngineInstall | None) -> bool:
    return install.device == "cpu" if install and install.device else not machine.accelerators


def _is_mla(checkpoint: Checkpoint) -> bool:
    return (checkpoint.attention or "").endswith("mla") or any("mla" in g.kind for g in checkpoint.kv_cache_groups)


def _pinned_to_embedded(candidate: Candidate) -> bool:
    """An FP8 KV dtype that stands in the flags was asked for; full precision in the flags does not reach every loader."""
    asked = option_value(candidate.args, "--kv-cache-dtype") or candidate.kv_cache_dtype
    return asked is not None and asked != "auto" and asked not in _FULL_PRECISION


def _removal(source: str, because: str) -> JsonPatch:
    """`config.json:quantization_config.kv_cache_scheme` as a patch."""
    file, _, path = source.partition(":")
    return JsonPatch(file=file, path=path.split("."), remove=True, because=because)
