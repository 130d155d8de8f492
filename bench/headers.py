"""How fast `firstlight inspect` reads the headers of Kimi-K2.5-NVFP4 (119 shards, 278,219 tensors), side by side with others in one run.

    python bench/headers.py [--folder DIR] [--runs 5] [--grow 10] [--grown DIR] [--peers PYTHON] [--json FILE]

Each row is a whole process: start, imports, work, exit. wall: the best of the runs and their median; cpu: user + system of the process
and its children, the least of the runs; peak: the largest resident set among them. On a shared machine put `chrt -f 20` in front.
--peers: an interpreter of an environment with `grit-datatype`, `hf-mem` and `safetensors`. The hub is a stand-in on loopback in this
process. --grown: a folder that kimi_headers.py made with `--times`.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests/unit/inspect"))
from hub_made import serving

HERE = Path(sys.executable).parent
JSON_LOOP = """
import json, os, sys
n = 0
for f in sorted(os.listdir(sys.argv[1])):
    if f.endswith(".safetensors"):
        with open(os.path.join(sys.argv[1], f), "rb") as h:
            n += len(json.loads(h.read(int.from_bytes(h.read(8), "little")))) - 1
print(n)
"""
SAFE_OPEN = """
import os, sys
from safetensors import safe_open
n = 0
for f in sorted(os.listdir(sys.argv[1])):
    if f.endswith(".safetensors"):
        with safe_open(os.path.join(sys.argv[1], f), "np") as h:
            for k in h.keys():
                s = h.get_slice(k)
                s.get_dtype(), s.get_shape()
                n += 1
print(n)
"""
# hf-mem knows one hub only: its requests are turned to the stand-in.
HF_MEM = """
import os, sys, httpx2
target = httpx2.URL(os.environ["HF_ENDPOINT"])
for kind in (httpx2.Client, httpx2.AsyncClient):
    def build(self, method, url, _old=kind.build_request, **k):
        return _old(self, method, httpx2.URL(url).copy_with(scheme=target.scheme, host=target.host, port=target.port), **k)
    kind.build_request = build
