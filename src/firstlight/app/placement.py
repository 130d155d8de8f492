"""Where fetched weights lie, how fast they read there, and which loader suits: a note with its figures."""

import os
import shlex
from pathlib import Path

from firstlight.catalog.loaders import LoadAdvice, Place, advise
from firstlight.core.fetch import Fetched
from firstlight.core.findings import Finding, Severity
from firstlight.core.units import format_bytes, format_seconds


def placement(fetched: Fetched, engine: str | None) -> Finding:
    """Reads for up to two seconds. engine: `vllm@0.32.0`, `llamacpp`, or None for vLLM of an unknown release."""
    from firstlight.fetch.storage import measure_place

    name, _, version = (engine or "vllm").partition("@")
    place = measure_place(Path(fetched.path))
    advice = advise(name, version or None, place, weight_bytes=fetched.bytes_total, memory_bytes=_memory())
    rate = place.read_bytes_per_second
    speed = f", read at {format_bytes(rate, digits=1)}/s" if rate else ", read speed unknown"
    return Finding(
        code="placement",
        severity=Severity.NOTE,
        message=f"the weights lie on {place.kind}{speed}",
        evidence=[advice.because, _load_time(advice)],
        hint=_hint(advice, place, fetched),
    )


def _load_time(advice: LoadAdvice) -> str:
    low, high = advice.seconds.low, advice.seconds.high
    if low is None:
        return "load time unknown"
    upper = f"to {format_seconds(high)}" if high is not None else "or more"
    return f"from storage to ready weights: {format_seconds(low)} {upper} (computed: {advice.seconds.because})"


def _hint(advice: LoadAdvice, place: Place, fetched: Fetched) -> str | None:
    if advice.stage:
        return f"copy them to a local disk once: firstlight fetch {shlex.quote(fetched.path)} --to DIR"
    return f"start the engine with {shlex.join(advice.args)}" if advice.args else None


def _memory() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
