"""The click group: verbs are imported only when they are called."""

import errno
import importlib
import importlib.util
from itertools import pairwise
from typing import Any

import click

from firstlight import __version__
from firstlight.app.commands import SECTIONS, VERBS
from firstlight.app.terminal import colour
from firstlight.app.where import with_host
from firstlight.core.errors import Exit, FirstlightError, HostError, UsageError


class LazyGroup(click.Group):
    """Lists and loads the verbs of `commands.VERBS` whose module exists."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, verb in VERBS.items() if importlib.util.find_spec(f"firstlight.app.cli.{verb.module}")]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        verb = VERBS.get(cmd_name)
        if verb is None or cmd_name not in self.list_commands(ctx):
            return None
        command = importlib.import_module(f"firstlight.app.cli.{verb.module}").command
        assert isinstance(command, click.Command)
        return with_host(command, cmd_name, verb.host)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        names = self.list_commands(ctx)
        for section in SECTIONS:
            rows = [(name, VERBS[name].help) for name in names if VERBS[name].section == section]
            if rows:
                with formatter.section(section):
                    formatter.write_dl(rows)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, "-V", "--version", prog_name="firstlight", message="%(prog)s %(version)s")
def firstlight() -> None:
    """From a model checkpoint and a GPU machine to a verified, benchmarked, persistent OpenAI-compatible endpoint."""


def run(argv: list[str]) -> int:
    """Runs one command line and returns its exit code; expected failures are shown as messages, never as tracebacks."""
    try:
        _readable(argv)
        result: Any = firstlight.main(args=argv, prog_name="firstlight", standalone_mode=False, color=colour())
    except FirstlightError as e:
        return _shown(e, argv)
    except click.UsageError as e:
        return _misused(e, argv)
    except click.ClickException as e:
        e.show()
        return Exit.UNEXPECTED
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return Exit.INTERRUPTED
    except BrokenPipeError:
        return _pipe_closed()
    except OSError as e:
        if _folder_is_gone():
            return _shown(UsageError("folder-removed", "the folder that this was started in is gone", hint="cd into another one"), argv)
        return _refused_by_the_host(e, argv) if e.errno in _OF_THE_HOST else _unexpected(e)
    except Exception as e:
        return _unexpected(e)
    return int(result) if isinstance(result, int) else Exit.OK


def _readable(argv: list[str]) -> None:
    """What is asked for is written down as JSON, which carries text only. Raises UsageError `not-utf8`."""
    if odd := [word for word in argv if not word.isprintable() and word.encode("utf-8", "replace").decode() != word]:
        raise UsageError("not-utf8", "a name is not UTF-8", evidence=(ascii(odd[0]),), hint="rename it, or reach it through a link")


def _shown(error: FirstlightError, argv: list[str]) -> int:
    from firstlight.app.output import show_error

    show_error(error, output=wanted_output(argv))
    return error.exit_code


def _misused(error: click.UsageError, argv: list[str]) -> int:
    """click's own words on stderr; whoever asked for JSON gets a document on stdout, too."""
    error.show()
    output = wanted_output(argv)
    if output != "human":
        from firstlight.app.output import show_error

        show_error(
            UsageError("bad-usage", error.format_message(), hint=f"{error.ctx.command_path} --help" if error.ctx else None), output=output
        )
    return Exit.USAGE


def wanted_output(argv: list[str]) -> str:
    """human | json | jsonl, from a command line that nobody has parsed yet."""
    own = argv[: argv.index("--")] if "--" in argv else argv
    said = [a.removeprefix("-o") for a in own if a.startswith("-o") and len(a) > 2]
    said += [a.removeprefix("--output=") for a in own if a.startswith("--output=")]
    said += [b for a, b in pairwise(own) if a in ("-o", "--output")]
    return next((s for s in said if s in ("json", "jsonl")), "human")


def _pipe_closed() -> int:
    """The reader of stdout went away (`| head`): not an error of ours."""
    import os
    import sys

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return Exit.OK


_OF_THE_HOST = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENAMETOOLONG, errno.EMFILE, errno.ENFILE}
)


def _folder_is_gone() -> bool:
    """Whether relative names mean nothing any more."""
    import os

    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _refused_by_the_host(error: OSError, argv: list[str]) -> int:
    """A disk, a permission or a limit that no room was prepared for: no fault of ours, and the place is named all the same."""
    _traceback_kept(error)
    named = [str(n)[:200] for n in (error.filename, error.filename2) if n is not None]
    hint = "`firstlight doctor` looks at firstlight's own folders"
    return _shown(HostError("host-io-failed", f"the machine refuses: {error.strerror}", evidence=tuple(named), hint=hint), argv)


def _unexpected(error: Exception) -> int:
    """A fault of ours: the traceback goes to a file, the message says where."""
    click.echo(f"unexpected: {type(error).__name__}: {error}\n  this is a fault of firstlight; {_traceback_kept(error)}", err=True)
    return Exit.UNEXPECTED


def _traceback_kept(error: Exception) -> str:
    """Where the traceback is; the traceback itself where no file can be written."""
    import traceback

    from firstlight.app.places import state_folder

    path = state_folder() / "crash.txt"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(traceback.format_exception(error)))
        return f"the traceback is in {path}"
    except OSError:
        return "".join(traceback.format_exception(error))
