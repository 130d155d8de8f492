"""A Diagnosis for people: outcome, cause with its lines, what to do, what was harmless."""

import sys
from typing import Any

import click

from firstlight.app.output import glyphs
from firstlight.core.diagnosis import Cause, Diagnosis, Evidence, Remedy, Safety

_OUTCOMES = {"ready": ("ok", "green"), "failed": ("fail", "red"), "serving-failed": ("fail", "red"), "incomplete": ("note", "yellow")}
_SAFETY = {Safety.SAFE: "safe", Safety.ASK: "asks first", Safety.NEVER: "by hand"}
_WIDTH = 150


def print_diagnosis(found: Diagnosis) -> None:
    marks = glyphs(sys.stdout)
    glyph, colour = _OUTCOMES[found.outcome]
    where = f" in {found.phase}" if found.phase and found.outcome != "ready" else ""
    click.secho(f"{getattr(marks, glyph)} {found.outcome}{where}", fg=colour, bold=True)
    if found.cause:
        click.secho(f"  {found.cause.code}: {found.cause.title}", bold=True)
        click.echo(f"  confidence {found.cause.confidence * 100:.0f} %")
        _evidence(found.cause.evidence)
    if found.unknown and (found.unknown.first_exception or found.unknown.template):
        click.echo(f"  first exception: {_short(found.unknown.first_exception or 'none was printed')}")
        click.echo(f"  as a template:   {_short(found.unknown.template or '')}")
        if found.unknown.near:
            click.echo(f"  perhaps near:    {', '.join(found.unknown.near)}")
    _remedies(found.remedies, marks.arrow)
    _contributing(found.contributing)
    if found.benign:
        click.echo(f"  harmless: {', '.join(f'{b.code} {b.count}x' for b in found.benign)}")


def _evidence(items: list[Evidence]) -> None:
    for item in items:
        worker = f" [{item.worker}]" if item.worker else ""
        click.echo(f"    line {item.line}{worker}: {_short(item.text)}")


def _remedies(remedies: list[Remedy], arrow: str) -> None:
    for remedy in remedies:
        click.echo(f"  {arrow} {_what(remedy)}  ({_SAFETY[remedy.safety]})")
        if remedy.because:
            click.echo(f"      because {remedy.because}")


def _what(remedy: Remedy) -> str:
    if not remedy.change:
        return remedy.action or ""
    return " ".join(setting(name, value) for name, value in remedy.change.items())


def setting(name: str, value: Any) -> str:
    """`--max-model-len 34736`, `--enforce-eager`, `--no-enable-flashinfer-autotune`, `NCCL_P2P_DISABLE=1`, or a flag to take away."""
    if name.isupper():
        return f"{name}={value}"
    flag = f"--{name.replace('_', '-')}"
    if value is None:
        return f"without {flag}"
    if isinstance(value, bool):
        return flag if value else f"--no-{name.replace('_', '-')}"
    return f"{flag} {value}"


def _contributing(causes: list[Cause]) -> None:
    for cause in causes:
        first = f" (line {cause.evidence[0].line})" if cause.evidence else ""
        click.echo(f"  also seen: {cause.code}{first}: {cause.title}")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _WIDTH else line[: _WIDTH - 3] + "..."
