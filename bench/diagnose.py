"""How right `diagnose` is: every log in the repository, by code, with what was confused for what.

    python bench/diagnose.py [--broken FOLDER ...] [--healthy FILE ...] [--json bench/results/diagnose.json]

--broken: folders that bench/break_vllm.py filled (real starts, broken in real ways). --healthy: logs of starts that worked.
Each log is also read in other shapes (compose, Kubernetes, journald, Ray, a tail of it), in which the answer must stay the same.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import break_vllm

from firstlight.app.rule_logs import named_besides
from firstlight.catalog.rules import builtin_rules
from firstlight.diagnose.diagnose import diagnose

RULES = Path(__file__).parents[1] / "tests" / "rules"
CONFIDENT = 0.7
SHAPES: dict[str, Callable[[int, str], str]] = {
    "plain": lambda i, line: line,
    "compose": lambda i, line: f"vllm-1  | {line}",
    "kubernetes": lambda i, line: f"2026-10-12T08:09:{i % 60:02d}.123456789Z stderr F {line}",
    "journald": lambda i, line: f"Oct 12 08:09:{i % 60:02d} gpu7 vllm[2201]: {line}",
    "ray": lambda i, line: f"\x1b[36m(ServeReplica:app:VLLM pid=771, ip=10.0.0.3)\x1b[0m {line}",
    "shell": lambda i, line: f"[2026-10-12 08:09:{i % 60:02d}] [/bin/sh]: {line}",
    "indented": lambda i, line: f"    {line}",
}


def reshaped(log: bytes, shape: Callable[[int, str], str]) -> bytes:
    lines = log.decode("utf-8", "replace").split("\n")
    return "\n".join(shape(i, line) for i, line in enumerate(lines) if line).encode()


@cache
def consequences() -> frozenset[str]:
    """Codes that are never the cause: named besides the cause is all that they can be."""
    return frozenset(r.code for r in builtin_rules() if r.role == "consequence")


def verdict(log: bytes, expected: set[str], status: int | None = None) -> tuple[str, str]:
    """right | not-visible | unsure (a wrong code below CONFIDENT) | wrong, and the code found."""
    found = diagnose(log, exit_status=status)
    code = found.cause.code if found.cause else "-"
    besides = expected & set(named_besides(found))
    if code in expected or (besides and (code in ("-", "cause-not-visible") or besides <= consequences())):
        return "right", code
    if code in ("-", "cause-not-visible"):
        return "not-visible", code
    assert found.cause is not None
    return ("wrong" if found.cause.confidence >= CONFIDENT else "unsure"), code


def rule_logs() -> list[tuple[str, bytes, set[str], int | None]]:
    return [(p.parent.name, p.read_bytes(), {p.parent.name}, None) for p in sorted(RULES.glob("*/hit-*.log"))]


def broken_logs(folder: Path) -> list[tuple[str, bytes, set[str], int | None]]:
    rows = []
    for case in break_vllm.CASES:
        log, record = folder / f"{case.name}.log", folder / f"{case.name}.json"
        if case.codes and log.exists() and record.exists():
            status = json.loads(record.read_text())["exit_status"]
            rows.append((case.name, log.read_bytes(), set(case.codes), status))
    return rows


def count(rows: list[tuple[str, bytes, set[str], int | None]], shape: str) -> tuple[Counter[str], list[str]]:
    tally: Counter[str] = Counter()
    confused = []
    for name, log, expected, status in rows:
        kind, code = verdict(reshaped(log, SHAPES[shape]), expected, status)
        tally[kind] += 1
        if kind != "right":
            confused.append(f"{name}: {code}")
    return tally, confused


def show(name: str, tally: Counter[str], confused: list[str]) -> dict[str, object]:
    total = sum(tally.values())
    right = 100 * tally["right"] / total if total else 0.0
    print(
        f"{name:34} {total:4} logs  {right:5.1f} % right  {tally['not-visible']:3} not visible  {tally['unsure']:2} unsure  {tally['wrong']:2} wrong"  # noqa: E501
    )
    for line in confused[:12]:
        print(f"    {line}")
    return {"logs": total, **tally, "confused": confused}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--broken", type=Path, nargs="*", default=[])
    parser.add_argument("--healthy", type=Path, nargs="*", default=[])
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "diagnose.json")
    options = parser.parse_args()
    result: dict[str, object] = {}
    rows = rule_logs()
    for shape in SHAPES:
        result[f"rule logs, {shape}"] = show(f"rule logs, {shape}", *count(rows, shape))
    for folder in options.broken:
        for shape in ("plain", "compose", "journald"):
            name = f"{folder.name}, {shape}"
            result[name] = show(name, *count(broken_logs(folder), shape))
    healthy = [*RULES.glob("benign-*/hit-*.log"), *options.healthy]
    failed = [str(p) for p in healthy if diagnose(p.read_bytes()).outcome in ("failed", "serving-failed")]
    print(f"{len(healthy)} healthy logs, {len(failed)} called failed {failed}")
    result["healthy"] = {"logs": len(healthy), "called failed": failed}
    options.json.parent.mkdir(exist_ok=True)
    options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
