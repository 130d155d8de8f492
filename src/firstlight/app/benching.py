"""`firstlight bench`: options to a run, and the report for a person."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import click
import msgspec
from click.core import ParameterSource

from firstlight.app.endpoints import Target, planned_concurrency, target_of
from firstlight.app.output import glyphs, say
from firstlight.bench.bench import run_bench
from firstlight.bench.compare import BenchComparison, compare
from firstlight.bench.figures import Slo, missed
from firstlight.bench.vllm_tool import Tool, run_vllm_bench
from firstlight.core.checkpoint import Checkpoint
from firstlight.core.errors import Exit, InputError, UsageError
from firstlight.core.plan import Candidate, PlanSet
from firstlight.core.schema import decode
from firstlight.core.units import format_seconds
from firstlight.core.verdict import BenchPoint, BenchReport, Verdict


class Benching(msgspec.Struct, kw_only=True):
    """The command line of `bench`."""

    ref: str
    model: str | None = None
    profile: str = "quick"
    concurrency: int | None = None
    tool: str = "builtin"
    engine_python: str | None = None
    tokenizer: str | None = None
    goodput: tuple[str, ...] = ()
    api_key_file: str | None = None
    force: bool = False
    live: bool = False


async def bench_with(wanted: Benching) -> BenchReport:
    """Finds the endpoint, makes sure that it is coherent (unless forced), measures, and keeps the report in the run's folder."""
    slo = slo_of(wanted.goodput)
    _refuse_idle(wanted)
    target = await target_of(wanted.ref, model=wanted.model, key_file=wanted.api_key_file)
    tool = _vllm_tool(wanted, target) if wanted.tool == "vllm" else None
    verdict = None if wanted.force else await _verdict(wanted, target)
    candidate = _candidate(target)
    if wanted.live:
        click.echo(f"{target.endpoint.base_url}  {target.endpoint.model}  {wanted.profile}  {wanted.tool}")
        click.echo(HEAD)
    if tool is not None:
        report = await asyncio.to_thread(_by_vllm, wanted, tool, target, verdict, candidate)
        for point in report.points if wanted.live else []:
            _show_point(point)
    else:
        report = await run_bench(
            target.endpoint,
            profile=wanted.profile,
            concurrency=wanted.concurrency or planned_concurrency(target),
            candidate=candidate,
            verdict=verdict,
            force=wanted.force,
            api_key=target.api_key,
            on_point=_show_point if wanted.live else None,
            slo=slo,
        )
    if target.folder:
        target.folder.save(report, "bench.json")
    return report


def _refuse_idle(wanted: Benching) -> None:
    """Options that would silently do nothing. Raises UsageError `option-needs`."""
    idle = {"--engine-python": wanted.engine_python, "--tokenizer": wanted.tokenizer} if wanted.tool != "vllm" else {}
    for option in (o for o, given in idle.items() if given):
        raise UsageError("option-needs", f"{option} does nothing without --tool vllm", hint=f"add --tool vllm, or leave {option} out")


def _vllm_tool(wanted: Benching, target: Target) -> Tool:
    """The Python that has vLLM, and the model's folder for its tokenizer."""
    checkpoint = target.folder.try_load(Checkpoint, "checkpoint.json") if target.folder else None
    tokenizer = wanted.tokenizer or (checkpoint.path if checkpoint else None)
    if not wanted.engine_python or not tokenizer:
        missing = "--engine-python" if not wanted.engine_python else "--tokenizer"
        hint = "the Python of the vLLM environment, and the model folder"
        raise UsageError("vllm-bench-needs", f"--tool vllm needs {missing}", hint=hint)
    return Tool(python=wanted.engine_python, tokenizer=tokenizer, api_key=target.api_key, goodput=tuple(wanted.goodput))


def _by_vllm(wanted: Benching, tool: Tool, target: Target, verdict: Verdict | None, candidate: Candidate | None) -> BenchReport:
    return run_vllm_bench(
        target.endpoint,
        tool=tool,
        profile=wanted.profile,
        concurrency=wanted.concurrency or planned_concurrency(target),
        candidate=candidate,
        verdict=verdict,
        force=wanted.force,
    )


async def _verdict(wanted: Benching, target: Target) -> Verdict | None:
    """The run's own verdict, or a quick one now."""
    kept = target.folder.try_load(Verdict, "verdict.json") if target.folder else None
    if kept is not None:
        return kept
    from firstlight.verify.verify import verify

    say("verifying first: figures of an endpoint that makes no sense are none")
    return await verify(target.endpoint, api_key=target.api_key, checks=["models", "coherence"])


def _candidate(target: Target) -> Candidate | None:
    plan = target.folder.try_load(PlanSet, "plan.json") if target.folder else None
    return plan.best if plan else None


