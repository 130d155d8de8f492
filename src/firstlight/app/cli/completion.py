"""`firstlight completion bash|zsh|fish`: the shell's completion script."""

import click


@click.command("completion", short_help="shell completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> int:
    """Prints the completion script of SHELL: verbs, flags, names of runs, codes and GPUs.

    \b
    firstlight completion bash >> ~/.bashrc
    firstlight completion zsh >> ~/.zshrc
    firstlight completion fish > ~/.config/fish/completions/firstlight.fish
    """
    from click.shell_completion import get_completion_class

    from firstlight.app.group import firstlight

    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"no completion for {shell}")
    click.echo(found(firstlight, {}, "firstlight", "_FIRSTLIGHT_COMPLETE").source())
    return 0
