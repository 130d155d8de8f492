"""A Diagnosis for people: outcome, cause with its lines, what to do, what was harmless."""

import sys
from typing import Any

import click

from firstlight.app.output import glyphs
from firstlight.catalog.signs import flags_of
from firstlight.core.diagnosis import Cause, Diagnosis, Evidence, Remedy, Safety

_OUTCOMES = {"ready": ("ok", "green"), "failed": ("fail", "red"), "serving-failed": ("fail", "red"), "incomplete": ("note", "yellow")}
_SAFETY = {Safety.SAFE: "safe", Safety.ASK: "asks first", Safety.NEVER: "by hand"}
_ALL = {"bind": "host"}  # a field of the plan that no engine calls so, and all of them alike
_WIDTH = 150
_CAUSE_WIDTH = 300


def print_diagnosis(found: Diagnosis) -> None:
    marks = glyphs(sys.stdout)
    glyph, colour = _OUTCOMES[found.outcome]
    where = f" in {found.phase}" if found.phase and found.outcome != "ready" else ""
    click.secho(f"{getattr(marks, glyph)} {found.outcome}{where}", fg=colour, bold=True)
    if found.cause:
        click.secho(f"  {found.cause.code}: {found.cause.title}", bold=True)
        click.echo(f"  confidence {found.cause.confidence * 100:.0f} %")
        _evidence(found.cause.evidence, _CAUSE_WIDTH)
    if found.unknown and (found.unknown.first_exception or found.unknown.template):
        click.echo(f"  first exception: {_short(found.unknown.first_exception or 'none was printed')}")
        click.echo(f"  as a template:   {_short(found.unknown.template or '')}")
        if found.unknown.near:
            click.echo(f"  perhaps near:    {', '.join(found.unknown.near)}")
    _remedies(found.remedies, marks.arrow, found.facts.get("engine"))
    _contributing(found.contributing)
    if found.benign:
        click.echo(f"  harmless: {', '.join(f'{b.code} {b.count}x' for b in found.benign)}")


def _evidence(items: list[Evidence], width: int = _WIDTH) -> None:
    """Of the first item, the cause's own words, more is shown than of the other ranks' copies."""
    for i, item in enumerate(items):
        worker = f" [{item.worker}]" if item.worker else ""
        click.echo(f"    line {item.line}{worker}: {_short(item.text, width if i == 0 else _WIDTH)}")


def _remedies(remedies: list[Remedy], arrow: str, engine: str | None) -> None:
    for remedy in remedies:
        click.echo(f"  {arrow} {what(remedy, engine)}  ({_SAFETY[remedy.safety]})")
        if remedy.because:
            click.echo(f"      because {remedy.because}")


def what(remedy: Remedy, engine: str | None) -> str:
    """A remedy's change as the log's engine names it, or its action."""
    if not remedy.change:
        return remedy.action or ""
    flags = flags_of(engine)
    return " ".join(
        setting((flags.name_of(name) if flags else None) or _ALL.get(name, name), value) for name, value in remedy.change.items()
    )


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


def _short(text: str, width: int = _WIDTH) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 3] + "..."
