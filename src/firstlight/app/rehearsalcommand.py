"""What `firstlight rehearse` does with its options: the stages up to the plan, the overlay, the rehearsal, the report."""

import asyncio
import signal
from typing import Any

import click

from firstlight.app import flow
from firstlight.app.elsewhere import folder_there
from firstlight.app.output import emit, glyphs
from firstlight.app.plan_options import Planning
from firstlight.app.progress import choose_progress
from firstlight.app.rehearsing import rehearse_plan, summary
from firstlight.app.session import Session
from firstlight.app.stages import start
from firstlight.app.store import RunFolder
from firstlight.app.upcommand import make_session
from firstlight.core.answer import RehearsalReport
from firstlight.core.errors import Exit, FirstlightError, UsageError
from firstlight.core.figures import Figure
from firstlight.core.run import RunState
from firstlight.core.units import format_seconds, gib

STAGES = ("inspect", "probe", "preflight", "plan")


def run_rehearsal(output: str, depth: str, patience: float, options: dict[str, Any], planning: Planning) -> int:
    """Exit 0 where the rehearsal passed, 5 where it refuted the plan or came to no end. Raises FirstlightError."""
    from firstlight.app.up_defaults import defaults

    if not patience > 0:
        raise UsageError("bad-patience", f"--patience cannot be {patience:g}", hint="seconds for one start, more than 0")
    session = make_session(defaults(options), planning)
    progress = choose_progress(output, f"firstlight rehearse {session.intent.model}", [*STAGES, "overlay", "rehearse"])
    session.emitter.listeners.append(progress)
    with progress:
        try:
            report = asyncio.run(_rehearse(session, depth, patience))
        except asyncio.CancelledError:
            return Exit.TERMINATED
    emit(report, output, lambda: show(report))
    return Exit.OK if report.passed else Exit.ENGINE_FAILED


async def _rehearse(session: Session, depth: str, patience: float) -> RehearsalReport:
    """SIGTERM ends it as Ctrl-C does: what was started is ended, and the run says so."""
    name, task = f"{session.name}-rehearsal", asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with session.store.claim(name):
        session.folder = session.emitter.folder = session.store.create(name=name, model=session.intent.model, host=session.host.name)
        return await _recorded(session, session.folder, depth, patience)


async def _recorded(session: Session, folder: RunFolder, depth: str, patience: float) -> RehearsalReport:
    """The rehearsal with its beginning and its end on record."""
    try:
        folder.update(state=RunState.REHEARSING)
        if not session.host.is_local:
            folder.update(host_folder=folder_there(session.host, folder.path.name))
        await flow.run_stages(session, flow.stages_between(STAGES[0], STAGES[-1]))
        report = await _with_overlay(session, depth, patience)
    except FirstlightError as e:
        folder.update(state=RunState.FAILED, reason=e.code)
        raise
    except asyncio.CancelledError:
        folder.update(state=RunState.STOPPED, reason="interrupted")
        raise
    folder.update(state=RunState.STOPPED if report.passed else RunState.FAILED, reason=None if report.passed else _reason(report))
    return report


async def _with_overlay(session: Session, depth: str, patience: float) -> RehearsalReport:
    if session.best.overlay is not None:
        await flow.run_stage(session, flow.Stage("overlay", "", start.overlay))
    found: list[RehearsalReport] = []

    async def run(session: Session) -> str:
        found.append(await rehearse_plan(session, depth=depth, patience=patience))
        return summary(found[0])

    await flow.run_stage(session, flow.Stage("rehearse", "", run))
    return found[0]


def _reason(report: RehearsalReport) -> str:
    return report.findings[0].code if report.findings else "rehearsal-failed"


def show(report: RehearsalReport) -> None:
    """The verdict, the memory of the rank that binds, what is proven and what cannot be."""
    marks = glyphs()
    click.secho(f"{marks.ok if report.passed else marks.fail} {summary(report)}", fg="green" if report.passed else "red")
    for name, figure in _rows(report):
        click.echo(f"  {name:16}{gib(figure.mid):>12}{_range(figure)}")
    if report.phase_seconds:
        click.echo("  " + ", ".join(f"{name} {format_seconds(s)}" for name, s in report.phase_seconds.items()))
    for line in report.proves:
        click.echo(f"  {marks.ok} {line}")
    for line in report.cannot_prove:
        click.echo(f"  {marks.skip} not shown: {line}")


def _rows(report: RehearsalReport) -> list[tuple[str, Figure]]:
    budget = report.per_gpu
    if budget is None:
        return []
    names = ("total", "usable", "weights", "activation_peak", "cuda_graphs", "non_torch", "kv_pool", "headroom")
    return [(n.replace("_", " "), f) for n in names if (f := getattr(budget, n)).known]


def _range(figure: Figure) -> str:
    return "" if figure.low == figure.high else f"  ({gib(figure.low)} to {gib(figure.high)})"
