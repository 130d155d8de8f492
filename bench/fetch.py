"""How fast `fetch` is next to a plain parallel downloader, on one loopback server in one run; and how much memory it holds.

    python bench/fetch.py [--shards 16] [--mib 64] [--rounds 5] [--to DIR]

The plain one: threads, http.client, `readinto` a 1 MiB buffer, `write`; no hash, no resume, no checks. Each round runs both, in turn.
"""

import argparse
import http.client
import json
import os
import queue
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))
from hub.models import COMMIT, REPO, write_model  # noqa: E402

PLAIN, OURS = "plain", "firstlight"


def plain(port: int, names: list[str], to: Path, connections: int) -> None:
    todo: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in names:
        todo.put(name)

    def worker() -> None:
        connection, buffer = http.client.HTTPConnection("127.0.0.1", port), bytearray(1 << 20)
        while True:
            try:
                name = todo.get_nowait()
            except queue.Empty:
                return
            connection.request("GET", f"/plain/{REPO}/{COMMIT}/{name}")
            response = connection.getresponse()
            with (to / name).open("wb", buffering=0) as out:
                while n := response.readinto(buffer):
                    out.write(memoryview(buffer)[:n])

    threads = [threading.Thread(target=worker) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def ours(port: int, to: Path) -> None:
    import asyncio

    from firstlight.fetch.fetch import fetch

    env = {**os.environ, "HF_ENDPOINT": f"http://127.0.0.1:{port}", "HF_HOME": str(to / "hf"), "XDG_CACHE_HOME": str(to / "cache")}
    asyncio.run(fetch(REPO, destination=str(to / "model"), env=env))


def child(which: str, port: int, to: Path, connections: int, names: list[str]) -> None:
    """One download in a process of its own: prints seconds and peak memory."""
    if which == OURS:  # imports are not what is measured; `up` has made them already
        import huggingface_hub.hf_api  # noqa: F401

        import firstlight.fetch.fetch  # noqa: F401
    begun = time.perf_counter()
    if which == PLAIN:
        plain(port, names, to, connections)
    else:
        ours(port, to)
    seconds = time.perf_counter() - begun
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"seconds": seconds, "peak_mib": used.ru_maxrss / 1024, "cpu_seconds": used.ru_utime + used.ru_stime}))


def measure(which: str, port: int, root: Path, connections: int, hub: Path) -> dict[str, float]:
    to = Path(tempfile.mkdtemp(dir=root))
    os.sync()
    argv = [
        sys.executable,
        __file__,
        "--child",
        which,
        "--port",
        str(port),
        "--to",
        str(to),
        "--connections",
        str(connections),
        "--hub",
        str(hub),
    ]
    done = subprocess.run(argv, stdout=subprocess.PIPE, check=True, text=True)
    shutil.rmtree(to)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--to", type=Path, default=None)
    for hidden in ("--child", "--port", "--hub"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        hub = Path(args.hub) / REPO / COMMIT
        child(args.child, int(args.port), args.to, args.connections, sorted(p.name for p in hub.iterdir()))
        return
    root = Path(tempfile.mkdtemp(dir=args.to))
    try:
        report(args, root)
    finally:
        shutil.rmtree(root)


def report(args: argparse.Namespace, root: Path) -> None:
    hub = root / "hub"
    write_model(hub / REPO / COMMIT, shards=args.shards, size=args.mib << 20, extras=False)
    total = sum(p.stat().st_size for p in (hub / REPO / COMMIT).iterdir())
    server = subprocess.Popen(
        [sys.executable, str(HERE.parent / "tests" / "hub" / "server.py"), str(hub)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        for which in (PLAIN, OURS):  # the server hashes its files once
            measure(which, port, root, args.connections, hub)
        rounds = [{w: measure(w, port, root, args.connections, hub) for w in (PLAIN, OURS)} for _ in range(args.rounds)]
    finally:
        server.kill()
        server.wait()
    print(f"{args.shards} shards of {args.mib} MiB, {args.connections} plain connections, target {root.parent}")
    print(f"{'round':>5} {'plain MB/s':>11} {'firstlight':>11} {'ratio':>6} {'CPU s':>6} {'CPU s':>6} {'MiB':>5}")
    for i, r in enumerate(rounds):
        a, b = r[PLAIN], r[OURS]
        print(f"{i + 1:>5} {total / a['seconds'] / 1e6:>11.0f} {total / b['seconds'] / 1e6:>11.0f} {a['seconds'] / b['seconds']:>6.2f}"
              f" {a['cpu_seconds']:>6.2f} {b['cpu_seconds']:>6.2f} {b['peak_mib']:>5.0f}")  # fmt: skip
    medians = {w: statistics.median(r[w]["seconds"] for r in rounds) for w in (PLAIN, OURS)}
    ratio = medians[PLAIN] / medians[OURS]
    print(f"median: {ratio:.2f} of the plain downloader's throughput")
    result = {
        "bytes": total,
        "shards": args.shards,
        "rounds": args.rounds,
        "cpus": os.cpu_count(),
        "plain_bytes_per_second": round(total / medians[PLAIN]),
        "firstlight_bytes_per_second": round(total / medians[OURS]),
        "ratio": round(ratio, 3),
        "peak_mib": round(max(r[OURS]["peak_mib"] for r in rounds)),
    }
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / "fetch.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
