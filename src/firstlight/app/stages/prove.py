"""What makes an endpoint worth having: verify, bench, report."""

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING

from firstlight.app.elsewhere import reached
from firstlight.app.restarts import hooks_told
from firstlight.app.session import Session
from firstlight.app.stages.failing import died_since
from firstlight.app.views.verdict import counts
from firstlight.core.errors import Exit, FirstlightError
from firstlight.core.run import Endpoint, RunState
from firstlight.core.verdict import BenchReport, Blame, CheckResult, Verdict

if TYPE_CHECKING:
    from firstlight.launch.supervision import SupervisorEvent
    from firstlight.verify.session import Claims

LOST_SECONDS = 300.0  # for so long an endpoint on another host is asked again when the connection is lost meanwhile


def endpoint_of(session: Session) -> Endpoint:
    if session.endpoint is None:
        raise FirstlightError("no-endpoint", "nothing is serving yet", hint="run the launch and watch stages first")
    return session.endpoint


def api_key(endpoint: Endpoint) -> str | None:
    """The key from its file; it is never written anywhere else."""
    if endpoint.api_key_file is None:
        return None
    try:
        return Path(endpoint.api_key_file).read_text().strip()
    except OSError as e:
        raise FirstlightError(
            "api-key-unreadable", "the key file cannot be read", evidence=(f"{endpoint.api_key_file}: {e.strerror}",)
        ) from None


async def verify(session: Session) -> str:
    """No "ready" without a coherent answer. A failed check that was not accepted by name ends the run with exit 6."""
    from firstlight.verify.verify import verify as verify_endpoint

    endpoint = endpoint_of(session)
    until = time.monotonic() + LOST_SECONDS
    since = ready_at(await asyncio.to_thread(session.supervisor.past_events) if session.supervisor is not None else [])
    while True:
        with reached(endpoint, session.host) as way:
            verdict = session.verdict = await verify_endpoint(
                way.endpoint,
                profile=session.options.verify_profile,
                accept=session.options.accept,
                on_check=lambda check: _announce(session, check),
                api_key=api_key(endpoint),
                claims=claims_of(session),
            )
            if verdict.passed or not await asyncio.to_thread(way.lost) or time.monotonic() > until:
                break
        session.emitter.emit("say", text=f"the connection to {session.host.name} was lost meanwhile: asking again")
    session.save(verdict, "verdict.json")
    if not verdict.passed and (death := await died_since(session, since)):
        raise death
    if verdict.passed and session.folder:
        session.folder.update(state=RunState.VERIFIED, verified=time.time())
    return summary(verdict)


def ready_at(events: "list[SupervisorEvent]") -> int:
    """The byte of the supervisor's events at which this life of the engine was ready: a death behind it may be older than the checks."""
    return next((event.byte for event in reversed(events) if event.kind == "ready"), events[-1].byte if events else 0)


def claims_of(session: Session) -> "Claims":
    """What the model and the flags of the launch claim: the plan's own, and those that the user gave the engine."""
    from firstlight.verify.claimed import claims_for

    return claims_for(session.checkpoint, session.launch.argv if session.launch else [])


def _announce(session: Session, check: CheckResult) -> None:
    session.emitter.emit("check", name=check.name, passed=check.passed, skipped=check.skipped, accepted=check.accepted)
    session.emitter.emit("phase", name=check.name)


def failed_checks(verdict: Verdict) -> list[CheckResult]:
    return [c for c in verdict.checks if not (c.passed or c.skipped or c.accepted)]


def summary(verdict: Verdict) -> str:
    failed = [c.name for c in failed_checks(verdict)]
    accepted = [c.name for c in verdict.checks if c.accepted and not c.skipped]
    parts = [counts(verdict)]
    parts += [f"accepted: {', '.join(accepted)}"] if accepted else []
    parts += [f"failed: {', '.join(failed)}"] if failed else []
    return " · ".join(parts)


async def bench(session: Session) -> str:
    """Never measures an endpoint whose answers make no sense."""
    from firstlight.bench.bench import run_bench

    endpoint = endpoint_of(session)
    if session.verdict is not None and not session.verdict.passed:
        return "not measured: the answers did not pass"
    if (kind := claims_of(session).kind) in ("embedding", "reward"):
        return f"not measured: {'an' if kind[0] in 'aeiou' else 'a'} {kind} model writes no tokens"
    with reached(endpoint, session.host) as way:
        session.bench = await run_bench(
            way.endpoint,
            profile=session.options.bench_profile,
            concurrency=session.intent.concurrency,
            candidate=session.plan_set.best if session.plan_set else None,
            verdict=session.verdict,
            force="verify" in session.options.skip or bool(session.options.accept),
            api_key=api_key(endpoint),
        )
    session.save(session.bench, "bench.json")
    return headline(session.bench)


def headline(report: BenchReport) -> str:
    return report.headline or f"{len(report.points)} points"


async def report(session: Session) -> str:
    """The run's last word. A verdict that failed is exit 6, and leaves the endpoint up, unverified, for a look."""
    if session.verdict is not None and not session.verdict.passed:
        failed = failed_checks(session.verdict)
        blamed = [line for b in session.verdict.blame or [] for line in (_blame_head(b), *b.evidence[:1])]
        raise FirstlightError(
            "verification-failed",
            "the endpoint answers, and the answers did not pass",
            evidence=(*(f"{c.name}: {'; '.join(c.evidence[:2])}" for c in failed), *blamed),
            hint=_next_steps(session.name, failed, asked=session.verdict.blame is not None),
            exit_code=Exit.VERIFICATION_FAILED,
        )
    if session.folder:
        session.folder.update(state=RunState.SERVING)
    if session.options.on_event and session.supervisor is not None:
        for line in hooks_told(session.supervisor.past_events()):
            session.emitter.emit("say", text=f"--on-event: {line}")
    return endpoint_of(session).base_url


def _next_steps(name: str, failed: list[CheckResult], *, asked: bool) -> str:
    blame = "" if asked else f"firstlight verify {name} --blame looks for what causes it; "
    return f"{blame}firstlight up … {' '.join(f'--accept {c.name}' for c in failed)} accepts them; firstlight down {name} stops it"


def _blame_head(entry: Blame) -> str:
    return f"{'the culprit' if entry.culprit else 'not the culprit'}: {entry.knob}"
