"""The tables of run_eight.py's results: figures per GPU by rung, phases, speed against the roofline, and a killed worker."""

from typing import Any

GIB = 2**30
PARTS = ("weights", "activation_peak", "non_torch", "cuda_graphs", "kv_pool")
Row = dict[str, Any]


def tables(rows: list[Row]) -> list[str]:
    """Of the last run: its steps by name. Nothing where none was run."""
    begins = max((at for at, row in enumerate(rows) if row["step"] == "up"), default=None)
    if begins is None:
        return []
    steps = {row["step"]: row for row in rows[begins:]}
    lines = [f"`up`: exit {steps['up']['rc']} after {steps['up']['seconds']} s, {steps['up']['state']}"]
    if "figures" in steps:
        lines += ["", *_figures(steps["figures"]), "", *_phases(steps["figures"]["phases"])]
    if "bench" in steps:
        lines += ["", *_speed(steps["bench"].get("answer", {}))]
    return [*lines, "", *_after(steps)]


def _figures(told: Row) -> list[str]:
    rungs = {"computed": told["plan"], "asked": told.get("answer"), "rehearsed": told.get("rehearsal")}
    lines = ["| GiB a GPU | computed | asked | rehearsed | measured |", "|---|---|---|---|---|"]
    for part in PARTS:
        cells = [_size((said or {}).get("per_gpu", {}).get(part)) for said in rungs.values()]
        measured = told["split"].get(part)
        lines.append(f"| {part} | {' | '.join(cells)} | {measured / GIB:.2f} |" if measured else f"| {part} | {' | '.join(cells)} | - |")
    tokens = [_count((said or {}).get("kv_tokens")) for said in rungs.values()]
    return [*lines, f"| KV tokens | {' | '.join(tokens)} | {told['figures'].get('kv_tokens', '-'):,} |"]


def _size(figure: Row | None) -> str:
    if not figure or figure.get("mid") is None:
        return "-"
    low, mid, high = (figure[k] / GIB for k in ("low", "mid", "high"))
    return f"{mid:.2f}" if high - low < 0.01 else f"{mid:.2f} ({low:.2f} to {high:.2f})"


def _count(tokens: Row | int | None) -> str:
    """A plan has an interval, an answer and a rehearsal a number."""
    found = tokens.get("mid") if isinstance(tokens, dict) else tokens
    return f"{found:,.0f}" if found is not None else "-"


def _phases(phases: Row) -> list[str]:
    return ["| " + " | ".join(phases) + " |", "|---" * len(phases) + "|", "| " + " | ".join(f"{s:.1f} s" for s in phases.values()) + " |"]


def _speed(report: Row) -> list[str]:
    lines = ["| users | tokens/s | a user | TTFT p50 | TPOT p50 |", "|---|---|---|---|---|"]
    for p in report.get("points", []):
        cells = (
            [f"{p['tokens_per_second_total']:.0f}", f"{p['tokens_per_second_per_user']:.1f}"] if not p.get("error") else [p["error"], "-"]
        )
        times = [f"{1000 * p[name]['p50']:.1f} ms" if p.get(name) else "-" for name in ("ttft", "tpot")]
        lines.append(f"| {p['concurrency']} | {' | '.join([*cells, *times])} |")
    promised = [f"{p['name']}: {p['promised']['mid']:,.0f} {p['unit']} promised, {p['because']}" for p in report.get("promises", [])]
    return [*lines, "", *promised]


def _after(steps: dict[str, Row]) -> list[str]:
    killed = "; ".join(f"{state} after {at} s" for at, state in steps.get("kill a worker", {}).get("states", []))
    freed = ", ".join(f"{mib} MiB" for mib in steps.get("down", {}).get("used_mib", [])) or "no GPU here"
    return [*([f"kill -9 of a worker: {killed}"] if killed else []), f"left after `down`: {freed}"]
