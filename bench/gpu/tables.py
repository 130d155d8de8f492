"""Makes the tables of docs/measured.md from the results: python bench/gpu/tables.py [--check].

Writes between the markers of the document; `--check` only says whether it is up to date. Errors are of the prediction against the engine's
own figure, in percent; the computed KV pool is an interval, and `in` says whether it holds the measured one.
"""

import json
import sys
from pathlib import Path
from typing import Any

import eight_tables

HERE = Path(__file__).parent
DOCUMENT = HERE.parents[1] / "docs" / "measured.md"
BEGIN, END = "<!-- made by bench/gpu/tables.py -->", "<!-- end -->"
GIB = 1 << 30


def rows() -> list[dict[str, Any]]:
    return [r for r in read("h200.jsonl") if r["rc"] == 0]


def asked() -> dict[str, dict[str, Any]]:
    path = HERE / "results" / "asked.json"
    return json.loads(path.read_text()) if path.exists() else {}


def percent(predicted: float | None, measured: float | None) -> str:
    if not predicted or not measured:
        return "-"
    return f"{100 * (predicted / measured - 1):+.2f} %"


def prediction(answers: dict[str, dict[str, Any]]) -> list[str]:
    head = (
        "| case | weights measured | computed | asked | KV pool measured | computed mid | interval | in | rehearsed KV | "
        "KV tokens measured | computed |"
    )
    lines = [head, "|" + "---|" * 11]
    for r in rows():
        figures, budget = r["figures"], r["computed"]["per_gpu"]
        weights, pool = figures.get("weights_gib"), figures.get("kv_cache_gib")
        low, mid, high = (budget["kv_pool"][k] / GIB for k in ("low", "mid", "high"))
        heard = answers.get(r["case"], {}).get("weights")
        rehearsed = r.get("rehearsed", {}).get("per_gpu", {}).get("kv_pool", {}).get("mid")
        tokens = figures.get("kv_tokens")
        cells = [
            r["case"],
            f"{weights} GiB",
            percent(budget["weights"]["mid"] / GIB, weights),
            percent(heard and heard / GIB, weights),
            f"{pool} GiB",
            percent(mid, pool),
            f"{low:.2f} to {high:.2f}",
            "yes" if pool is not None and low <= pool <= high else "no",
            percent(rehearsed and rehearsed / GIB, pool),
            f"{tokens:,}",
            percent(r["computed"]["kv_tokens"]["mid"], tokens),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def parts() -> list[str]:
    """What the engine says of its own memory (at level DEBUG) against the computed intervals, GiB."""
    names = [("activation_peak", "activation peak"), ("non_torch", "outside torch"), ("cuda_graphs", "CUDA graphs")]
    lines = ["| case | " + " | ".join(f"{title} | computed" for _, title in names) + " |", "|" + "---|" * (1 + 2 * len(names))]
    for r in rows():
        split, budget = r.get("split", {}), r["computed"]["per_gpu"]
        if "activation_peak" not in split:
            continue
        cells = [r["case"]]
        for name, _ in names:
            low, high = budget[name]["low"] / GIB, budget[name]["high"] / GIB
            measured = split.get(name)
            cells += ["-" if measured is None else f"{measured / GIB:.2f}", f"{low:.2f} to {high:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def summary(answers: dict[str, dict[str, Any]]) -> list[str]:
    """Median errors and how often the interval held, in one line each."""
    pools, weights, inside, heard = [], [], 0, []
    for r in rows():
        budget, figures = r["computed"]["per_gpu"], r["figures"]
        pools.append(abs(budget["kv_pool"]["mid"] / GIB / figures["kv_cache_gib"] - 1))
        weights.append(abs(budget["weights"]["mid"] / GIB / figures["weights_gib"] - 1))
        inside += budget["kv_pool"]["low"] / GIB <= figures["kv_cache_gib"] <= budget["kv_pool"]["high"] / GIB
        if answer := answers.get(r["case"]):
            heard.append(abs(answer["weights"] / GIB / figures["weights_gib"] - 1))
    middle = sorted(pools)[len(pools) // 2]
    lines = [
        f"{len(pools)} starts. The computed interval of the KV pool held {inside} of them; the mid's median error is {100 * middle:.2f} %."
    ]
    lines.append(f"Weights: computed, largest error {100 * max(weights):.2f} %" + (f"; asked, {100 * max(heard):.2f} %." if heard else "."))
    return lines


def starts() -> list[str]:
    names = ["configuring", "distributed-init", "loading", "post-load", "compiling", "profiling", "kv-allocation", "capturing", "warming"]
    lines = ["| case | wall | " + " | ".join(names) + " | GPU memory after `down` |", "|" + "---|" * (len(names) + 3)]
    for r in rows():
        took = r.get("phase_seconds") or {}
        cells = [
            r["case"],
            f"{r['wall_seconds']} s" if r["wall_seconds"] else "-",
            *(f"{took[n]:.1f}" if n in took else "-" for n in names),
        ]
        cells.append(", ".join(f"{m} MiB" for m in r["used_mib_after_down"]))
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def read(name: str) -> list[dict[str, Any]]:
    path = HERE / "results" / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def times() -> list[str]:
    """Start to ready of one model with real weight files, the bare command and `up` in turns."""
    lines = ["| page cache | pair | bare | `up` | ratio | supervised, no head start |", "|---|---|---|---|---|---|"]
    for kind in ("cold", "warm"):
        for pair, took in by_pair(kind).items():
            bare, up = took.get("bare"), took.get("up")
            cells = [kind, str(pair + 1), *(f"{s} s" if s else "not run" for s in (bare, up)), f"{up / bare:.2f}" if bare and up else "-"]
            lines.append("| " + " | ".join([*cells, f"{took['supervised']} s" if took.get("supervised") else "-"]) + " |")
    return lines


COMPILED = ("bare first", "bare second", "up first", "up second", "up rehearsed")


def compiled() -> list[str]:
    """Start to ready from empty compile caches, the launch after it, and the launch after a rehearsal."""
    lines = ["| pair | " + " | ".join(COMPILED) + " |", "|---" * (len(COMPILED) + 1) + "|"]
    pairs = by_pair("compile")
    for pair, took in pairs.items():
        lines.append(f"| {pair + 1} | " + " | ".join(f"{took[way]} s" if took.get(way) else "not run" for way in COMPILED) + " |")
    return lines if pairs else []


def by_pair(kind: str) -> dict[int, dict[str, float | None]]:
    """{pair: {way: seconds}}"""
    found: dict[int, dict[str, float | None]] = {}
    for r in read("times/h200.jsonl"):
        if r["kind"] == kind:
            found.setdefault(r["pair"], {})[r["way"]] = r["seconds"]
    return found


def stories() -> list[str]:
    lines = ["| story | ends | seconds | attempts | what was seen and done | GPU memory after |", "|---|---|---|---|---|---|"]
    for r in read("stories/h200.jsonl"):
        told = r["told"]
        steps = [line[2:] for line in told["story"] if line.startswith(("- saw", "- changed"))]
        seen = "; ".join(f"{state} after {at} s" for at, state in told.get("states", []))
        said = steps or ([f"kill -9 of pid {told['victim']}: {seen}"] if seen else [line.strip() for line in told["said"][-2:]])
        cells = [r["story"], f"{told['state']} (exit {told['rc']})", f"{told['seconds']}", str(told["attempts"] or "-"), "; ".join(said)]
        cells += [", ".join(f"{m} MiB" for m in told.get("after_down_mib", r["used_mib_after"]))]
        lines.append(
            "| " + " | ".join(c.replace("|", "/") + (f" ({r['note']})" if c is cells[4] and "note" in r else "") for c in cells) + " |"
        )
    return lines


def verdicts() -> list[str]:
    """What `verify` says of the healthy folder and of damaged ones; the last run of each step."""
    steps = {r["step"]: r for r in read("answers/h200.jsonl") if "passed" in r or "against" in r}
    lines = ["| step | exit | passed | failed | not asked |", "|---|---|---|---|---|"]
    for step, row in steps.items():
        told = row.get("against", row)
        failed = "; ".join(f"{name}: {evidence[0]}" for name, evidence in told["failed"].items()) or "-"
        lines.append(f"| {step} | {told['rc']} | {len(told['passed'])} | {failed} | {', '.join(told['skipped']) or '-'} |")
    return lines if steps else []


def speed() -> list[str]:
    """The built-in client and the engine's own tool in turns on one endpoint; medians of the rounds, and how far the rounds are apart."""
    agreed = next((r["agreement"] for r in reversed(read("answers/h200.jsonl")) if r["step"] == "agreement" and "agreement" in r), [])
    lines = [
        "| users | figure | built-in | vllm bench serve | difference | built-in's rounds differ by | vllm bench serve's |",
        "|---" * 7 + "|",
    ]
    for a in agreed:
        unit = "tokens/s" if a["figure"] == "tokens_per_second" else "ms"
        name = a["figure"].removesuffix("_ms").replace("_p50", " p50").replace("_", " ")
        cells = [str(a["users"]), name, *(f"{a[n]} {unit}" for n in ("firstlight", "other")), f"{a['difference']:+.1%}"]
        lines.append("| " + " | ".join([*cells, *(f"{a[n]:.1%}" for n in ("firstlight_rounds_differ", "other_rounds_differ"))]) + " |")
    return lines if agreed else []


def collectives() -> list[str]:
    path = HERE / "results" / "collectives" / "h200.json"
    if not path.exists():
        return []
    lines = ["| NCCL settings | right sums | small message | 64 MiB |", "|---|---|---|---|"]
    for c in json.loads(path.read_text())["collectives"]:
        settings = " ".join(f"{k}={v}" for k, v in c["settings"].items()) or "none"
        speed_of = f"{c['large_bytes_per_second'] / 1e9:.0f} GB/s"
        lines.append(f"| {settings} | {'yes' if c['equal'] else 'no'} | {1e6 * c['small_seconds']:.0f} us | {speed_of} |")
    return lines


def machines() -> list[str]:
    seen = dict.fromkeys(tuple(r["machine"]["gpus"]) for r in rows())
    return [f"- {len(gpus)} x {gpus[0]} (name, driver, memory as the driver reports it)" for gpus in seen]


def body() -> str:
    answers = asked()
    chapters = {
        "Prediction": [*summary(answers), "", *prediction(answers)],
        "Where the rest of the memory goes, GiB": parts(),
        "Phases of these starts, seconds": starts(),
        "Start to ready with 22.9 GiB of real NVFP4 files (kimi3, eager)": times(),
        "Compile caches: the same with graphs, from empty caches, again, and after a rehearsal": compiled(),
        "Failures, each to an endpoint or to its story": stories(),
        "Verdicts on SmolLM2-135M, healthy and damaged": verdicts(),
        "Speed of SmolLM2-135M on one H200, by two tools": speed(),
        "Kimi-K2.5 at full depth on eight GPUs": eight_tables.tables(read("eight/h200.jsonl")),
        "All-reduce between two H200s, as `probe --all-reduce` measures it": collectives(),
    }
    lines = machines()
    for title, chapter in ((t, c) for t, c in chapters.items() if c):
        lines += ["", f"### {title}", "", *chapter]
    return "\n".join(lines)


def main() -> int:
    text = DOCUMENT.read_text()
    head, _, rest = text.partition(BEGIN)
    tail = rest.partition(END)[2]
    made = f"{head}{BEGIN}\n{body()}\n{END}{tail}"
    if "--check" in sys.argv:
        print("up to date" if made == text else "docs/measured.md is behind the results: run bench/gpu/tables.py")
        return 0 if made == text else 1
    DOCUMENT.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
