"""How fast `fetch` is next to plain parallel downloaders, on one loopback server in one run; and how much memory it holds.

    python bench/fetch.py [--shards 16] [--mib 64] [--rounds 5] [--to DIR] [--link MB]

plain: threads, http.client, `readinto` a 1 MiB buffer, `write`; no hash, no resume, no checks: as lean as Python gets.
hashed: the same, and sha256 of the bytes as they come: what checking costs at least. checked: plain, then sha256 of every file.
hub: huggingface_hub.snapshot_download, 8 workers, no hash. aria2c, aria2c-sha: the program, four files at a time, without checks and with
sha256 of every file; left out where it is not installed (`apt-get install aria2`).
--link: the server sends at most so many MB/s over all connections, as a network does; without it the CPUs are the limit.
Each round runs all of them in turn, each in a process of its own; imports are not counted.
"""

import argparse
import hashlib
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
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))
from hub.models import COMMIT, REPO, write_model  # noqa: E402

PLAIN, HASHED, CHECKED, HUB, ARIA, ARIA_SHA, OURS = ALL = ("plain", "hashed", "checked", "hub", "aria2c", "aria2c-sha", "firstlight")
KINDS = [k for k in ALL if k not in (ARIA, ARIA_SHA) or shutil.which(ARIA)]


