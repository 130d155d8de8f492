"""The table of damages x checks, on real engines with real weights: what is caught, by which check, and that no healthy endpoint fails.

    python bench/verify.py --source DEMO.gguf [--second CHAT.gguf] [--base BASE.gguf] [--vllm-python PYTHON] [--work FOLDER]
                           [--only NAME;...] [--repeat N] [--table]

Damaged models are made once into --work. Gross damage is judged black box, by the quick profile as it is shipped; mild damage against a
reference of the healthy model on the same engine (`--tolerance exact`). A healthy endpoint is judged --repeat times by the quick profile
and once by the full one (not with --no-full), with time for every check. Rows are kept in bench/results/verify.json as they come; --table
prints them as Markdown and starts nothing.
"""

# ruff: noqa: E402
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import argparse
import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import httpx2
from alone import alone
from corrupt import engines, gguf_models, hf_folder

from firstlight.core.reference import Reference
from firstlight.core.run import Endpoint
from firstlight.core.schema import decode, encode
from firstlight.core.verdict import Verdict
from firstlight.verify.session import Claims
from firstlight.verify.verify import save_reference, verify

RESULTS = ROOT / "bench/results/verify.json"
LIARS, PROXIES = ("bang", "echo", "canned", "stall"), ("garble", "crossed")
BUDGET = 240.0
# Healthy endpoints by engine: row -> (which model, file or folder made of it, sequences at once).
HEALTHY: dict[str, dict[str, tuple[str, str, int]]] = {
    "llamacpp": {
        "4-bit as shipped, batch 16": ("source", "", 16),
        "4-bit as shipped, batch 1": ("source", "", 1),
        "q4_0": ("source", "q4_0", 4),
        "q5_1": ("source", "q5_1", 4),
        "q8_0": ("source", "q8_0", 4),
        "f16, batch 16": ("source", "f16", 16),
        "f16, batch 1": ("source", "f16", 1),
        "bf16": ("source", "bf16", 4),
        "experts-q8_0": ("source", "experts-q8_0", 4),
        "qwen2.5-coder-0.5b 4-bit, batch 16": ("second", "", 16),
        "qwen2.5-coder-0.5b 4-bit, batch 1": ("second", "", 1),
        "qwen2.5-coder-0.5b f16, batch 16": ("second", "f16", 16),
        "qwen2.5-coder-0.5b f16, batch 1": ("second", "f16", 1),
        "gemma-3-270m base 4-bit": ("base", "", 4),
    },
    "vllm": {
        "bf16, batch 16": ("source", "healthy", 16),
        "bf16, batch 1": ("source", "healthy", 1),
        "int4, batch 16": ("source", "int4", 16),
        "int4, batch 1": ("source", "int4", 1),
        "experts bf16": ("source", "experts", 16),
        "qwen2.5-coder-0.5b bf16, batch 16": ("second", "healthy", 16),
        "qwen2.5-coder-0.5b bf16, batch 1": ("second", "healthy", 1),
        "qwen2.5-coder-0.5b int4, batch 16": ("second", "int4", 16),
        "qwen2.5-coder-0.5b int4, batch 1": ("second", "int4", 1),
    },
}
TRUSTED = {"llamacpp": ("q8_0", "experts-q8_0"), "vllm": ("bf16, batch 16", "experts bf16")}


def rows_wanted(engine: str, args: argparse.Namespace) -> list[tuple[str, str]]:
    """(expectation, name) of every row of one engine."""
    healthy = [n for n, (model, _, _) in HEALTHY[engine].items() if getattr(args, model)]
    gross = [*gguf_models.GROSS, *PROXIES, *(LIARS if engine == "llamacpp" else ())]
    rows = [("healthy", n) for n in healthy] + [("gross", n) for n in gross] + [("mild", n) for n in gguf_models.MILD]
    starts = list(dict.fromkeys(recipe(engine, n).start for _, n in rows))
    return sorted(rows, key=lambda r: starts.index(recipe(engine, r[1]).start))


class Recipe(NamedTuple):
    """How a row's endpoint comes about. start: model, file or folder made of it, sequences at once. weights: a folder whose weights the
    running vLLM is given by its own `reload_weights`. proxy: what stands in front. liar: a server without any engine.
    """

    start: tuple[str, str, int] | None
    weights: str | None = None
    proxy: str | None = None


