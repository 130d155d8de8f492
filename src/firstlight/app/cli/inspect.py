"""`firstlight inspect MODEL`: what a checkpoint says about itself."""

import click

from firstlight.app.output import emit, output_option


@click.command(short_help="what a checkpoint says about itself")
@click.argument("model")
@click.option("--revision", metavar="REV", help="Branch, tag or commit on the hub or in the cache.")
@click.option("--host", default="local", show_default=True, metavar="HOST", help="Where the files are: local, or ssh://USER@HOST.")
@output_option
def command(model: str, revision: str | None, host: str, output: str) -> int:
    """Reads headers and small files only, never the weights.

    MODEL is a folder, a .gguf, org/name[@rev] of the cache or a hub, or hf://org/name.
    """
    from firstlight.app.checkpoint_page import show_checkpoint
    from firstlight.inspect.checkpoint import inspect
    from firstlight.inspect.sources import open_source
    from firstlight.probe.hosts import open_host

    checkpoint = inspect(open_source(model, open_host(host), revision=revision))
    emit(checkpoint, output, lambda: show_checkpoint(checkpoint))
    return 0