def plain(port: int, names: list[str], to: Path, connections: int, *, hashes: bool = False) -> None:
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
            digest = hashlib.sha256()
            with (to / name).open("wb", buffering=0) as out:
                while n := response.readinto(buffer):
                    out.write(memoryview(buffer)[:n])
                    if hashes:
                        digest.update(memoryview(buffer)[:n])

    threads = [threading.Thread(target=worker) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def checked(to: Path, names: list[str]) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def digest(name: str) -> str:
        with (to / name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    with ThreadPoolExecutor() as pool:
        list(pool.map(digest, names))


def hub(port: int, to: Path) -> None:
    from huggingface_hub import snapshot_download

    snapshot_download(REPO, cache_dir=to / "hub", endpoint=f"http://127.0.0.1:{port}")


def aria(port: int, names: list[str], to: Path, connections: int, digests: dict[str, str] | None) -> None:
    """One entry a file; `checksum` makes it hash each file once that is there."""
    rows = []
    for name in names:
        rows += [f"http://127.0.0.1:{port}/plain/{REPO}/{COMMIT}/{name}", f"  out={name}"]
        rows += [f"  checksum=sha-256={digests[name]}"] if digests else []
    (to / "list").write_text("\n".join(rows) + "\n")
    options = [f"-j{connections}", "-x1", "-s1", "--file-allocation=none", "--quiet", "--no-conf", f"--dir={to}"]
    subprocess.run([ARIA, *options, f"--input-file={to / 'list'}"], check=True)


def ours(port: int, to: Path) -> None:
    import asyncio

    from firstlight.fetch.fetch import fetch

    env = {**os.environ, "HF_ENDPOINT": f"http://127.0.0.1:{port}", "HF_HOME": str(to / "hf"), "XDG_CACHE_HOME": str(to / "cache")}
    asyncio.run(fetch(REPO, destination=str(to / "model"), env=env))


def child(which: str, port: int, to: Path, connections: int, model: Path) -> None:
    """One download in a process of its own: prints seconds and peak memory."""
    names = sorted(p.name for p in model.iterdir())
    digests = {n: hashlib.file_digest((model / n).open("rb"), "sha256").hexdigest() for n in names} if which == ARIA_SHA else None
    if which in (OURS, HUB):
        import huggingface_hub.hf_api  # noqa: F401

        import firstlight.fetch.fetch  # noqa: F401
    before, begun = cpu_seconds(), time.perf_counter()
    if which in (PLAIN, HASHED, CHECKED):
        plain(port, names, to, connections, hashes=which == HASHED)
    if which == CHECKED:
        checked(to, names)
    elif which == HUB:
        hub(port, to)
    elif which in (ARIA, ARIA_SHA):
        aria(port, names, to, connections, digests)
    elif which == OURS:
        ours(port, to)
    seconds = time.perf_counter() - begun
    after = cpu_seconds()
    print(json.dumps({"seconds": seconds, "peak_mib": peak_mib(), "cpu_seconds": after - before}))


def cpu_seconds() -> float:
    """Of this process and of the programs that it ran."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def peak_mib() -> float:
    """Of this program alone: `ru_maxrss` would count the parent that forked it."""
    line = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def measure(which: str, port: int, root: Path, connections: int, folder: Path) -> dict[str, float]:
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
        str(folder),
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
    parser.add_argument("--link", type=float, default=0.0)
    parser.add_argument("--to", type=Path, default=None)
    for hidden in ("--child", "--port", "--hub"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child, int(args.port), args.to, args.connections, Path(args.hub) / REPO / COMMIT)
        return
    root = Path(tempfile.mkdtemp(dir=args.to))
    try:
        report(args, root)
    finally:
        shutil.rmtree(root)


def report(args: argparse.Namespace, root: Path) -> None:
    folder = root / "hub"
    write_model(folder / REPO / COMMIT, shards=args.shards, size=args.mib << 20, extras=False)
    total = sum(p.stat().st_size for p in (folder / REPO / COMMIT).iterdir())
    server = subprocess.Popen(
        [sys.executable, str(HERE.parent / "tests" / "hub" / "server.py"), str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        for which in (PLAIN, HUB, OURS):  # the server hashes its files once
            measure(which, port, root, args.connections, folder)
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/_faults", json.dumps({"link_bytes_per_second": args.link * 1e6}).encode(), method="POST"
        )
        urllib.request.urlopen(request).close()
        rounds = [{w: measure(w, port, root, args.connections, folder) for w in KINDS} for _ in range(args.rounds)]
    finally:
        server.kill()
        server.wait()
    show(args, rounds, total, root.parent)


def show(args: argparse.Namespace, rounds: list[dict[str, dict[str, float]]], total: int, to: Path) -> None:
    head = f"{args.shards} shards of {args.mib} MiB to {to}, link {args.link or 'unlimited'}"
    print(f"{head}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}; MB/s (CPU seconds)")
    print(f"{'round':>6} " + " ".join(f"{w:>14}" for w in KINDS) + f" {'of plain':>9} {'of hashed':>10} {'of hub':>7} {'peak MiB':>9}")
    for i, r in enumerate(rounds):
        cells = " ".join(f"{total / r[w]['seconds'] / 1e6:>7.0f} ({r[w]['cpu_seconds']:4.1f})" for w in KINDS)
        of = [r[w]["seconds"] / r[OURS]["seconds"] for w in (PLAIN, HASHED, HUB)]
        print(f"{i + 1:>6} {cells} {of[0]:>9.2f} {of[1]:>10.2f} {of[2]:>7.2f} {r[OURS]['peak_mib']:>9.0f}")
    medians = {w: statistics.median(r[w]["seconds"] for r in rounds) for w in KINDS}
    cells = " ".join(f"{total / medians[w] / 1e6:>14.0f}" for w in KINDS)
    of = [medians[w] / medians[OURS] for w in (PLAIN, HASHED, HUB)]
    print(f"median {cells} {of[0]:>9.2f} {of[1]:>10.2f} {of[2]:>7.2f}")
    result = {
        "command": "python bench/fetch.py " + " ".join(sys.argv[1:]),
        "bytes": total,
        "rounds": args.rounds,
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "target": "tmpfs" if str(to).startswith("/dev/shm") else "disk",
        "median_bytes_per_second": {w: round(total / medians[w]) for w in KINDS},
        "cpu_seconds": {w: round(statistics.median(r[w]["cpu_seconds"] for r in rounds), 2) for w in KINDS},
        **{f"of_{w}": round(medians[w] / medians[OURS], 3) for w in KINDS if w != OURS},
        "peak_mib": round(max(r[OURS]["peak_mib"] for r in rounds)),
    }
    (HERE / "results").mkdir(exist_ok=True)
    path = HERE / "results" / "fetch.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    name = f"link-{args.link:.0f}MB" if args.link else "unlimited"
    results[name if total < 2 << 30 else f"{name}-{total >> 30}GiB"] = result
    path.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
