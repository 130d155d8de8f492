"""What can be known before anything starts: inspect, probe, preflight, plan."""

import asyncio
import os

import msgspec

from firstlight.app.elsewhere import hub_environ, places_of
from firstlight.app.places import data_folder
from firstlight.app.session import Session
from firstlight.app.stages import describe, fitting, stale
from firstlight.app.stages.yielding import yielded
from firstlight.catalog.presets import find_preset
from firstlight.core.checkpoint import Checkpoint
from firstlight.core.errors import Exit, FirstlightError, UsageError
from firstlight.core.fetch import Fetched
from firstlight.core.findings import Finding, blockers
from firstlight.core.machine import EngineInstall
from firstlight.core.plan import EngineRef, PlanSet
from firstlight.core.ports import EngineAdapter, Host
from firstlight.core.units import format_bytes


async def inspect(session: Session) -> str:
    """Headers and configs only: nothing is downloaded for a model that will not fit. A preset is fetched, being small and pinned."""
    preset = find_preset(session.intent.model)
    fetched = await _preset_file(session) if preset else None
    where = fetched.path if fetched else session.intent.model
    found = await asyncio.to_thread(_read_checkpoint, session, where)
    if preset:
        found = msgspec.structs.replace(found, ref=session.intent.model, name=preset.model, license=found.license or preset.license)
    session.checkpoint = found
    session.save(session.checkpoint, "checkpoint.json")
    session.add(session.checkpoint.findings)
    came = f" · {format_bytes(fetched.bytes_fetched)} fetched" if fetched and fetched.bytes_fetched else ""
    return describe.checkpoint(session.checkpoint) + came


async def _preset_file(session: Session) -> Fetched:
    """Raises FirstlightError `not-fetched` in a dry run, which downloads nothing."""
    from firstlight.app.stages.start import fetch_model
    from firstlight.fetch.fetch import estimate

    if session.options.dry_run:
        expected = await estimate(session.intent.model, env=os.environ)
        if expected.bytes_to_fetch != 0:
            raise FirstlightError(
                "not-fetched",
                f"{session.intent.model} is not on this disk, and a dry run downloads nothing",
                evidence=(f"{format_bytes(expected.bytes_to_fetch)} to {expected.destination}",),
                hint=f"firstlight fetch {session.intent.model}",
            )
    return await fetch_model(session)


def _read_checkpoint(session: Session, where: str) -> Checkpoint:
    from firstlight.inspect.checkpoint import inspect as inspect_source
    from firstlight.inspect.sources import open_source

    return inspect_source(open_source(where, session.host, env=hub_environ(session.host)))


async def probe(session: Session) -> str:
    from firstlight.probe.engines import find_engines
    from firstlight.probe.machine import probe_machine

    there = places_of(session.host)
    places = (session.model.path, there.cache, there.state)
    paths = [p for p in places if p and session.host.stat(p) is not None]
    hints = engine_hints(session.host, session.intent.engine_python)
    machine = await asyncio.to_thread(probe_machine, session.host, paths=paths, raw=session.raw)
    engines = await asyncio.to_thread(find_engines, session.host, session.adapters, hints=hints)
    session.machine = msgspec.structs.replace(machine, engines=engines)
    session.save(session.machine, "machine.json")
    if session.folder:
        for name, text in session.raw.items():
            session.folder.write(f"probe/{name}.txt", text.encode())
    session.add(machine.findings)
    session.adapter, session.install = choose_engine(session)
    return describe.machine(session.machine, session.install)


def engine_hints(host: Host, engine_python: str | None) -> list[str]:
    """Interpreters to ask, the user's word first, then the environments that firstlight made here. Another host is asked for its own."""
    named = [engine_python] if engine_python else []
    if not host.is_local:
        return named
    return named + [str(p) for p in sorted(data_folder().glob("engines/*/bin/python"), reverse=True)]


def choose_engine(session: Session) -> tuple[EngineAdapter, EngineInstall]:
    """The engine that the user named, else the installed one that likes this checkpoint most.

    Raises UsageError engine-unknown, or FirstlightError engine-missing with the command that installs it.
    """
    wanted, _, version = (session.intent.engine or "").partition("@")
    adapters = [a for a in session.adapters if a.name == wanted] if wanted else list(session.adapters)
    if not adapters:
        names = ", ".join(sorted(a.name for a in session.adapters))
        raise UsageError("engine-unknown", f"no engine is called {wanted!r}", evidence=(f"known: {names}",))
    ranked = sorted(adapters, key=lambda a: a.accepts(session.model), reverse=True)
    installs = session.machine.engines if session.machine else []
    for adapter in ranked:
        fitting = [i for i in installs if i.engine == adapter.name and i.version and (not version or i.version == version)]
        if fitting and (wanted or adapter.accepts(session.model) > 0):
            return adapter, preferred(fitting, session.intent.engine_python)
    raise engine_missing(session, ranked[0], installs)


def preferred(installs: list[EngineInstall], python: str | None) -> EngineInstall:
    named = [i for i in installs if python and i.python == python]
    return (named or installs)[0]


def engine_missing(session: Session, adapter: EngineAdapter, installs: list[EngineInstall]) -> FirstlightError:
    evidence = [f"{i.engine} {i.version or '?'} in {i.python or i.binary}" for i in installs] or ["no engine was found on this machine"]
    evidence += [f"{f.code}: {f.message}" for i in installs for f in i.findings]
    if session.intent.engine_python:
        evidence.append(f"asked for: {session.intent.engine_python}")
    return FirstlightError(
        "engine-missing",
        f"{session.model.format} checkpoints like this one need {adapter.title}, and it is not installed here",
        evidence=tuple(evidence),
        hint=adapter.install_hint(session.machine),
        exit_code=Exit.PREFLIGHT_BLOCKED,
    )


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
        session.plan_set = await _fitting_plan(session)
    found = [*session.plan_set.findings]
    if "preflight" not in session.options.skip:
        found += await asyncio.to_thread(_checks, session)
    session.replace_plan_findings(found)
    session.save(session.plan_set, "plan.json")
    return describe.plan(session.plan_set)


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
    return compute(
        session.model,
        session.machine,
        session.intent,
        engine=EngineRef(name=session.adapter.name, version=version),
        install=session.install,
        constraints=session.constraints,
        answer=session.answer,
        rehearsal=session.rehearsal,
    )


def stop_if_blocked(session: Session) -> None:
    """Raises when there is nothing to start: exit 4 for blockers, 3 when nothing fits."""
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
    if plan_set is not None and (plan_set.verdict != "fits" or plan_set.best is None):
        raise FirstlightError(
            "nothing-fits",
            "no layout of this model fits this machine",
            evidence=tuple(f"{r.layout}: {r.because}" for r in plan_set.rejected[:6]),
            hint="firstlight plan shows every layout with its numbers",
            exit_code=Exit.NOTHING_FEASIBLE,
        )
