"""`firstlight describe RUN`: everything about one run, from its folder."""

import time

import click

from firstlight.app import completing
from firstlight.app.output import emit, output_option
from firstlight.core.checkpoint import Checkpoint
from firstlight.core.plan import PlanSet
from firstlight.core.run import Overlay, Run
from firstlight.core.verdict import BenchReport, Verdict


@click.command("describe", short_help="everything about one run")
@click.argument("run", shell_complete=completing.runs)
@output_option
def command(run: str, output: str) -> int:
    """Shows model, plan, processes, verdict, figures and files of RUN."""
    from firstlight.app.reconcile import reconcile
    from firstlight.app.store import RunStore

    folder = RunStore().find(run)
    record = reconcile(folder)

    def human() -> None:
        from firstlight.app.restarts import hooks_told, told
        from firstlight.app.stages import describe, prove
        from firstlight.launch.client import SupervisorClient
        from firstlight.probe.hosts import open_host

        _lines(_identity(record))
        if checkpoint := folder.try_load(Checkpoint, "checkpoint.json"):
            _lines([("checkpoint", describe.checkpoint(checkpoint))])
        if plan := folder.try_load(PlanSet, "plan.json"):
            _lines([("plan", describe.plan(plan))])
        if overlay := folder.try_load(Overlay, "overlay.json"):
            _lines([("overlay", overlay.path), ("", overlay.because)])
        if verdict := folder.try_load(Verdict, "verdict.json"):
            _lines([("verdict", prove.summary(verdict))])
        if bench := folder.try_load(BenchReport, "bench.json"):
            _lines([("bench", prove.headline(bench))])
        events = SupervisorClient(open_host(record.host), folder.attempt_there).past_events()
        for title, lines in (("restarts", told(events)), ("--on-event", hooks_told(events))):
            _lines([(title if n == 0 else "", line) for n, line in enumerate(lines)])
        if (command_file := folder.path / "command.txt").exists():
            click.echo(f"\n{command_file.read_text().rstrip()}")

    emit(record, output, human)
    return 0


def _identity(run: Run) -> list[tuple[str, str]]:
    rows = [
        ("run", run.id),
        ("name", run.name),
        ("model", run.model),
        ("state", f"{run.state}" + (f" ({run.reason})" if run.reason else "")),
    ]
    rows += [("since", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.created)))]
    rows += [("engine", run.engine)] if run.engine else []
    rows += [("endpoint", run.endpoint.base_url)] if run.endpoint else []
    rows += [("engine pid", str(run.engine_process.pid))] if run.engine_process else []
    rows += [("supervisor pid", str(run.supervisor.pid))] if run.supervisor else []
    rows += [("folder", run.folder)]
    return rows


def _lines(rows: list[tuple[str, str]]) -> None:
    for name, value in rows:
        click.echo(f"{name:15} {value}")
