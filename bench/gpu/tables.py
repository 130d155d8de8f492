"""Makes the tables of docs/measured.md from the results: python bench/gpu/tables.py [--check].

Writes between the markers of the document; `--check` only says whether it is up to date. Errors are of the prediction against the engine's
own figure, in percent; the computed KV pool is an interval, and `in` says whether it holds the measured one.
"""

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DOCUMENT = HERE.parents[1] / "docs" / "measured.md"
BEGIN, END = "<!-- made by bench/gpu/tables.py -->", "<!-- end -->"
GIB = 1 << 30


def rows() -> list[dict[str, Any]]:
    found = [json.loads(line) for path in sorted((HERE / "results").glob("*.jsonl")) for line in path.read_text().splitlines()]
    return [r for r in found if r["rc"] == 0]


def asked() -> dict[str, dict[str, Any]]:
    path = HERE / "results" / "asked.json"
    return json.loads(path.read_text()) if path.exists() else {}


def percent(predicted: float | None, measured: float | None) -> str:
    if not predicted or not measured:
        return "-"
    return f"{100 * (predicted / measured - 1):+.2f} %"


def prediction(answers: dict[str, dict[str, Any]]) -> list[str]:
    head = (
        "| case | weights measured | computed | asked | KV pool measured | computed mid | interval | in | KV tokens measured | computed |"
    )
    lines = [head, "|" + "---|" * 10]
    for r in rows():
        figures, budget = r["figures"], r["computed"]["per_gpu"]
        weights, pool = figures.get("weights_gib"), figures.get("kv_cache_gib")
        low, mid, high = (budget["kv_pool"][k] / GIB for k in ("low", "mid", "high"))
        heard = answers.get(r["case"], {}).get("weights")
        heard = heard and heard / GIB
        tokens, computed_tokens = figures.get("kv_tokens"), r["computed"]["kv_tokens"]["mid"]
        inside = "yes" if pool is not None and low <= pool <= high else "no"
        cells = [
            r["case"],
            f"{weights} GiB",
            percent(budget["weights"]["mid"] / GIB, weights),
            percent(heard, weights),
            f"{pool} GiB",
            percent(mid, pool),
            f"{low:.2f} to {high:.2f}",
            inside,
            f"{tokens:,}",
            percent(computed_tokens, tokens),
        ]
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
        cells = [r["case"], f"{r['wall_seconds']} s", *(f"{took[n]:.1f}" if n in took else "-" for n in names)]
        cells.append(", ".join(f"{m} MiB" for m in r["used_mib_after_down"]))
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def machines() -> list[str]:
    seen = dict.fromkeys(tuple(r["machine"]["gpus"]) for r in rows())
    return [f"- {len(gpus)} x {gpus[0]} (name, driver, memory as the driver reports it)" for gpus in seen]


def body() -> str:
    answers = asked()
    parts = [
        *machines(),
        "",
        "### Prediction",
        "",
        *summary(answers),
        "",
        *prediction(answers),
        "",
        "### Phases of these starts, seconds",
        "",
        *starts(),
    ]
    return "\n".join(parts)


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
