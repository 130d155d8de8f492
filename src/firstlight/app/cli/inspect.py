"""`firstlight inspect MODEL`: what a checkpoint says about itself."""

import click

from firstlight.app.output import emit, output_option


@click.command(short_help="what a checkpoint says about itself")
@click.argument("model")
@click.option("--revision", metavar="REV", help="Branch, tag or commit on the hub or in the cache.")
@click.option("--host", default="local", show_default=True, metavar="HOST", help="Where the files are: local, or ssh://USER@HOST.")
@click.option("--verify", type=click.Choice(["sha256"]), help="Also read every file and compare its content with what is known of it.")
@output_option
def command(model: str, revision: str | None, host: str, verify: str | None, output: str) -> int:
    """Reads headers and small files only, never the weights (but with --verify).

    MODEL is a folder, a .gguf, org/name[@rev] of the cache or a hub, hf://org/name, or a preset that was fetched.
    Exit 0 whenever it could be read, findings included.
    """
    from firstlight.app.looking import place_of
    from firstlight.app.views.checkpoint import content_progress, show_checkpoint
    from firstlight.inspect.checkpoint import inspect
    from firstlight.inspect.sources import open_source
    from firstlight.probe.hosts import open_host

    source = open_source(place_of(model), open_host(host), revision=revision)
    checkpoint = inspect(source)
    if verify:
        from msgspec.structs import replace

        from firstlight.inspect.verify import verify_content

        with content_progress() as progress:
            checkpoint = replace(checkpoint, findings=[*checkpoint.findings, *verify_content(source, on_progress=progress)])
    emit(checkpoint, output, lambda: show_checkpoint(checkpoint))
    return 0
