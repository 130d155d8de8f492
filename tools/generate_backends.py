"""Makes `catalog/engines/vllm/backends.json`: what each vLLM release's own selector picks, without a GPU.

usage: generate_backends.py --python ASKING_PYTHON [--cache DIR] [--check] [VERSION ...]

Only the Python files of each release's wheel are read (ranged reads, 5 to 14 MB), through pip's own index. ASKING_PYTHON is the
interpreter of an environment that `firstlight engines install vllm@VERSION --cpu` made. `--check` regenerates (all releases, or
those named), compares cell by cell with the file in the catalog and exits with 1 when they differ.
"""

import argparse
import datetime
import itertools
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from firstlight.app.places import cache_folder
from firstlight.ask.indexes import required_names
from firstlight.ask.inside import run_inside, scripts
from firstlight.ask.wheels import WheelContents, engine_source, read_contents
from firstlight.core.ids import digest
from firstlight.probe.local import LocalHost

VERSION = "2"
TARGET = Path(__file__).parent.parent / "src/firstlight/catalog/engines/vllm/backends.json"
# The last patch of every minor release that firstlight supports.
RELEASES = [
    "0.14.1",
    "0.15.1",
    "0.16.0",
    "0.17.1",
    "0.18.1",
    "0.19.1",
    "0.20.2",
    "0.21.0",
    "0.22.1",
    "0.23.0",
    "0.24.0",
    "0.25.1",
    "0.26.0",
    "0.27.1",
    "0.28.0",
    "0.29.0",
    "0.30.0",
    "0.31.0",
    "0.32.0",
    "0.33.0",
]
SOURCE = "vLLM's own selector (get_valid_backends) of each release's wheel, run without a GPU; FlashInfer assumed installed"
Cells = dict[tuple[str, str, int], dict[str, str]]


def main() -> int:
    args = arguments()
    cells: Cells = defaultdict(dict)
    late: dict[str, list[dict[str, Any]]] = {}
    releases = []
    for version in args.versions or RELEASES:
        answer, release = ask_release(version, args)
        releases.append(release)
        for cell in answer["cells"]:
            cells[cell["layer"], cell["kv_cache_dtype"], cell["sm"]][version] = cell["chosen"] or "-"
        late[version] = [{**row, "backend": cells["gqa128", row["kv_cache_dtype"], row["sm"]][version]} for row in answer["late"]]
        print(f"{version}: {len(answer['cells'])} cells in {answer['seconds']} s", file=sys.stderr)
    rows = late_rows(late)
    if args.check:
        return compare(cells, rows, [r["version"] for r in releases], json.loads(TARGET.read_text()))
    TARGET.write_text(text(document(releases, cells, rows)))
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", help="default: every release of the table")
    parser.add_argument("--python", required=True)
    parser.add_argument("--cache", default=str(cache_folder() / "ask"))
    parser.add_argument("--check", action="store_true")
    return parser.parse_args()


def ask_release(version: str, args: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """(both sweeps' cells with what the release calls its KV cache dtypes, the release's entry). Answers are kept beside the wheels."""
    source = engine_source(LocalHost(), args.python, f"vllm=={version}", f"{args.cache}/wheels")
    contents = read_contents(source)
    asking = digest(sorted((name, digest(data)) for name, data in scripts("vllm", "asking").items()))
    kept = Path(args.cache, "sweeps", f"{version}-{asking}.json")
    if args.check or not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(sweep(version, source, contents, args)))
    answer = json.loads(kept.read_text())
    release = {"version": version, "built": contents.built, "sha256": contents.sha256, "kv_cache_dtypes": answer["kv_cache_dtypes"]}
    return answer, release


