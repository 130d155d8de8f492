"""The last word of `up` on stdout: endpoint, a curl line, promised next to measured, what to do next."""

import json
import shlex
from typing import Any

import click

from firstlight.app.elsewhere import tunnel_line
from firstlight.app.output import emit, show_findings
from firstlight.app.session import Session
from firstlight.app.stages import prove
from firstlight.core.figures import Figure
from firstlight.core.findings import Severity
from firstlight.core.run import Endpoint
from firstlight.core.units import format_bytes, format_seconds
from firstlight.core.verdict import BenchReport

NEXT = "logs {name} -f | bench {name} | down {name}"


def print_report(session: Session) -> None:
    endpoint = prove.endpoint_of(session)
    rows = [("endpoint", endpoint.base_url), ("model", endpoint.model)]
    rows += [("verified", prove.summary(session.verdict))] if session.verdict else [("verified", "no: verification was skipped")]
    rows += [("measured", prove.headline(session.bench))] if session.bench else []
    _rows(rows)
    if session.bench and session.bench.promises:
        click.echo()
        _promises(session.bench)
    way = tunnel_line(endpoint, session.host)
    click.echo(f"\n{'from here':10} {way}") if way else None
    click.echo(f"\n{'try it':10} {curl_line(endpoint, prove.claims_of(session).kind)}")
    _rows([("next" if i == 0 else "", f"firstlight {verb}") for i, verb in enumerate(NEXT.format(name=session.name).split(" | "))])


def print_dry_run(session: Session) -> None:
    """The plan and the exact engine command; what was found is on stderr."""
    from firstlight.app.looking import Looked
    from firstlight.app.plan_options import Planning
    from firstlight.app.views.plan import show_plan

    if session.plan_set is not None and session.machine is not None and session.plan_set.best is not None:
        looked = Looked(session.model, session.machine, session.plan_set.best.engine, session.install)
        show_plan(session.plan_set, looked, Planning(intent=session.intent))
        planned = {(f.code, f.message) for f in session.plan_set.findings}
        show_findings([f for f in session.findings if f.severity != Severity.NOTE and (f.code, f.message) not in planned], err=True)
    if session.adapter is not None and session.launch is not None:
        click.echo(f"\nwould start\n{session.adapter.command(session.launch)}")


def emit_plan(session: Session, output: str) -> None:
    if session.plan_set is not None:
        emit(session.plan_set, output, lambda: None)


def emit_run(session: Session, output: str) -> None:
    if session.folder is not None:
        emit(session.folder.run, output, lambda: None)


def _rows(rows: list[tuple[str, str]]) -> None:
    for name, value in rows:
        click.echo(f"{name:10} {value}")


CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "embedding": ("/embeddings", {"input": "Paris is the capital of France."}),
    "base": ("/completions", {"prompt": "The capital of France is", "max_tokens": 8}),
}
CHAT: tuple[str, dict[str, Any]] = (
    "/chat/completions",
    {"messages": [{"role": "user", "content": "Name the capital of France."}], "temperature": 0},
)


def curl_line(endpoint: Endpoint, kind: str | None = None) -> str:
    """A line to paste, in the way that this kind of model is asked; a key is named by its file, never shown."""
    path, asked = CALLS.get(kind or "chat", CHAT)
    body = json.dumps({"model": endpoint.model, **asked})
    key = f' -H "Authorization: Bearer $(cat {shlex.quote(endpoint.api_key_file)})"' if endpoint.api_key_file else ""
    return f"curl -s {endpoint.base_url}{path} -H 'Content-Type: application/json'{key} -d {shlex.quote(body)}"


def _promises(report: BenchReport) -> None:
    rows = [("", "promised", "measured")] + [
        (p.name.replace("_", " "), _figure(p.promised, p.unit), _figure(p.measured, p.unit)) for p in report.promises
    ]
    widths = [max(len(r[i]) for r in rows) for i in range(3)]
    for row in rows:
        click.echo("  " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip())


def _figure(figure: Figure, unit: str) -> str:
    """`12.1 to 14.0 s (computed)`; an interval is shown as one, unknown as unknown."""
    if figure.mid is None and figure.low is None and figure.high is None:
        return "unknown"
    if figure.low is None and figure.mid is None:
        return f"at most {_number(figure.high, unit)} ({figure.rung})"
    if figure.low == figure.high or figure.low is None or figure.high is None:
        return f"{_number(figure.mid if figure.mid is not None else figure.low, unit)} ({figure.rung})"
    return f"{_number(figure.low, unit)} to {_number(figure.high, unit)} ({figure.rung})"


def _number(value: float | int | None, unit: str) -> str:
    if unit == "bytes":
        return format_bytes(value)
    if unit == "s":
        return format_seconds(value)
    return f"{value:,.4g} {unit}".rstrip()
