"""Fits the constants of vLLM's memory reserve on measured starts, one half of the rows, and reports the other half.

    python tools/fit_memory.py            fitted constants, errors on both halves
    python tools/fit_memory.py --check    exit 1 unless the constants in memory.toml do on the held-out half what the plan promises

Rows: tests/data/plan/kv.jsonl, each with its source. The even rows are fitted, the odd ones held out. Every constant is moved in turn
to where the sum of absolute errors (GiB, each row at most 3) is smallest; three rounds.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "unit" / "plan"))

from plan_measured import Promise, promise
from plan_models import rows

from firstlight.catalog.engines import MemoryTerms, ModelKind, memory_terms
from firstlight.core.units import GIB, MIB

# What logs print for themselves (non-torch of a single GPU: 0.13 GiB, from 0.20 on 0.22 to 0.26) is taken from there and not fitted.
# name -> (field of MemoryTerms, releases it holds for); factors are tried around the value in memory.toml.
CONSTANTS: dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]] = {
    "sampler_bytes before 0.16": ("sampler_bytes", (0,), (0, 16, 0)),
    "sampler_bytes 0.17 to 0.28": ("sampler_bytes", (0, 17), (0, 29)),
    "hidden_buffers": ("hidden_buffers", (0,), (9,)),
    "hidden_buffers_dense": ("hidden_buffers_dense", (0,), (9,)),
    "cuda_graph 0.20 to 0.26": ("cuda_graph_per_layer_and_size", (0, 20), (0, 27)),
    "non_torch_multi before 0.20": ("non_torch_multi", (0,), (0, 20)),
    "non_torch_multi from 0.20": ("non_torch_multi", (0, 20), (9,)),
}
FACTORS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 1.8, 2.2, 2.8, 3.5)
TARGETS = {"coverage": 0.90, "half_width": 0.10, "median_error": 0.06}
Row = dict[str, Any]


def promises(chosen: Sequence[Row], factors: dict[str, float]) -> list[Promise]:
    """Plans of the rows under scaled constants."""

    def scaled(version: str | None, model: ModelKind | None = None) -> MemoryTerms:
        terms = memory_terms(version, model)
        for name, (field, since, before) in CONSTANTS.items():
            if since <= terms.version < before:
                terms = msgspec.structs.replace(terms, **{field: getattr(terms, field) * factors.get(name, 1.0)})
        return terms

    with mock.patch("firstlight.plan.situation.memory_terms", scaled):
        return [promise(row) for row in chosen]


def loss(found: Sequence[Promise]) -> float:
    """Sum of absolute errors in GiB, each at most 3: one odd row must not bend a constant."""
    return sum(min(abs((p.pool.mid or 0) - (p.measured_pool or 0)) / GIB, 3.0) for p in found)


def fit(chosen: Sequence[Row], rounds: int = 3) -> dict[str, float]:
    factors = dict.fromkeys(CONSTANTS, 1.0)
    for _ in range(rounds):
        for name in CONSTANTS:
            scores = {f: loss(promises(chosen, factors | {name: f})) for f in FACTORS}
            best = min(scores.values())
            factors[name] = min((f for f, score in scores.items() if score <= best + 1e-3), key=lambda f: abs(f - 1))
    return factors


def score(found: Sequence[Promise]) -> dict[str, float]:
    return {
        "rows": len(found),
        "median_error": statistics.median(abs(p.pool_error) for p in found),
        "coverage": sum(p.covered for p in found) / len(found),
        "half_width": statistics.median(p.half_width for p in found),
    }


def show(title: str, scores: dict[str, float]) -> None:
    print(
        f"{title:<28} {scores['rows']:>3.0f} rows  median error {scores['median_error']:6.2%}  "
        f"covered {scores['coverage']:7.1%}  half-width {scores['half_width']:6.2%}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    measured = rows("kv")
    fitted_on, held_out = measured[0::2], measured[1::2]
    committed = score(promises(held_out, {}))
    if not check:
        factors = fit(fitted_on)
        for name, (field, since, _before) in CONSTANTS.items():
            value = getattr(memory_terms(".".join(map(str, since))), field)
            unit = GIB if value > 1e7 else MIB if value > 1e5 else 1
            print(f"{name:<32} {value / unit:8.3f} in memory.toml, fitted {value / unit * factors[name]:8.3f}")
        print()
        show("fitted half, fitted", score(promises(fitted_on, factors)))
        show("held-out half, fitted", score(promises(held_out, factors)))
    show("fitted half, memory.toml", score(promises(fitted_on, {})))
    show("held-out half, memory.toml", committed)
    show("all rows, memory.toml", score(promises(measured, {})))
    misses = [name for name, target in TARGETS.items() if (committed[name] < target if name == "coverage" else committed[name] > target)]
    if misses:
        print("missed on the held-out half: " + ", ".join(misses), file=sys.stderr)
    return 1 if check and misses else 0


if __name__ == "__main__":
    sys.exit(main())
