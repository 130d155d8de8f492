"""`--host` for every verb: those that look at or change a machine have it; those about runs find the run by it; the rest say why not."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar

import click

from firstlight.app.commands import OF_RUN, PARTS
from firstlight.core.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])
_chosen: ContextVar[str | None] = ContextVar("host", default=None)


def chosen_host() -> str | None:
    """The host that this command line named for its runs, endpoint or log; None: any."""
    return _chosen.get()


def is_chosen(host: str) -> bool:
    """Whether a run on `host` is meant."""
    chosen = _chosen.get()
    return chosen is None or _plain(chosen) == _plain(host)


def _plain(host: str) -> str:
    return "local" if host in ("", "localhost") else host.rstrip("/")


def host_option(help_text: str = "local, or ssh://USER@HOST.") -> Callable[[F], F]:
    """The flag of verbs that work on a host themselves."""
    return click.option("--host", default="local", show_default=True, metavar="HOST", help=help_text)


def with_host(command: click.Command, name: str, policy: str | None) -> click.Command:
    """The command, and all of its parts, with a `--host`. policy: see commands.Verb."""
    if isinstance(command, click.Group):
        for part, below in command.commands.items():
            with_host(below, f"{name} {part}", PARTS.get(f"{name} {part}", policy))
    if policy is None or isinstance(command, click.Group) or any("--host" in p.opts for p in command.params):
        return command
    if policy == OF_RUN:
        text = "Only runs on this host: local, or ssh://USER@HOST; of a URL or a path, where it is."
        command.params.append(click.Option(["--host"], expose_value=False, metavar="HOST", help=text, callback=_choose))
        return command
    command.params.append(click.Option(["--host"], expose_value=False, hidden=True, callback=_refuse(name, policy)))
    return command


def _choose(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Raises UsageError `unknown-host`; the choice ends with the command."""
    if value is None:
        return
    from firstlight.probe.hosts import open_host

    open_host(value)
    token = _chosen.set(value)
    ctx.call_on_close(lambda: _chosen.reset(token))


def _refuse(name: str, why: str) -> Any:
    def refuse(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
        if value is not None:
            raise UsageError("host-makes-no-sense", f"`{name}` works on no host: {why}", evidence=(f"--host {value}",), hint="leave it out")

    return refuse
