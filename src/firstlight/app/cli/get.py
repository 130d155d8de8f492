"""`firstlight get runs|gpus|events`: short lists."""

import time

import click

from firstlight.app import completing
from firstlight.app.output import emit_rows, output_option, say
from firstlight.app.tables import print_table
from firstlight.core.run import Run
from firstlight.core.units import format_seconds, gib


@click.group("get", short_help="list runs, GPUs, events")
def command() -> None:
    """Lists what firstlight knows."""


@command.command("runs", short_help="runs on this machine, newest first")
@click.option("--all", "show_all", is_flag=True, help="Stopped and failed runs too.")
@output_option
def runs(show_all: bool, output: str) -> int:
    """Runs on this machine, newest first, as they are now."""
    from firstlight.app.reconcile import reconciled_runs
    from firstlight.app.store import RunStore
    from firstlight.core.run import TERMINAL

    rows, unreadable = reconciled_runs(RunStore())
    shown = [r for r in rows if show_all or r.state not in TERMINAL]

    def human() -> None:
        print_table([("NAME", "STATE", "AGE", "ENGINE", "ENDPOINT", "RUN")] + [_row(r) for r in shown])
        hidden = len(rows) - len(shown)
        say(f"{hidden} stopped or failed: firstlight get runs --all") if hidden else None

    emit_rows("Run", shown, output, human)
    for run in unreadable:
        say(f"{run.folder}: {run.code}: {run.message}")
    return 0


def _row(run: Run) -> tuple[str, ...]:
    endpoint = run.endpoint.base_url if run.endpoint else "-"
    state = f"{run.state} ({run.reason})" if run.reason else str(run.state)
    return (run.name, state, format_seconds(time.time() - run.created), run.engine or "-", endpoint, run.id)


@command.command("gpus", short_help="GPUs of the catalog, as --gpu takes them")
@output_option
def gpus(output: str) -> int:
    """GPUs of the catalog, as `--gpu 8xNAME` takes them."""
    from firstlight.catalog.gpus import all_gpus

    def human() -> None:
        rows = [("NAME", "SM", "CUDA MEMORY", "BANDWIDTH")]
        rows += [(g.id, str(g.sm), gib(g.cuda_total_bytes), f"{g.memory_bandwidth_bytes_per_second / 1e9:.0f} GB/s") for g in all_gpus()]
        print_table(rows)

    emit_rows("Gpu", all_gpus(), output, human)
    return 0


@command.command("events", short_help="one run's event stream")
@click.argument("run", shell_complete=completing.runs)
@output_option
def events(run: str, output: str) -> int:
    """The event stream of one run."""
    from firstlight.app.store import RunStore

    folder = RunStore().find(run)
    rows = list(folder.events())

    def human() -> None:
        start = rows[0].time if rows else 0.0
        for e in rows:
            data = " ".join(f"{k}={v}" for k, v in e.data.items())
            click.echo(f"{e.time - start:9.2f}  {e.stage:9} {e.kind:15} {data}")

    emit_rows("Event", rows, output, human)
    return 0