def slo_of(limits: tuple[str, ...]) -> Slo | None:
    """`ttft:500 tpot:50` in milliseconds, as vLLM's own --goodput takes them."""
    values: dict[str, float] = {}
    for limit in limits:
        name, _, value = limit.partition(":")
        if name not in ("ttft", "tpot", "e2el") or name in values or not value.replace(".", "", 1).isdecimal():
            raise UsageError("bad-goodput", f"not a limit: {limit!r}", hint="ttft:500 tpot:50 e2el:20000, in milliseconds")
        values[name] = float(value) / 1000
    return Slo(**values) if values else None


HEAD = "users requests  TTFT p50      p99  TPOT p50  ITL p99  E2EL p50 tok/s user    total"


def _show_point(p: BenchPoint) -> None:
    def ms(value: float | None) -> str:
        return "unknown" if value is None else f"{value * 1000:.0f} ms" if value >= 0.1 else f"{value * 1000:.1f} ms"

    def rate(value: float | None) -> str:
        return "unknown" if value is None else f"{value:.1f}"

    failed = f"  {p.failed} failed" if p.failed else ""
    more = [f"goodput {p.goodput:.2f} req/s"] if p.goodput is not None else []
    more += [f"{p.preemptions} preemptions"] if p.preemptions else []
    more += [f"engine's own TPOT {ms(p.engine_tpot_p50)}"] if p.engine_tpot_p50 is not None else []
    more += [f"KV {p.kv_cache_usage:.0%}"] if p.kv_cache_usage is not None else []
    click.echo(
        f"{p.concurrency:5} {p.requests:8} {ms(p.ttft.p50):>9} {ms(p.ttft.p99):>8} {ms(p.tpot.p50):>9} {ms(p.itl.p99):>8} "
        f"{ms(p.e2el.p50):>9} {rate(p.tokens_per_second_per_user):>10} {rate(p.tokens_per_second_total):>8}  {', '.join(more)}{failed}"
    )
    if p.error:
        click.secho(f"      {glyphs().warn} failed: {p.error}", fg="yellow")


def show_report(report: BenchReport) -> None:
    """What follows the table: promises, the client's own cost, the line to tell others."""
    for p in report.promises:
        high = f"{p.promised.high or p.promised.mid:.1f}" if p.promised.known else "unknown"
        because = f" ({p.because})" if p.because else ""
        click.echo(f"promised {p.name}: up to {high} {p.unit} {p.promised.rung}; measured {p.measured.mid:.1f} {p.unit}{because}")
    if cost := report.client_cost:
        micro = f"{cost['microseconds_per_chunk']:.0f} us a chunk"
        gauges = f"; /metrics was read for {cost['metrics_share']:.1%} of the time" if cost.get("metrics_share") else ""
        click.echo(f"client's own cost: {cost['core_share']:.1%} of one core, {micro} over {cost['chunks']} chunks{gauges}")
    if report.forced:
        click.secho(f"{glyphs().warn} forced: measured without passed coherence", fg="yellow")
    click.echo(f"\n{report.headline or 'no single stream was measured'}   ({format_seconds(report.seconds)})")


def exit_of(report: BenchReport, limits: tuple[str, ...]) -> Exit:
    """A level of which no request came to its end is no measurement."""
    if any(p.requests == p.failed for p in report.points):
        return Exit.ENGINE_FAILED
    return Exit.SLO_MISSED if missed_slo(report, limits) else Exit.OK


def missed_slo(report: BenchReport, limits: tuple[str, ...]) -> bool:
    """Whether the planned concurrency's p90 is beyond a limit."""
    slo = slo_of(limits)
    return bool(slo and report.points and missed(report.points[-1], slo))


def refuse_measuring(options: Mapping[str, object]) -> None:
    """Options of a measurement, for a comparison of two that are over. Raises UsageError `option-needs`."""
    context = click.get_current_context()
    said = [n for n in options if context.get_parameter_source(n) is ParameterSource.COMMANDLINE]
    if said:
        option = f"--{said[0].replace('_', '-')}"
        raise UsageError("option-needs", f"{option} does nothing in a comparison: nothing is measured", hint="leave it out")


def compare_files(a: str, b: str) -> BenchComparison:
    return compare(*(decode(_read(f), BenchReport, origin=f) for f in (a, b)))


def _read(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as e:
        raise InputError("file-unreadable", f"the report cannot be read: {file}", evidence=(e.strerror or str(e),)) from None


def show_comparison(c: BenchComparison) -> None:
    marks = glyphs()
    click.echo(f"A  {c.a}\nB  {c.b}\n")
    for line in c.differs:
        click.secho(f"{marks.warn} {line}", fg="yellow")
    for change in c.changes:
        word = {True: "better", False: "worse", None: "equal"}[change.better]
        ratio = "" if change.ratio is None else f"{change.ratio - 1:+.1%}"
        a, b = ("unknown" if v is None else f"{v:.4g}" for v in (change.a, change.b))
        line = f"{change.concurrency:4} users  {change.figure:28} {a:>10} {marks.arrow} {b:>10} {change.unit:6} {ratio:>8} {word}"
        click.secho(line, fg={True: "green", False: "red", None: None}[change.better])
