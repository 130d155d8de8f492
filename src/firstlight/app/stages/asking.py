"""The second rung inside `up`: the engine itself says what it will pick and need, before anything is loaded."""

from firstlight.app.elsewhere import places_of
from firstlight.app.session import Session
from firstlight.app.stages import look
from firstlight.app.whole import interruptible
from firstlight.core.answer import EngineAnswer
from firstlight.core.errors import FirstlightError
from firstlight.core.findings import Finding, Severity
from firstlight.core.ports import Host
from firstlight.core.units import gib


async def ask(session: Session) -> str:
    """Asks the installed build about the plan, and plans again with its answer. An engine that cannot be asked costs nothing."""
    if because := _not_needed(session):
        return because
    try:
        answer = await interruptible(_ask, session.host, session)
    except FirstlightError as e:
        return f"not asked: {e.message}"
    session.answer = answer
    session.save(answer, "answer.json")
    session.add([*answer.findings, *_refusal(answer)])
    if answer.per_gpu is not None:
        await look.plan(session)
    return _summary(answer)


def _not_needed(session: Session) -> str | None:
    engine, mode = session.best.engine.name, session.options.ask
    if mode == "never":
        return "not asked, as told"
    if engine != "vllm":
        return f"{engine} is not asked"
    if mode == "auto" and (session.install is None or session.install.device in (None, "cpu") or session.model.path is None):
        return "nothing to ask: no GPU build, or no folder yet"
    return None


def _ask(host: Host, session: Session) -> EngineAnswer:
    from firstlight.ask.ask import ask as ask_engine

    assert session.machine is not None
    return ask_engine(
        host,
        checkpoint=session.model,
        machine=session.machine,
        candidate=session.best,
        install=session.install,
        wheel=None,
        cache=f"{places_of(session.host).cache}/ask",
        on_step=lambda text: _tell(session, text),
    )


def _tell(session: Session, text: str) -> None:
    session.emitter.emit("phase", name=text)


def _refusal(answer: EngineAnswer) -> list[Finding]:
    """The engine's own no, known before a byte of weights is read."""
    if answer.refusal is None:
        return []
    from firstlight.diagnose.diagnose import diagnose

    found = diagnose(answer.refusal.encode(), engine=answer.engine, version=answer.version)
    hint = next((r.action or str(r.change) for r in found.remedies if r.action or r.change), None)
    return [
        Finding(
            code=found.cause.code if found.cause else "engine-refuses",
            severity=Severity.BLOCKER,
            message="the engine refuses this plan",
            evidence=answer.refusal.strip().splitlines()[-3:],
            hint=hint,
        )
    ]


def _summary(answer: EngineAnswer) -> str:
    if answer.refusal is not None:
        return f"{answer.engine} refuses: {answer.refusal.strip().splitlines()[-1][:120]}"
    if answer.per_gpu is None:
        why = next((f.message for f in answer.findings), "no figures")
        return f"no answer ({why}); the computed plan stands"
    chosen = ", ".join(dict.fromkeys(b.chosen for b in answer.backends if b.chosen))
    weights = answer.per_gpu.weights.mid
    return f"weights {gib(weights)} a GPU · {chosen}" if chosen else f"weights {gib(weights)} a GPU"
