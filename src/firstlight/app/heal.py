"""The healing loop: failure -> diagnosis -> remedy -> constraint -> plan again. Never the same plan twice, every step on record."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from firstlight.app import flow
from firstlight.app.ending import supervisor_ended
from firstlight.app.freeing import came_back
from firstlight.app.knowledge import asked, learn
from firstlight.app.session import Session
from firstlight.app.stages.failing import EngineFailed
from firstlight.app.stages.yielding import yielded
from firstlight.app.steps import Step
from firstlight.app.story import tell
from firstlight.core.diagnosis import Diagnosis, Remedy, Safety
from firstlight.core.errors import FirstlightError
from firstlight.core.ids import digest
from firstlight.core.intent import Pins
from firstlight.core.plan import Constraint, PlanSet
from firstlight.core.units import GIB

ATTEMPT = ("overlay", "launch", "watch")
SWEEP_SECONDS = 30.0

PINS = frozenset(f.name for f in msgspec.structs.fields(Pins))
ALTERING = frozenset({"quantization", "trust_remote_code", "hf_overrides", "revision", "tokenizer", "chat_template", "speculative_config"})
# Values that keep the model's own precision; anything else rounds.
PLAIN = {"kv_cache_dtype": ("auto", "bfloat16", "float16", "None"), "dtype": ("auto", "bfloat16", "float32", "None")}

ANOTHER_PORT = Remedy(change={"port": None}, safety=Safety.SAFE, because="nobody asked for this port, and another is as good")


async def start_with_remedies(session: Session) -> None:
    """Starts the plan; a failure with an allowed remedy is planned around, at most `attempts` times.

    Raises EngineFailed when no remedy is left, is allowed, or changes anything.
    """
    stages = [s for s in flow.STAGES if s.name in ("overlay", "rehearse", *ATTEMPT)]
    seen: set[str] = set()
    healed: list[Constraint] = []
    tried: dict[str, Any] = {}
    consents: dict[str, str] = {}
    waited: str | None = None
    while True:
        try:
            seen.add(_identity(session))
            _raise_refuted(session)
            await flow.run_stages(session, stages if session.attempt == 1 else [s for s in stages if s.name in ATTEMPT])
        except EngineFailed as failure:
            step = Step(attempt=session.attempt, tried=_tried(session), saw=f"{failure.code}: {failure.message}")
            if waited is None and session.attempt < session.options.attempts:
                waited = await came_back(session, failure.diagnosis)
                if waited is not None:
                    tell(session, msgspec.structs.replace(step, changed="nothing", because=waited))
                    await _next_attempt(session)
                    continue
            withheld: list[Remedy] = []
            remedy = None if session.attempt >= session.options.attempts else choose(session, failure.diagnosis, withheld)
            if remedy is None:
                tell(session, msgspec.structs.replace(step, because=advise(failure, withheld)))
                raise
            constraints = constraints_of(failure.diagnosis, remedy)
            _remember(session, constraints, healed, tried)
            if remedy.safety is Safety.ASK:
                consents |= {c.field: consent_name(remedy) for c in constraints}
            tell(session, msgspec.structs.replace(step, changed=_changes(constraints), because=remedy.because))
            await _plan_again(session, constraints, seen, failure)
        else:
            if healed:
                _learn(session, healed, tried, consents)
            return


def _remember(session: Session, constraints: Sequence[Constraint], healed: list[Constraint], tried: dict[str, Any]) -> None:
    """The last word on each field, and the value that failed first."""
    fields = {c.field for c in constraints}
    healed[:] = [*(c for c in healed if c.field not in fields), *constraints]
    for name in fields:
        tried.setdefault(name, getattr(session.best, name, None) or asked(session.intent, name))


def _learn(session: Session, healed: Sequence[Constraint], tried: dict[str, Any], consents: dict[str, str]) -> None:
    """The next `up` of this model on this machine begins where this one arrived."""
    lesson = learn(session, healed, tried, consents)
    if lesson is not None:
        text = f"the next start of this model here begins with {_changes(lesson.constraints)}; firstlight knowledge forget {lesson.id}"
        session.emitter.emit("say", text=text)


def _raise_refuted(session: Session) -> None:
    """A plan that its rehearsal refuted while the weights downloaded is not launched."""
    if session.refuted is not None:
        refuted, session.refuted = session.refuted, None
        raise refuted


def advise(failure: EngineFailed, withheld: Sequence[Remedy]) -> str | None:
    """What healing did not do, as lines of the failure: what needs a yes, with the flag that says it, and what only a person can do.

    Returns why nothing was changed, for the story.
    """
    flags = [f"--allow {consent_name(remedy)}" for remedy in withheld]
    asked_for = [f"needs a yes ({flag}): {_with_reason(remedy)}" for flag, remedy in zip(flags, withheld, strict=True)]
    others = [r for r in failure.diagnosis.remedies if r.safety is Safety.NEVER or not r.change]
    by_hand = [f"by hand: {r.action or _words(r.change or {})}" for r in others if (r.action or _words(r.change or {})) != failure.hint]
    failure.evidence = (*failure.evidence, *asked_for, *by_hand)
    if not flags:
        return None
    failure.hint = f"firstlight up … {flags[0]}" + (f"; or: {failure.hint}" if failure.hint else "")
    return f"what would change it needs a yes: {', '.join(flags)}"


def _with_reason(remedy: Remedy) -> str:
    return _words(remedy.change or {}) + (f", because {remedy.because}" if remedy.because else "")


def choose(session: Session, diagnosis: Diagnosis, withheld: list[Remedy] | None = None) -> Remedy | None:
    """The first remedy that changes the plan and may be done: safe ones alone, `ask` ones with a yes or `--allow`.

    withheld: gains those that nobody said yes to.
    """
    if diagnosis.cause is not None and diagnosis.cause.code == "port-in-use" and session.intent.port is None:
        return ANOTHER_PORT
    in_force = [(c.field, c.value) for c in session.constraints]
    for remedy in diagnosis.remedies:
        if not remedy.change or remedy.safety is Safety.NEVER or not believed(remedy, diagnosis.facts, session.plan_set):
            continue
        if all((c.field, c.value) in in_force for c in constraints_of(diagnosis, remedy)):
            continue  # it did not help
        if remedy.safety is Safety.SAFE and not touches_quality(remedy):
            return remedy
        if session.consent.given(consent_name(remedy), f"Change {_words(remedy.change)}?", evidence=(remedy.because,)):
            return remedy
        if withheld is not None:
            withheld.append(remedy)
    return None


def believed(remedy: Remedy, facts: Mapping[str, Any], plan_set: PlanSet | None) -> bool:
    """Engines advise a larger share of the GPU whenever memory is short: no remedy where the share gains less than what is missing."""
    new, old = (remedy.change or {}).get("gpu_memory_utilization"), facts.get("gpu_memory_utilization")
    best = plan_set.best if plan_set else None
    if new is None or old is None or new <= old or best is None or best.per_gpu is None or best.per_gpu.total.mid is None:
        return True
    missing = facts["kv_needed_gib"] - facts["kv_available_gib"] if "kv_needed_gib" in facts else -facts.get("kv_cache_gib", 0.0)
    return bool((new - old) * best.per_gpu.total.mid / GIB > missing)


def touches_quality(remedy: Remedy) -> bool:
    """Whether the change can alter answers or let foreign code run: then it needs a yes, whatever its rule says."""
    change = {k.lstrip("-").replace("-", "_"): str(v) for k, v in (remedy.change or {}).items()}
    return bool(ALTERING & change.keys()) or any(change.get(k, "auto") not in plain for k, plain in PLAIN.items())


def consent_name(remedy: Remedy) -> str:
    """What `--allow` takes: `kv-cache-dtype`."""
    return "-".join(sorted(w.lstrip("-") for w in remedy.change or {})).replace("_", "-")


def constraints_of(diagnosis: Diagnosis, remedy: Remedy) -> list[Constraint]:
    """What the remedy changes, as the planner takes it: fields of Pins, the engine's flags, `env.NAME`."""
    source = diagnosis.cause.code if diagnosis.cause else "unknown"
    pairs = [_constrained(name, value) for name, value in (remedy.change or {}).items()]
    return [Constraint(field=field, op="==", value=value, because=remedy.because, source=source) for field, value in pairs]