def recipe(engine: str, name: str) -> Recipe:
    """One start of vLLM serves many rows: a start takes a minute and more, other weights or another template a second."""
    main = HEALTHY[engine][TRUSTED[engine][0]]
    if name in LIARS:
        return Recipe(None, proxy=name)
    if name in PROXIES:
        return Recipe(main, proxy=name)
    if name in HEALTHY[engine]:
        return Recipe(HEALTHY[engine][name])
    if engine != "vllm" or name in ("tokenizer-off-by-one", "rope-theta") or "expert" in name:
        return Recipe(("source", name, 16))  # what no reload brings; vLLM's MoE layer on the CPU is garbled by one
    if name in gguf_models.TEMPLATES:
        return Recipe(main, proxy=name)
    return Recipe(main, weights=name)


class Bench:
    """The engine that runs now, kept while the next row wants the same."""

    def __init__(self, args: argparse.Namespace, engine: str) -> None:
        self.args, self.engine = args, engine
        self._stack = ExitStack()
        self._start: tuple[str, str, int] | None = None
        self._running: Endpoint | None = None
        self._weights: str | None = None

    def close(self) -> None:
        self._stack.close()
        self._start = self._running = self._weights = None

    @contextmanager
    def endpoint(self, wanted: Recipe) -> Iterator[Endpoint]:
        upstream = self._served(wanted)
        if wanted.proxy is None:
            assert upstream is not None
            yield upstream
            return
        template = gguf_models.TEMPLATES.get(wanted.proxy)
        with engines.liar("template" if template else wanted.proxy, upstream=upstream, text=template or "") as found:
            yield found

    def _served(self, wanted: Recipe) -> Endpoint | None:
        if wanted.start is None:
            return None
        if self._start != wanted.start:
            self.close()
            self._running = self._stack.enter_context(self._started(*wanted.start))
            self._start = wanted.start
        if self._weights != wanted.weights:
            self._reload(wanted.start, wanted.weights or wanted.start[1])
            self._weights = wanted.weights
        return self._running

    def _folder(self, model: str, variant: str) -> Path:
        made: Path = hf_folder.make(Path(getattr(self.args, model)), Path(self.args.work) / model / "hf", variant)
        return made

    @contextmanager
    def _started(self, model: str, variant: str, batch: int) -> Iterator[Endpoint]:
        source, work = Path(getattr(self.args, model)), Path(self.args.work) / model
        if self.engine == "vllm":
            folder, log = self._folder(model, variant), work / f"vllm-{variant}-{batch}.log"
            extra = ("--max-num-seqs", str(batch), "--trust-request-chat-template")
            with alone(self.args.lock), engines.vllm(folder, python=self.args.vllm_python, log=log, extra=extra) as found:
                yield found
        else:
            made = gguf_models.make(source, work, variant) if variant else source
            with engines.llamacpp(made, parallel=batch, threads=self.args.threads) as found:
                yield found

    def _reload(self, start: tuple[str, str, int], variant: str) -> None:
        """Other weights for the running engine, and nothing of the old ones left in its prefix cache."""
        assert self._running is not None
        root = self._running.base_url.removesuffix("/v1")
        path = str(self._folder(start[0], variant))
        body = {"method": "reload_weights", "kwargs": {"weights_path": path}, "timeout": 300}
        for url, sent in (("/collective_rpc", body), ("/reset_prefix_cache", None)):
            httpx2.post(root + url, json=sent, timeout=300, trust_env=False).raise_for_status()


def trusted_name(engine: str, name: str) -> str:
    return TRUSTED[engine]["expert" in name]


def reference_file(args: argparse.Namespace, engine: str, name: str) -> Path:
    return Path(args.work) / f"reference-{engine}-{trusted_name(engine, name).replace(' ', '-')}.json"


async def judge(args: argparse.Namespace, engine: str, expected: str, name: str, found: Endpoint) -> dict[str, Any]:
    file = reference_file(args, engine, name)
    trusted = decode(file.read_bytes(), Reference) if expected == "mild" else None
    claims = Claims(kind="base") if "base" in name else Claims(json_schema=True)
    budget = BUDGET if expected == "healthy" else None
    verdicts = [await verify(found, claims=claims, trusted=trusted, tolerance="exact", budget_seconds=budget)]
    if expected == "healthy":
        verdicts += [await verify(found, claims=claims, budget_seconds=BUDGET) for _ in range(args.repeat - 1)]
        verdicts += [await verify(found, profile="full", claims=claims, budget_seconds=BUDGET)] if not args.no_full else []
    if name == trusted_name(engine, name) and verdicts[0].passed:
        file.write_bytes(encode(await save_reference(found)))
    return row_of(engine, expected, name, verdicts)


