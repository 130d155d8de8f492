"""Asks the engine itself: the second rung. Picks the interpreter, puts the question, reads the answer, remembers it."""

from collections.abc import Callable
from typing import Any

import msgspec

from firstlight.ask.answer import read_answer
from firstlight.ask.folder import model_folder
from firstlight.ask.indexes import required_names
from firstlight.ask.inside import run_inside, scripts
from firstlight.ask.request import Gpu, cpu_of, gpu_of, request
from firstlight.ask.wheels import engine_source, read_contents
from firstlight.core.answer import EngineAnswer
from firstlight.core.checkpoint import Checkpoint
from firstlight.core.errors import FirstlightError, UsageError
from firstlight.core.findings import Finding, Severity
from firstlight.core.ids import digest
from firstlight.core.machine import EngineInstall, Machine
from firstlight.core.plan import Candidate
from firstlight.core.ports import Host, Source
from firstlight.core.schema import decode, encode

TIMEOUT = 120.0
MEMORY = 4 << 30
Step = Callable[[str], None]


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """How the engine is reached. source: an unpacked wheel (None: what is installed there); build: what the answer is about.

    real: the machine's own GPU is asked, nothing is spoofed.
    """

    python: str
    build: str
    source: str | None = None
    extensions: list[str] = []
    required: list[str] = []
    real: bool = False


def ask(
    host: Host,
    *,
    checkpoint: Checkpoint,
    machine: Machine,
    candidate: Candidate,
    install: EngineInstall | None,
    wheel: str | None,
    cache: str,
    timeout: float = TIMEOUT,
    memory_limit_bytes: int = MEMORY,
    asking: EngineInstall | None = None,
    source: Source | None = None,
    on_step: Step = lambda text: None,
) -> EngineAnswer:
    """The engine's answer about `candidate`, from `install` or from a released wheel (`vllm==0.16.0`) run by `asking`.

    source: where the model's JSON files come from when it has no folder on `host`. cache: a folder on `host`.
    Raises FirstlightError when the question cannot be put; what the engine cannot answer is a finding.
    """
    if candidate.engine.name == "llamacpp":
        from firstlight.ask.llamacpp import ask_llamacpp

        return ask_llamacpp(host, checkpoint=checkpoint, candidate=candidate, install=install, cache=cache, timeout=timeout)
    on_cpu = not machine.accelerators and install is not None and install.device == "cpu" and wheel is None
    gpu = cpu_of(machine) if on_cpu else gpu_of(machine)
    where = place(host, install=install, wheel=wheel, asking=asking, machine=machine, cache=cache, on_step=on_step)
    folder = model_folder(host, checkpoint, source, cache, candidate.overlay)
    question = request(candidate, gpu, folder)
    key = _key(host, where, question, folder)
    remembered = f"{cache}/answers/{key}.json"
    if (known := _recall(host, remembered)) is not None:
        return known
    on_step(f"asking vLLM {where.build} about rank {', '.join(map(str, question['ranks']))}")
    answer = _put(host, where, question, candidate, gpu, cache=cache, timeout=timeout, memory=memory_limit_bytes)
    if not any(f.code in ("asking-too-slow", "asking-failed") for f in answer.findings):
        host.write(remembered, encode(answer))
    return answer


def _put(
    host: Host, where: Where, question: dict[str, Any], candidate: Candidate, gpu: Gpu, *, cache: str, timeout: float, memory: int
) -> EngineAnswer:
    whole = {
        **question,
        "gpu": None if where.real else question["gpu"],
        "device": None if gpu.sm else "cpu",
        "source": where.source,
        "extensions": where.extensions,
        "required": where.required,
        "memory_limit_bytes": memory,
        "cache_root": f"{cache}/engine-notes/{where.build}",
    }
    try:
        raw = run_inside(host, where.python, whole, cache=cache, timeout=timeout)
    except FirstlightError as e:
        if e.code != "asking-failed":
            raise
        return _no_answer(where, e.code, e.message, list(e.evidence))
    try:
        answer = read_answer(raw, candidate, gpu, build=where.build, real=where.real)
        return decode(encode(answer), EngineAnswer)  # every value of its own type, or it is no answer
    except (LookupError, TypeError, ValueError, AttributeError, FirstlightError) as e:
        text = "what the engine's environment printed is no answer of our script"
        return _no_answer(where, "engine-not-understood", text, [f"{type(e).__name__}: {e}"[:300], f"found: {str(raw)[:200]}"])


def _no_answer(where: Where, code: str, message: str, evidence: list[str]) -> EngineAnswer:
    finding = Finding(code=code, severity=Severity.WARNING, message=message, evidence=evidence, note="computed figures stand")
    return EngineAnswer(engine="vllm", version=where.build, build=where.build, findings=[finding])


def _recall(host: Host, path: str) -> EngineAnswer | None:
    """An answer that was kept; None where there is none or the file is damaged, and then it is asked anew."""
    if host.stat(path) is None:
        return None
    try:
        return decode(host.read(path), EngineAnswer, origin=path)
    except FirstlightError:
        return None


def place(
    host: Host,
    *,
    install: EngineInstall | None,
    wheel: str | None,
    asking: EngineInstall | None,
    machine: Machine,
    cache: str,
    on_step: Step = lambda text: None,
) -> Where:
    """Which Python answers. A CPU build holds another set of kernels, so GPUs are asked about through the release's CUDA wheel.

    Raises UsageError `no-asking-environment`, FirstlightError `release-not-found`.
    """
    serves_here = install is not None and (install.device != "cpu" or not machine.accelerators)
    if install is not None and install.python and wheel is None and serves_here:
        real = not machine.imagined and (bool(machine.accelerators) or install.device == "cpu")
        return Where(python=install.python, build=f"{install.build or install.version}@{digest(install.python)}", real=real)
    if wheel is None and install is not None and install.version:
        wheel = f"vllm=={install.version}"
    helper = asking or (install if install is not None and install.device == "cpu" else None)
    if wheel is None or helper is None or helper.python is None:
        raise UsageError(
            "no-asking-environment",
            "there is no environment to ask in",
            evidence=(f"engine: {wheel or 'none named'}",),
            hint="firstlight engines install vllm --cpu, once; releases are then asked with --engine-wheel vllm==VERSION",
        )
    folder = engine_source(host, helper.python, wheel, f"{cache}/wheels", on_step=on_step)
    contents = read_contents(folder)
    required = required_names(contents.requires)
    build = f"{contents.version}-{(contents.sha256 or '')[:8]}"
    return Where(python=helper.python, build=build, source=folder, extensions=contents.extensions, required=required)


def _key(host: Host, where: Where, question: dict[str, Any], folder: str) -> str:
    """(engine build, asking scripts, question, the model's configuration): the same key is the same answer."""
    asked = digest(question | {"model": None})
    asking = digest(sorted((name, digest(data)) for name, data in scripts("vllm", "asking").items()))
    return digest([where.build, asking, asked, _config_digest(host, folder)], length=24)


def _config_digest(host: Host, folder: str) -> str:
    """The files that decide an answer: the model's JSON and Python, not its weights."""
    files = [f for f in host.list(folder) if f.path.endswith((".json", ".py")) and f.size < 4 << 20 and not f.path.endswith(".index.json")]
    return digest(sorted((f.path.rsplit("/", 1)[-1], digest(host.read(f.path))) for f in files))
