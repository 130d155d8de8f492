"""What can be known before anything starts: inspect, probe, preflight, plan."""

import asyncio

from firstlight.app import looking
from firstlight.app.drafting import look_at_drafter, with_reason
from firstlight.app.knowledge import recall_into
from firstlight.app.session import Session
from firstlight.app.stages import describe, fitting, stale
from firstlight.app.stages.yielding import yielded
from firstlight.app.whole import interruptible
from firstlight.catalog.presets import find_preset
from firstlight.core.errors import Exit, FirstlightError
from firstlight.core.fetch import Fetched
from firstlight.core.findings import Finding, blockers
from firstlight.core.machine import EngineInstall, Machine
from firstlight.core.plan import EngineRef, PlanSet
from firstlight.core.ports import EngineAdapter
from firstlight.core.units import format_bytes


async def inspect(session: Session) -> str:
    """Headers and configs only: nothing is downloaded for a model that will not fit. A preset is fetched, being small and pinned."""
    preset = find_preset(session.intent.model)
    fetched = await _preset_file(session) if preset else None
    where = fetched.path if fetched else session.intent.model
    found = await asyncio.to_thread(looking.read_checkpoint, where, session.host)
    if preset:
        found = looking.named_as(preset, session.intent.model, found)
    session.checkpoint = found
    session.drafter = await asyncio.to_thread(look_at_drafter, session.intent, found, session.host)
    session.save(session.checkpoint, "checkpoint.json")
    session.add(session.checkpoint.findings)
    came = f" · {format_bytes(fetched.bytes_fetched)} fetched" if fetched and fetched.bytes_fetched else ""
    return describe.checkpoint(session.checkpoint) + came


async def _preset_file(session: Session) -> Fetched:
    """Raises FirstlightError `not-fetched` in a dry run, which downloads nothing."""
    from firstlight.app.stages.start import fetch_model

    if session.options.dry_run:
        await asyncio.to_thread(looking.place_of, session.intent.model)
    return await fetch_model(session)


async def probe(session: Session) -> str:
    hints = looking.engine_hints(session.host, session.intent.engine_python)
    machine = await interruptible(
        looking.look_at_machine, session.host, session.model, hints=hints, adapters=session.adapters, raw=session.raw
    )
    session.machine = machine
    session.save(machine, "machine.json")
    if session.folder:
        for name, text in session.raw.items():
            session.folder.write(f"probe/{name}.txt", text.encode())
    session.add(machine.findings)
    session.adapter, session.install = _installed_engine(session, machine)
    return describe.machine(machine, session.install)


def _installed_engine(session: Session, machine: Machine) -> tuple[EngineAdapter, EngineInstall]:
    """Raises FirstlightError `engine-missing`: what starts something needs more than a choice."""
    name, _, version = (session.intent.engine or "").partition("@")
    chosen = looking.choose_engine(
        session.model,
        machine.engines,
        EngineRef(name=name, version=version or None) if name else None,
        adapters=session.adapters,
        engine_python=session.intent.engine_python,
    )
    if chosen.install is None:
        raise looking.engine_missing(chosen, session.model, machine, session.intent.engine_python)
    return chosen.adapter, chosen.install


async def preflight(session: Session) -> str:
    """Every check runs; blockers stop the run after the plan has been shown, so that nobody meets them one by one."""
    found = await asyncio.to_thread(_checks, session)
    session.add(found)
    return count_findings(found)


def _checks(session: Session) -> list[Finding]:
    from firstlight.preflight.context import Context
    from firstlight.preflight.run import run_checks

    best = session.plan_set.best if session.plan_set else None
    context = Context(
        checkpoint=session.checkpoint,
        machine=session.machine,
        intent=session.intent,
        candidate=best,
        install=session.install,
        answer=session.answer,
    )
    return run_checks(context, ignore=session.options.ignore)


def count_findings(findings: list[Finding]) -> str:
    severities = [str(f.severity) for f in findings if not f.ignored]
    counts = {s: severities.count(s) for s in ("blocker", "warning", "note") if s in severities}
    return ", ".join(f"{n} {s}{'s' if n > 1 else ''}" for s, n in counts.items()) or "nothing found"


async def plan(session: Session) -> str:
    if session.saved is not None and not session.constraints:
        stale.refuse_stale(session.saved, session.model, session.machine, session.install)
        session.plan_set = session.saved.plan
    else:
        _remember(session)
        session.plan_set = await _fitting_plan(session)
    found = [*session.plan_set.findings]
    if "preflight" not in session.options.skip:
        found += await asyncio.to_thread(_checks, session)
    session.replace_plan_findings(found)
    session.save(session.plan_set, "plan.json")
    return describe.plan(session.plan_set)


def _remember(session: Session) -> None:
    """What an earlier run of this model on this machine learned, once, before the first plan."""
    if not session.recalled and session.saved is None:
        session.recalled = True
        known = recall_into(session)
        session.intent = yielded(session.intent, known)
        session.constraints.extend(known)


async def _fitting_plan(session: Session) -> PlanSet:
    """The plan; where only its context does not fit, the one with the longest context that does. A dry run shows the first."""
    found = await asyncio.to_thread(make_plan, session)
    shorter = fitting.shorter_context(found)
    if shorter is None or session.options.attempts < 2 or session.options.dry_run:
        return found
    fitting.note(session, found, shorter)
    session.intent = yielded(session.intent, [shorter])
    session.constraints.append(shorter)
    return await asyncio.to_thread(make_plan, session)


def make_plan(session: Session) -> PlanSet:
    from firstlight.plan.plan import plan as compute

    if session.machine is None or session.adapter is None:
        raise FirstlightError("no-machine", "the machine has not been probed", hint="run the probe stage first")
    version = session.install.version if session.install else None
    found = compute(
        session.model,
        session.machine,
        session.intent,
        engine=EngineRef(name=session.adapter.name, version=version),
        install=session.install,
        constraints=session.constraints,
        answer=session.answer,
        rehearsal=session.rehearsal,
        draft=session.drafter.checkpoint,
    )
    return with_reason(found, session.drafter)


def stop_if_blocked(session: Session) -> None:
    """Raises when there is nothing to start: exit 4 for blockers, 3 when nothing fits. A plan whose blockers are all ignored goes on."""
    open_blockers = blockers(session.findings)
    if open_blockers:
        raise FirstlightError(
            "preflight-blocked",
            f"{len(open_blockers)} problem{'s' if len(open_blockers) > 1 else ''} must be solved first",
            evidence=tuple(f"{f.code}: {f.message}" for f in open_blockers),
            hint=next((f.hint for f in open_blockers if f.hint), "firstlight explain CODE; --ignore CODE overrides one by name"),
            exit_code=Exit.PREFLIGHT_BLOCKED,
        )
    plan_set = session.plan_set
    if plan_set is not None and (plan_set.verdict == "does-not-fit" or plan_set.best is None):
        raise FirstlightError(
            "nothing-fits",
            "no layout of this model fits this machine",
            evidence=tuple(f"{r.layout}: {r.because}" for r in plan_set.rejected[:6]),
            hint="firstlight plan shows every layout with its numbers",
            exit_code=Exit.NOTHING_FEASIBLE,
        )
