"""`firstlight restart RUN`: the same spec again, under the same supervisor."""

import click

from firstlight.app import completing


@click.command("restart", short_help="stop a run and start the same plan again")
@click.argument("run", shell_complete=completing.runs)
def command(run: str) -> int:
    """Stops the engine of RUN and starts it again exactly as it was; follows it until it is ready."""
    import asyncio

    from firstlight.app.following import follow
    from firstlight.app.reconcile import reconcile
    from firstlight.app.store import RunStore
    from firstlight.core.errors import UsageError
    from firstlight.core.run import TERMINAL
    from firstlight.launch.client import SupervisorClient
    from firstlight.probe.hosts import open_host

    folder = RunStore().find(run)
    now = reconcile(folder)
    if now.state in TERMINAL:
        why = f"it is {now.state}{f' ({now.reason})' if now.reason else ''}"
        hint = f"firstlight up {now.model} --name {now.name} starts it anew"
        raise UsageError("run-is-over", f"{now.name!r} does not run any more", evidence=(why,), hint=hint)
    client = SupervisorClient(open_host(folder.run.host), folder.attempt_there)
    position = max((e.byte for e in client.past_events()), default=0)
    client.restart()
    return asyncio.run(follow(folder, from_byte=position))
