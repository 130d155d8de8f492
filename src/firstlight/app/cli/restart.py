"""`firstlight restart RUN`: the same spec again, under the same supervisor."""

import click

from firstlight.app import completing


@click.command("restart", short_help="stop a run and start the same plan again")
@click.argument("run", shell_complete=completing.runs)
def command(run: str) -> int:
    """Stops the engine of RUN and starts it again exactly as it was; follows it until it is ready."""
    import asyncio

    from firstlight.app.following import end_of_log, follow, refuse_over
    from firstlight.app.reconcile import record
    from firstlight.app.store import RunStore
    from firstlight.core.run import RunState
    from firstlight.launch.client import SupervisorClient
    from firstlight.probe.hosts import open_host

    folder = RunStore().find(run)
    refuse_over(folder)
    client = SupervisorClient(open_host(folder.run.host), folder.attempt_there)
    position = max((e.byte for e in client.past_events()), default=0), end_of_log(client)
    client.restart()
    record(folder, folder.run, RunState.STARTING, "restarted, not verified since")
    return asyncio.run(follow(folder, since=position))