def row_of(engine: str, expected: str, name: str, verdicts: list[Verdict]) -> dict[str, Any]:
    """checks: each check's worst state over all verdicts."""
    worst: dict[str, str] = {}
    evidence: dict[str, list[str]] = {}
    for check in (c for v in verdicts for c in v.checks):
        state = "skipped" if check.skipped else "passed" if check.passed else "failed"
        if state == "failed" or worst.get(check.name) in (None, "skipped"):
            worst[check.name] = state
        if state == "failed":
            evidence[check.name] = check.evidence[:2]
    compared = next((c.evidence[0] for c in verdicts[0].checks if c.name == "reference" and c.evidence), None)
    return {
        "engine": engine,
        "expected": expected,
        "name": name,
        "verdicts": len(verdicts),
        "passed": sum(v.passed for v in verdicts),
        "checks": worst,
        "evidence": evidence,
        "compared": compared,
        "seconds": [round(v.seconds, 1) for v in verdicts],
    }


def as_expected(row: dict[str, Any]) -> bool:
    return bool(row["passed"] == (row["verdicts"] if row["expected"] == "healthy" else 0))


def keep(row: dict[str, Any]) -> None:
    rows = [r for r in load() if (r["engine"], r["name"]) != (row["engine"], row["name"])]
    RESULTS.write_text(json.dumps({"rows": [*rows, row]}, indent=1, ensure_ascii=False) + "\n")


def load() -> list[dict[str, Any]]:
    return json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []


def failed(row: dict[str, Any]) -> list[str]:
    return [n for n, state in row["checks"].items() if state == "failed"]


def table() -> None:
    rows = sorted(load(), key=lambda r: (r["engine"], r["name"]))
    healthy = [r for r in rows if r["expected"] == "healthy"]
    print("| engine | healthy endpoint | verdicts | passed | checks that ran |\n|---|---|---|---|---|")
    for r in healthy:
        ran = r.get("ran") or sum(state != "skipped" for state in r["checks"].values())
        by = "".join(f", `{n}` failed" for n in failed(r))
        print(f"| {r['engine']} | {r['name']} | {r['verdicts']} | {r['passed']}{by} | {ran} |")
    gross = [r for r in rows if r["expected"] == "gross"]
    columns = [n for n in (gross[0]["checks"] if gross else {}) if any(n in failed(r) for r in gross)]
    print("\n| engine | gross damage | caught |", *(f"`{c}` |" for c in columns), "\n|---|---|---|" + "---|" * len(columns), sep="")
    for r in gross:
        marks = {"failed": "x", "passed": "", "skipped": "-"}
        cells = "".join(f" {marks[r['checks'].get(c, 'skipped')]} |" for c in columns)
        print(f"| {r['engine']} | {r['name']} | {'yes' if as_expected(r) else '**no**'} |{cells}")
    print("\n| engine | mild damage | caught | by `reference` | black box alone |\n|---|---|---|---|---|")
    for r in (r for r in rows if r["expected"] == "mild"):
        others = ", ".join(f"`{n}`" for n in failed(r) if n != "reference") or "not seen"
        measure = (r["compared"] or "").partition(" over ")[0]
        print(f"| {r['engine']} | {r['name']} | {'yes' if as_expected(r) else '**no**'} | {measure} | {others} |")


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("--source", "--second", "--base", "--vllm-python", "--only", "--lock"):
        parser.add_argument(name)
    parser.add_argument("--work", default="/tmp/firstlight-damaged")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-full", action="store_true")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.table:
        table()
        return 0
    engine = "vllm" if args.vllm_python else "llamacpp"
    only = args.only.split(";") if args.only else None
    bench = Bench(args, engine)
    try:
        run(args, engine, bench, [r for r in rows_wanted(engine, args) if not only or r[1] in only])
    finally:
        bench.close()
    return 0 if all(as_expected(r) for r in load()) else 1


def run(args: argparse.Namespace, engine: str, bench: Bench, rows: list[tuple[str, str]]) -> None:
    for expected, name in rows:
        began = time.perf_counter()
        with bench.endpoint(recipe(engine, name)) as found:
            row = asyncio.run(judge(args, engine, expected, name, found))
        keep(row)
        word = "as expected" if as_expected(row) else "NOT AS EXPECTED"
        print(f"{engine:9} {expected:8} {name:34} {word:16} {', '.join(failed(row))} ({time.perf_counter() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    sys.exit(main())
