"""Where fetched weights lie, how fast they read there, and which loader suits: a note with its figures."""

import os
import re
import shlex
from collections.abc import Iterable
from pathlib import Path

from firstlight.catalog.loaders import LoadAdvice, Place, advise
from firstlight.core.fetch import Fetched
from firstlight.core.findings import Finding, Severity
from firstlight.core.machine import EngineInstall
from firstlight.core.ports import Host
from firstlight.core.units import format_bytes, format_seconds

PER_RANK = re.compile(r"model-rank-\d+-part-\d+\.safetensors")


def placement(fetched: Fetched, engine: str | None) -> Finding:
    """Reads for up to two seconds. engine: `vllm@0.32.0`, `llamacpp`; None: what is installed here, else vLLM of an unknown release."""
    from firstlight.fetch.storage import measure_place
    from firstlight.probe.local import LocalHost

    name, _, version = (engine or _natural(fetched)).partition("@")
    install = _installed(LocalHost(), name, version)
    place = measure_place(Path(fetched.path))
    advice = advise(
        name,
        version or (install.version if install else None),
        place,
        weight_bytes=fetched.bytes_total,
        memory_bytes=_memory(),
        gpus=_gpus(LocalHost()) if name == "vllm" else 0,
        packages=install.packages if install else None,
        per_rank=any(PER_RANK.fullmatch(f.rpartition("/")[2]) for f in fetched.files),
    )
    rate = place.read_bytes_per_second
    speed = f", read at {format_bytes(rate, digits=1)}/s" if rate else ", read speed unknown"
    return Finding(
        code="placement",
        severity=Severity.NOTE,
        message=f"the weights lie on {place.kind}{speed}",
        evidence=[_chosen(advice, install), _load_time(advice), *_others(advice)],
        hint=_hint(advice, place, fetched),
    )


def _natural(fetched: Fetched) -> str:
    return "llamacpp" if fetched.path.endswith(".gguf") else "vllm"


def _installed(host: Host, name: str, version: str) -> EngineInstall | None:
    """The engine of that name here; another release than the one that was named says nothing about it."""
    from firstlight.app.looking import engine_hints, find_here

    found: Iterable[EngineInstall] = find_here(host, engine_hints(host, None))
    return next((i for i in found if i.engine == name and version in ("", i.version)), None)


def _gpus(host: Host) -> int:
    from firstlight.probe.machine import probe_machine

    return sum(a.vendor == "nvidia" for a in probe_machine(host).accelerators or [])


def _chosen(advice: LoadAdvice, install: EngineInstall | None) -> str:
    who = f"{install.engine} {install.version}" if install and install.version else ""
    return f"loader {advice.loader}{f' for {who}' if who else ''}: {advice.because}"


def _others(advice: LoadAdvice) -> list[str]:
    return [f"not {name}: {why}" for name, why in advice.others.items()]


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