def _constrained(name: str, value: Any) -> tuple[str, Any]:
    """A variable of the environment has a name in capitals; a flag of the engine's own is taken back by its `no-`."""
    if name.isupper():
        return f"env.{name}", value
    plain = {"bind": "host"}.get(name, name.lstrip("-").replace("-", "_"))
    if plain == "host":
        return plain, value
    return (f"no_{plain}", True) if value is False and plain not in PINS else (name, value)


async def _plan_again(session: Session, constraints: Sequence[Constraint], seen: set[str], failure: EngineFailed) -> None:
    """The next plan under the new constraints. Raises the failure when the plan would be one that was tried."""
    await _next_attempt(session)
    if all(c.field == "port" for c in constraints):
        return  # the plan stands; launch picks a port that is free now
    session.intent = yielded(session.intent, constraints)
    session.constraints.extend(c for c in constraints if c.field != "port")
    await flow.run_stages(session, [s for s in flow.STAGES if s.name == "plan"])
    if _identity(session) in seen:
        raise failure


async def _next_attempt(session: Session) -> None:
    await asyncio.to_thread(_swept, session)
    await _release(session)
    session.attempt += 1


def _swept(session: Session) -> None:
    """A supervisor says `failed` before it has ended what the engine left: the next attempt would find its memory taken, and be swept too.

    Raises FirstlightError `not-clean` when that takes more than SWEEP_SECONDS.
    """
    client, session.supervisor = session.supervisor, None
    if client is not None and not supervisor_ended(client, SWEEP_SECONDS):
        raise FirstlightError(
            "not-clean",
            "what the failed attempt left does not end, so there is no next one",
            evidence=(f"its supervisor's folder: {client.folder}",),
            hint=f"firstlight down {session.name} --kill",
        )


async def _release(session: Session) -> None:
    """Facts that the failed attempt changed: which ports are taken."""
    from firstlight.probe.machine import probe_machine

    fresh = await asyncio.to_thread(probe_machine, session.host)
    if session.machine is not None:
        session.machine = msgspec.structs.replace(fresh, engines=session.machine.engines)


def _identity(session: Session) -> str:
    best = session.best
    return digest([best.args, best.env, best.overlay, session.intent.extra_args, session.intent.port])


def _tried(session: Session) -> str:
    from firstlight.app.stages import describe

    return describe.layout(session.best)


def _changes(constraints: Sequence[Constraint]) -> str:
    return ", ".join(f"{c.field} {c.op if c.op != '==' else '='} {'another' if c.value is None else c.value}" for c in constraints)


def _words(change: dict[str, Any]) -> str:
    return ", ".join(f"{k} to {v}" for k, v in change.items())