def sweep(version: str, source: str, contents: WheelContents, args: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {"cells": [], "seconds": 0.0}
    for do, timeout in (("sweep", 900), ("kernels", 1800)):
        request = {
            "do": do,
            "source": source,
            "extensions": contents.extensions,
            "required": required_names(contents.requires),
            "gpu": {"sm": 90, "count": 8, "memory": 96 << 30, "name": "GPU"},
            "cache_root": f"{args.cache}/engine-notes/{version}",
        }
        answer = run_inside(LocalHost(), args.python, request, cache=args.cache, timeout=timeout)
        if answer.get("error"):
            raise SystemExit(f"{version}: {answer['error']}")
        for problem in answer.get("problems", []):
            print(f"{version}: not answered: {problem}", file=sys.stderr)
        found["cells"] += [{"kv_cache_dtype": "any", **cell} for cell in answer["cells"]]
        found["seconds"] = round(found["seconds"] + answer["seconds"], 1)
        found["kv_cache_dtypes"] = answer.get("kv_cache_dtypes") or found.get("kv_cache_dtypes")
        found["late"] = answer.get("late") or found.get("late", [])
    return found


def pack(cells: Cells, versions: list[str]) -> list[dict[str, str]]:
    """Cells with the same history become one row: first over GPU generations, then over dtypes, then over layer kinds."""
    by_sm: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for (layer, dtype, sm), chosen in cells.items():
        by_sm[layer, dtype, history(chosen, versions)].append(sm)
    by_dtype: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for (layer, dtype, past), sms in by_sm.items():
        by_dtype[layer, " ".join(map(str, sorted(sms))), past].append(dtype)
    by_layer: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for (layer, sm_text, past), dtypes in by_dtype.items():
        by_layer[" ".join(sorted(dtypes)), sm_text, past].append(layer)
    rows = [{"layers": " ".join(layers), "kv_cache_dtypes": d, "sms": s, "history": h} for (d, s, h), layers in by_layer.items()]
    return sorted(rows, key=lambda r: (r["layers"], r["kv_cache_dtypes"], r["sms"]))


def history(chosen: dict[str, str], versions: list[str]) -> str:
    """`RELEASE:BACKEND` wherever the choice differs from the release before; `?` from where a dtype is no value any more."""
    out, last = [], "?"
    for version in versions:
        now = chosen.get(version, "?")
        if now != last:
            out.append(f"{version}:{now}")
        last = now
    return " ".join(out)


def late_rows(late: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Refusals after the selector, joined over GPU generations and then over releases."""
    by_sm: dict[tuple[str, str, str, str], list[int]] = defaultdict(list)
    for version, found in late.items():
        for row in found:
            if row["backend"] != "-":
                by_sm[row["backend"], row["kv_cache_dtype"], row["raises"], version].append(row["sm"])
    rows: dict[tuple[str, str, str, tuple[int, ...]], list[str]] = defaultdict(list)
    for (backend, dtype, raises, version), sms in by_sm.items():
        rows[backend, dtype, raises, tuple(sorted(sms))].append(version)
    return [
        {"backend": b, "kv_cache_dtype": d, "sms": list(sms), "releases": versions, "raises": raises}
        for (b, d, raises, sms), versions in rows.items()
    ]


def document(releases: list[dict[str, Any]], cells: Cells, late: list[dict[str, Any]]) -> dict[str, Any]:
    versions = [r["version"] for r in releases]
    attention = {k: v for k, v in cells.items() if k[1] != "any"}
    return {
        "generator": f"tools/generate_backends.py {VERSION}",
        "generated": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "source": SOURCE,
        "releases": releases,
        "rows": pack(attention, versions),
        "late": late,
        "kernel_sms": sorted({k[2] for k in cells if k[1] == "any"}),
        "kernels": pack({k: v for k, v in cells.items() if k[1] == "any"}, versions),
    }


def text(made: dict[str, Any]) -> str:
    """JSON with one row a line, so that a diff of the file is a diff of the table."""
    head = {k: v for k, v in made.items() if not isinstance(v, list) or k == "kernel_sms"}
    parts = [json.dumps(head, indent=1)[:-2]]
    for key, value in made.items():
        if isinstance(value, list) and key != "kernel_sms":
            lines = ",\n".join("  " + json.dumps(row) for row in value)
            parts.append(f' "{key}": [\n{lines}\n ]' if value else f' "{key}": []')
    return ",\n".join(parts) + "\n}\n"


def compare(made: Cells, late: list[dict[str, Any]], versions: list[str], kept: dict[str, Any]) -> int:
    """1 when the catalog's file says otherwise about one of `versions`: each cell that differs is printed."""
    was = {(*key, v): chosen for key, past in unpack(kept).items() for v, chosen in past.items() if v in versions}
    now = {(*key, v): chosen for key, past in made.items() for v, chosen in past.items()}
    differ = [key for key in sorted({*was, *now}) if was.get(key) != now.get(key)]
    for key in differ:
        print(f"  {' '.join(map(str, key))}: was {was.get(key, '?')}, is {now.get(key, '?')}", file=sys.stderr)
    lost = sorted(_by_release(kept["late"], versions) ^ _by_release(late, versions))
    for refusal in lost:
        print(f"  a late refusal differs: {refusal}", file=sys.stderr)
    print(f"{len(now)} cells of {len(versions)} releases: {len(differ)} differ, {len(lost)} late refusals differ")
    return 1 if differ or lost else 0


def unpack(document: dict[str, Any]) -> Cells:
    """The file's rows as cells again."""
    versions = [r["version"] for r in document["releases"]]
    cells: Cells = defaultdict(dict)
    for row in document["rows"] + document["kernels"]:
        changes, now = dict(part.split(":", 1) for part in row["history"].split()), "?"
        for version in versions:
            now = changes.get(version, now)
            for layer, dtype, sm in itertools.product(row["layers"].split(), row["kv_cache_dtypes"].split(), row["sms"].split()):
                if now != "?":
                    cells[layer, dtype, int(sm)][version] = now
    return cells


def _by_release(rows: list[dict[str, Any]], versions: list[str]) -> set[tuple[str, ...]]:
    return {
        (v, str(sm), row["backend"], row["kv_cache_dtype"], row["raises"])
        for row in rows
        for v in row["releases"]
        if v in versions
        for sm in row["sms"]
    }


if __name__ == "__main__":
    sys.exit(main())
