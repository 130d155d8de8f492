"""stdout is the result, stderr is progress and hints; `-o human|json|jsonl`."""

import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO, TypeVar

import click
import msgspec

from firstlight.app.terminal import colour
from firstlight.core.errors import FirstlightError
from firstlight.core.findings import Finding, Severity
from firstlight.core.schema import SCHEMA, encode

if TYPE_CHECKING:
    from rich.console import Console

F = TypeVar("F", bound=Callable[..., Any])


def output_option(command: F) -> F:
    """Adds `-o/--output human|json|jsonl` as the parameter `output`."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["human", "json", "jsonl"]),
        default="human",
        show_default=True,
        help="How the result is written.",
    )(command)


def emit(value: msgspec.Struct, output: str, human: Callable[[], None]) -> None:
    """Writes one result to stdout: JSON as a document with schema and kind, or what `human` prints."""
    if output == "human":
        human()
    else:
        write_json(encode(value, indent=2 if output == "json" else 0))


def write_json(document: bytes) -> None:
    """JSON is UTF-8 whatever the terminal's encoding is, and reaches a pipe at once."""
    sys.stdout.flush()
    sys.stdout.buffer.write(document)
    sys.stdout.buffer.flush()


def emit_rows(kind: str, rows: Iterable[msgspec.Struct], output: str, human: Callable[[], None]) -> None:
    """Writes a list: `{"schema", "kind": KIND + "List", "items"}` as JSON, one document a line as JSONL."""
    if output == "human":
        human()
    elif output == "jsonl":
        for row in rows:
            write_json(encode(row, indent=0))
    else:
        document = {"schema": SCHEMA, "kind": f"{kind}List", "items": [msgspec.to_builtins(r) for r in rows]}
        write_json(msgspec.json.format(msgspec.json.encode(document)) + b"\n")


class Glyphs(NamedTuple):
    """Colour never alone: a glyph and a word go with it."""

    ok: str
    fail: str
    warn: str
    note: str
    run: str
    skip: str
    full: str
    half: str
    empty: str
    arrow: str


UNICODE = Glyphs("✓", "✗", "▲", "•", "●", "–", "█", "▌", "░", "→")
ASCII = Glyphs("+", "x", "!", "-", "*", "-", "#", "=", ".", "->")


def glyphs(stream: TextIO | None = None) -> Glyphs:
    """Unicode where the stream's encoding carries it and FIRSTLIGHT_ASCII is not set."""
    encoding = getattr(stream or sys.stdout, "encoding", None) or "ascii"
    try:
        "".join(UNICODE).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return ASCII if os.environ.get("FIRSTLIGHT_ASCII") else UNICODE


def console(*, err: bool = False) -> "Console":
    """A rich console that respects NO_COLOR, width and pipes."""
    from rich.console import Console

    return Console(
        stderr=err,
        highlight=False,
        emoji=False,
        markup=False,
        soft_wrap=not sys.stdout.isatty(),
        color_system=None if colour() is False else "auto",
    )


def say(text: str = "") -> None:
    """One line of progress or hint, to stderr."""
    click.echo(text, err=True)


_STYLE = {Severity.BLOCKER: ("fail", "red"), Severity.WARNING: ("warn", "yellow"), Severity.NOTE: ("note", "blue")}


def finding_lines(finding: Finding, marks: Glyphs) -> list[str]:
    """A finding as plain lines: head, evidence, note, hint, link."""
    glyph = getattr(marks, _STYLE[finding.severity][0])
    ignored = " (ignored)" if finding.ignored else ""
    lines = [f"{glyph} {finding.severity} {finding.code}{ignored}: {finding.message}"]
    lines += [f"    {line}" for line in finding.evidence]
    lines += [f"    note: {finding.note}"] if finding.note else []
    lines += [f"    {marks.arrow} {finding.hint}"] if finding.hint else []
    lines += [f"    see {finding.link}"] if finding.link else []
    return lines


def show_findings(findings: Iterable[Finding], *, err: bool = False) -> None:
    """Blockers first, then warnings, then notes."""
    order = list(Severity)
    marks = glyphs(sys.stderr if err else sys.stdout)
    for finding in sorted(findings, key=lambda f: order.index(f.severity)):
        head, *rest = finding_lines(finding, marks)
        click.secho(head, fg=_STYLE[finding.severity][1], err=err)
        _echo_block(rest, err=err)


def _echo_block(lines: Iterable[str], *, err: bool) -> None:
    """On a terminal a long sentence goes on under its own beginning; hints stay whole, to be copied."""
    stream = sys.stderr if err else sys.stdout
    width = shutil.get_terminal_size().columns if stream.isatty() else 0
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()))
        keep = width < 40 or len(line) <= width or line.lstrip().startswith(tuple(g.arrow for g in (UNICODE, ASCII)))
        fold = textwrap.TextWrapper(width - 1, subsequent_indent=indent + "  ", break_long_words=False, break_on_hyphens=False)
        folded = [line] if keep else fold.wrap(line)
        for part in folded:
            click.echo(part, err=err)


def error_lines(error: FirstlightError, marks: Glyphs) -> list[str]:
    lines = [f"{marks.fail} error {error.code}: {error.message}"]
    lines += [f"    {line}" for line in error.evidence]
    lines += [f"    {marks.arrow} {error.hint}"] if error.hint else []
    return lines


def show_error(error: FirstlightError, *, output: str = "human") -> None:
    """The message on stderr; as a document on stdout, one line of it for `jsonl`, where the caller asked for that."""
    if output != "human":
        document = {
            "schema": SCHEMA,
            "kind": "Error",
            "code": error.code,
            "message": error.message,
            "evidence": list(error.evidence),
            "hint": error.hint,
            "exit_code": int(error.exit_code),
        }
        with suppress(OSError):  # a full disk, maybe the very error that is told: then as text
            write_json(msgspec.json.format(msgspec.json.encode(document), indent=2 if output == "json" else -1) + b"\n")
            return
    head, *rest = error_lines(error, glyphs(sys.stderr))
    click.secho(head, fg="red", err=True, color=colour())
    _echo_block(rest, err=True)
