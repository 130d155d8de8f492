"""The engine's end as an error: its diagnosis, written into the run and shown with its decisive lines."""

import asyncio
from typing import Any

from firstlight.app.session import Session
from firstlight.app.views.diagnosis import what
from firstlight.core.diagnosis import Cause, Diagnosis
from firstlight.core.errors import EngineError, HostError
from firstlight.core.ports import Host
from firstlight.core.units import GIB


class EngineFailed(EngineError):
    """The engine ended, or will never be ready; carries the diagnosis that healing works from."""

    def __init__(self, diagnosis: Diagnosis, *, evidence: tuple[str, ...], hint: str | None) -> None:
        code, title = diagnosis.headline
        super().__init__(code, title, evidence=evidence, hint=hint)
        self.diagnosis = diagnosis


async def failed(session: Session, data: dict[str, Any], *, end: int | None = None) -> EngineFailed:
    """The diagnosis of a dead engine, written into the run and shown with its decisive lines. end: the byte of the log where another
    life of the engine begins.
    """
    assert session.folder is not None
    session.emitter.emit("died", **data)
    log = session.log_there
    text = (await asyncio.to_thread(_read, session.host, log))[:end]
    if not session.host.is_local:
        session.folder.write(f"attempts/{session.attempt}/engine.log", text)  # a bug report needs it here
    diagnosis = never_started(data)
    if diagnosis is None:
        diagnosis = await asyncio.to_thread(_diagnose, session, text, data)
    session.save(diagnosis, "diagnosis.json")
    session.save(diagnosis, f"attempts/{session.attempt}/diagnosis.json")
    evidence = [_how_it_ended(data), *_decisive(diagnosis, text), f"full log: {log}"]
    return EngineFailed(diagnosis, evidence=tuple(e for e in evidence if e), hint=first_hint(diagnosis))


async def died_since(session: Session, byte: int) -> EngineFailed | None:
    """Of an engine that died while it was verified: why it died, and not what the checks saw of it. byte: of the supervisor's events."""
    events = await asyncio.to_thread(session.supervisor.past_events, byte) if session.supervisor is not None else []
    death = next((i for i, event in enumerate(events) if event.kind == "died"), None)
    if death is None:
        return None
    next_life = [event.data.get("log_offset") for event in events[death:] if event.kind == "engine-started"]
    return await failed(session, events[death].data, end=next_life[0] if next_life else None)


async def port_stolen(session: Session, data: dict[str, Any]) -> EngineFailed:
    """The engine is ended, since nobody would reach it. vLLM may not end itself: it binds early, listens once loaded, and hangs."""
    holder = str(data["holder"])
    session.emitter.emit("say", text=f"another program took port {data['port']}: {holder}")
    await asyncio.to_thread(session.supervisor.stop, grace_seconds=0)
    cause = Cause(code="port-in-use", title=f"another program took port {data['port']} while the engine started", confidence=1.0)
    diagnosis = Diagnosis(outcome="failed", phase="spawned", cause=cause)
    session.save(diagnosis, "diagnosis.json")
    session.save(diagnosis, f"attempts/{session.attempt}/diagnosis.json")
    return EngineFailed(diagnosis, evidence=(holder,), hint="--port N names a port that is kept free")


def _diagnose(session: Session, text: bytes, data: dict[str, Any]) -> Diagnosis:
    from firstlight.diagnose.diagnose import diagnose

    status = data.get("returncode")
    return diagnose(
        text,
        engine=session.launch.engine if session.launch else None,
        version=session.install.version if session.install else None,
        exit_status=status if isinstance(status, int) else None,
        context=({"cgroup_oom_kills": 1} if data.get("oom_killed") else {}) | _gpu_size(session),
    )


def _gpu_size(session: Session) -> dict[str, float]:
    """What a remedy in shares of the GPU needs, and the engine prints only at DEBUG."""
    budget = session.plan_set.best.per_gpu if session.plan_set is not None and session.plan_set.best is not None else None
    total = budget.total.mid if budget is not None else None
    return {"device_total_gib": round(total / GIB, 2)} if total else {}


def _decisive(diagnosis: Diagnosis, text: bytes) -> list[str]:
    """The cause's lines, or the earliest exception, or how the log ends."""
    if diagnosis.cause is not None:
        return [f"line {e.line}: {e.text.strip()[:200]}" for e in diagnosis.cause.evidence[:4]]
    if diagnosis.unknown is not None and diagnosis.unknown.first_exception:
        return [diagnosis.unknown.first_exception[:300]]
    return last_lines(text)


def never_started(data: dict[str, Any]) -> Diagnosis | None:
    """The supervisor's own word where it could not even start the engine; None where the engine ran."""
    if "message" not in data or not data.get("reason"):
        return None
    code = str(data["reason"])
    return Diagnosis(outcome="failed", phase="spawned", cause=Cause(code=code, title=str(data["message"]), confidence=1.0))


def _read(host: Host, log: str) -> bytes:
    try:
        return host.read(log)
    except HostError:
        return b""


def last_lines(text: bytes, count: int = 4) -> list[str]:
    return [line[:200] for line in text.decode("utf-8", "replace").splitlines() if line.strip()][-count:]


def _how_it_ended(data: dict[str, Any]) -> str:
    if data.get("signal"):
        return f"the engine was killed by {data['signal']}{' of the OOM killer' if data.get('oom_killed') else ''}"
    if data.get("returncode") is not None:
        return f"the engine ended with exit code {data['returncode']}"
    return str(data.get("reason") or "")


def first_hint(diagnosis: Diagnosis) -> str | None:
    """The first remedy in words a person can use."""
    engine = diagnosis.facts.get("engine")
    for remedy in diagnosis.remedies:
        if said := what(remedy, str(engine) if engine else None):
            return f"{said}: {remedy.because}" if remedy.change and remedy.because else said
    return None