from hf_mem.cli import main
sys.exit(main())
"""


def measure(argv: list[str], env: dict[str, str] | None = None) -> dict[str, Any]:
    """One process: seconds, CPU seconds, peak bytes of it or a child of it, exit code."""
    start = time.perf_counter()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})})
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(max(0, out.tell() - 300))
        tail = out.read().decode("utf-8", "replace")
    return {"wall": wall, "cpu": usage.ru_utime + usage.ru_stime, "peak": usage.ru_maxrss * 1024, "exit": process.returncode, "tail": tail}


def best(name: str, runs: int, once: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    results = [once() for _ in range(runs)]
    top = min(results, key=lambda r: r["wall"])
    row = {
        "name": name,
        "wall_seconds": top["wall"],
        "wall_median": statistics.median(r["wall"] for r in results),
        "cpu_seconds": top["cpu"],
    }
    row |= {"peak_bytes": max(r["peak"] for r in results), "exit": top["exit"], "runs": runs}
    seconds = " ".join(f"{row[k]:7.2f} s" for k in ("wall_seconds", "wall_median", "cpu_seconds"))
    print(f"{name:46} {seconds} {row['peak_bytes'] / 2**20:7.0f} MiB", flush=True)
    if top["exit"]:
        print("   failed:", top["tail"].strip().splitlines()[-1:], flush=True)
    return row


def local_rows(folder: Path, runs: int, peers: Path | None) -> list[dict[str, Any]]:
    rows = [
        best("firstlight inspect -o json, folder", runs, lambda: measure([str(HERE / "firstlight"), "inspect", str(folder), "-o", "json"]))
    ]
    rows.append(best("firstlight inspect (page), folder", runs, lambda: measure([str(HERE / "firstlight"), "inspect", str(folder)])))
    rows.append(best("plain json loop, headers only, no index", runs, lambda: measure([sys.executable, "-c", JSON_LOOP, str(folder)])))
    python = str(peers or sys.executable)
    rows.append(best("safetensors safe_open, dtype and shape", runs, lambda: measure([python, "-c", SAFE_OPEN, str(folder)])))
    if peers is not None and (peers.parent / "grit-scan").exists():
        rows.append(best("grit-scan (grit-datatype)", min(runs, 2), lambda: measure([str(peers.parent / "grit-scan"), str(folder)])))
    return rows


def hub_rows(folder: Path, runs: int, peers: Path | None) -> list[dict[str, Any]]:
    """The same over a loopback hub; requests are counted there."""
    rows = []
    with serving(folder) as (hub, address), tempfile.TemporaryDirectory() as home:
        env = {"HF_ENDPOINT": address, "HF_HOME": home, "HF_TOKEN": "", "HF_HUB_OFFLINE": ""}
        argv = [str(HERE / "firstlight"), "inspect", "bench/kimi", "-o", "json"]
        row = best("firstlight inspect -o json, loopback hub", runs, lambda: measure(argv, env))
        shard = [len(hub.requests_for(p.name)) / runs for p in folder.glob("*.safetensors")]
        row |= {"requests": len(hub.seen) / runs, "most_requests_a_shard": max(shard), "most_at_once": hub.most_at_once}
        print(
            f"{'':46} {row['requests']:.0f} requests, at most {row['most_requests_a_shard']:.0f} a shard, {row['most_at_once']} at once",
            flush=True,
        )
        rows.append(row)
        if peers is not None and (peers.parent / "hf-mem").exists():
            hub.seen.clear()
            argv = [str(peers), "-c", HF_MEM, "--model-id", "bench/kimi"]
            rows.append(best("hf-mem, loopback hub", min(runs, 2), lambda: measure(argv, env)) | {"requests": len(hub.seen) / min(runs, 2)})
    return rows


def make(folder: Path, times: int) -> int:
    """In a process of its own: a child's peak begins with what its parent holds, and this one must stay small."""
    argv = [sys.executable, str(Path(__file__).parent / "kimi_headers.py"), str(folder), "--times", str(times)]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    return int(done.stdout.split()[0].replace(",", ""))


def growth_row(times: int, runs: int, grown: Path | None) -> dict[str, Any]:
    """`times` as many tensors; made and removed here unless `grown` is there already."""
    folder = grown or Path(tempfile.mkdtemp(prefix="kimi-x"))
    if not (folder / "config.json").exists():
        make(folder, times)
    argv = [str(HERE / "firstlight"), "inspect", str(folder), "-o", "json"]
    measure([sys.executable, "-c", JSON_LOOP, str(folder)])
    row = best(f"firstlight inspect -o json, {times} x as many tensors", min(runs, 3), lambda: measure(argv)) | {"times": times}
    if grown is None:
        shutil.rmtree(folder)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--grow", type=int, default=10)
    parser.add_argument("--grown", type=Path)
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results/headers.json")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="kimi-"))
    if not (folder / "config.json").exists():
        make(folder, 1)
    measure([sys.executable, "-c", JSON_LOOP, str(folder)])  # headers into the page cache
    print(f"{'':46} {'wall':>7}   {'median':>7}   {'cpu':>7}   {'peak':>7}", flush=True)
    load = os.getloadavg()[0]
    rows = local_rows(folder, given.runs, given.peers) + hub_rows(folder, given.runs, given.peers)
    if given.grow > 1:
        rows.append(growth_row(given.grow, given.runs, given.grown))
    given.json.parent.mkdir(parents=True, exist_ok=True)
    result = {"processors": len(os.sched_getaffinity(0)), "load_at_start": load, "load_at_end": os.getloadavg()[0], "rows": rows}
    given.json.write_text(json.dumps(result, indent=1) + "\n")
    if given.folder is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
