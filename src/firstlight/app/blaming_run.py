"""`verify --blame`: what one request can change is tried on the endpoint as it is; the rest by restarts of a run, after consent."""

import asyncio
from collections.abc import Sequence

import msgspec

from firstlight.app import flow
from firstlight.app.blaming import BUDGET_SECONDS, TRIAL_SECONDS, Asking, Trials, becomes_ready
from firstlight.app.consent import Consent
from firstlight.app.emitter import Emitter
from firstlight.app.endpoints import Target
from firstlight.app.output import say
from firstlight.app.session import Session, UpOptions
from firstlight.app.stages import start
from firstlight.app.stages.ports import choosing, listening_now
from firstlight.app.stages.yielding import yielded
from firstlight.app.store import RunFolder, RunStore
from firstlight.core.intent import Intent
from firstlight.core.plan import PlanSet
from firstlight.core.run import Endpoint, LaunchSpec, Overlay, RunState
from firstlight.core.verdict import Blame, Verdict
from firstlight.engines.registry import load_adapters
from firstlight.launch.client import SupervisorClient
from firstlight.launch.client import start as start_supervisor
from firstlight.probe.hosts import open_host
from firstlight.verify.blame import Knob, Variation, by_request, failed_names, find_culprit, not_restarted, suspects

NOT_OURS = "this endpoint is no run of firstlight, and cannot be started again from here"


async def blamed(verdict: Verdict, target: Target, ask: Asking, consent: Consent) -> Verdict:
    """The verdict with what was tried. ask: `verify` with the caller's reference and profile bound.

    Raises ConsentError where a run would have to be restarted and nobody said so.
    """
    if verdict.passed:
        return verdict
    endpoint = target.endpoint

    async def varied(variation: Variation, checks: Sequence[str]) -> Verdict:
        say(f"blame: {variation.what}")
        return await ask(
            endpoint,
            checks=list(checks),
            api_key=target.api_key,
            varied=variation.varied,
            parallel=1 if variation.one_by_one else None,
            budget_seconds=TRIAL_SECONDS,
        )

    found = await by_request(verdict, varied, engine=endpoint.engine)
    names = list(dict.fromkeys(k.name for k in suspects(verdict, endpoint.engine)))
    if names and not any(b.culprit for b in found):
        why = _not_restartable(target.folder)
        if why is None and target.folder is not None:
            found += await _by_restart(verdict, target.folder, names, ask, consent)
        else:
            found.append(not_restarted(names, why or NOT_OURS))
    return msgspec.structs.replace(verdict, blame=found)


def _not_restartable(folder: RunFolder | None) -> str | None:
    """Why this cannot be started again with a knob changed; None when it can."""
    if folder is None:
        return NOT_OURS
    if not ((folder.path / "plan.json").exists() and (folder.path / "intent.json").exists()):
        return "the run was started by an exact command, not by a plan that could be made with one knob changed"
    return None if folder.run.host == "local" else f"the run is on {folder.run.host}: say it there"


async def _by_restart(verdict: Verdict, folder: RunFolder, names: list[str], ask: Asking, consent: Consent) -> list[Blame]:
    """The run is stopped (trials need its memory), tried with one knob changed at a time, and started again as it was."""
    run = folder.run
    question = f"Stop {run.name} and start it again with one knob changed at a time, for up to {BUDGET_SECONDS / 60:.0f} minutes?"
    tried = (f"in turn, where the plan has it: {', '.join(names)}", "afterwards it is started again as it is now")
    consent.require("restart", question, evidence=(f"failed: {', '.join(sorted(failed_names(verdict)))}", *tried))
    session = await _session(folder)
    trials = Trials(session, ask)

    async def relaunch(knob: Knob) -> Endpoint | None:
        endpoint = await trials.relaunch(knob)
        if endpoint is not None:
            say(f"blame: started with {knob.name} changed")
        return endpoint

    await asyncio.to_thread(SupervisorClient(session.host, folder.attempt_there).stop)
    try:
        return await find_culprit(verdict, relaunch, trials.ask, engine=run.engine, budget_seconds=BUDGET_SECONDS)
    finally:
        await asyncio.shield(_as_before(session, folder, trials, run.state))


async def _session(folder: RunFolder) -> Session:
    """The run's own request and plan, on what is on this machine now; looking again changes nothing in its folder."""
    run, plan = folder.run, folder.load(PlanSet, "plan.json")
    session = Session(
        intent=yielded(folder.load(Intent, "intent.json"), plan.constraints),
        options=UpOptions(),
        host=open_host(run.host),
        adapters=load_adapters(),
        store=RunStore(),
        consent=Consent(),
        emitter=Emitter(None, []),
        name=run.name,
        attempt=run.attempt,
        constraints=list(plan.constraints),
        plan_set=plan,
        overlay=folder.try_load(Overlay, "overlay.json"),
        launch=folder.load(LaunchSpec, "launch.json"),
    )
    await flow.run_stages(session, flow.stages_between("inspect", "probe"))
    session.folder = folder
    return session


async def _as_before(session: Session, folder: RunFolder, trials: Trials, state: RunState) -> None:
    """The run's own launch again, as a further attempt, and the state that it had."""
    await trials.end()
    assert session.launch is not None
    await asyncio.to_thread(_elsewhere_if_taken, session, folder)
    attempt = folder.run.attempt + 1
    folder.save(session.launch, f"attempts/{attempt}/launch.json")
    folder.update(state=RunState.STARTING, attempt=attempt)
    options = start.supervision(session)
    client = await asyncio.to_thread(
        start_supervisor, session.host, folder=folder.attempt_there, spec=session.launch, options=options, run=folder.path.name
    )
    status = await asyncio.to_thread(client.status)
    folder.update(supervisor=status.supervisor, engine_process=status.engine)
    ready = await asyncio.to_thread(becomes_ready, client.events())
    folder.update(state=state if ready else RunState.FAILED)
    say(f"{session.name} serves again as before" if ready else f"{session.name} did not start again: firstlight logs {session.name}")


def _elsewhere_if_taken(session: Session, folder: RunFolder) -> None:
    """While the run was stopped anybody could take its port: it then serves at another, unless the user had named this one."""
    assert session.launch is not None
    port = session.launch.port
    if session.intent.port is not None or port not in listening_now(session.host):
        return
    with choosing(session):
        session.launch = start.make_launch(session)
        session.endpoint = start.endpoint_for(session)
        folder.update(endpoint=session.endpoint)
    folder.save(session.launch, "launch.json")
    folder.save(session.endpoint, "endpoint.json")
    say(f"port {port} was taken meanwhile: {session.name} serves at {session.endpoint.base_url}")
