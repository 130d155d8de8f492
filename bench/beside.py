"""Do a download and a rehearsal slow each other? `fetch` alone, `rehearse` alone, then both as `up` runs them, from a hub on loopback.

    python bench/beside.py --python PYTHON [--link 20] [--layers 12] [--rounds 1]

PYTHON: the interpreter of a vLLM (it also writes the model: 400 MB of BF16 with 12 layers). --link: what the hub sends at most, MB/s.
`up` is ended when its stage `fetch` is over: the launch is not what is measured.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REPO, COMMIT = "acme/llama", "c" * 40
MODEL = """
import sys, torch
sys.path.insert(0, sys.argv[3])
from tiny_mla import write_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(vocab_size=512, hidden_size=1024, intermediate_size=4096, num_hidden_layers=int(sys.argv[2]), num_attention_heads=16,
                     num_key_value_heads=8, max_position_embeddings=2048, bos_token_id=0, eos_token_id=1)
LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(sys.argv[1], max_shard_size="50MB")
from pathlib import Path
write_tokenizer(Path(sys.argv[1]))
"""


class Bench:
    def __init__(self, root: Path, python: str, port: int) -> None:
        self.root, self.python, self.port, self.made = root, python, port, 0

    def env(self) -> dict[str, str]:
        """A fresh home: nothing is cached, neither weights nor kernels."""
        self.made += 1
        home = self.root / f"home{self.made}"
        home.mkdir()
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "HF_", "FIRSTLIGHT_"))}
        return {**kept, "HOME": str(home), "HF_ENDPOINT": f"http://127.0.0.1:{self.port}", "VLLM_TARGET_DEVICE": "cpu"}

    def firstlight(self, env: dict[str, str], *words: str) -> "subprocess.Popen[str]":
        argv = [sys.executable, "-m", "firstlight", *words]
        return subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def engine(self) -> list[str]:
        return ["--engine", "vllm", "--engine-python", self.python, "--max-model-len", "1024", "--max-num-seqs", "4", "--enforce-eager"]

    def fetch(self) -> float:
        return float(self._json(self.env(), "fetch", REPO)["seconds"])

    def rehearse(self, folder: Path) -> float:
        return float(self._json(self.env(), "rehearse", str(folder), *self.engine())["seconds"])

    def beside(self) -> tuple[float, float]:
        """Seconds of the download and of the rehearsal within one `up`."""
        env = self.env()
        up = self.firstlight(env, "up", REPO, *self.engine(), "--rehearse", "always", "--skip", "verify", "--skip", "bench", "--yes")
        try:
            folder = self._until_fetched(Path(env["HOME"]), up)
        finally:
            up.send_signal(signal.SIGINT)
            up.communicate(timeout=60)
            self.firstlight(env, "down", "--all", "--kill").communicate(timeout=60)
        moved = [e["time"] for e in _events(folder) if e["kind"] == "progress" and e["data"].get("unit") == "bytes"]
        report = json.loads((folder / "rehearsal.json").read_text())
        assert report["passed"], report["refusal"]
        return moved[-1] - moved[0], float(report["seconds"])

    def _until_fetched(self, home: Path, up: "subprocess.Popen[str]") -> Path:
        while up.poll() is None:
            for path in home.glob(".local/state/firstlight/runs/*/events.jsonl"):
                if any(e["kind"] == "stage-finished" and e["stage"] == "fetch" for e in _events(path.parent)):
                    return path.parent
            time.sleep(0.2)
        raise SystemExit(f"up ended early: {up.communicate()[1][-2000:]}")

    def _json(self, env: dict[str, str], *words: str) -> dict[str, Any]:
        process = self.firstlight(env, *words, "-o", "json")
        out, err = process.communicate(timeout=600)
        if process.returncode:
            raise SystemExit(f"{words[0]} failed: {err[-2000:]}")
        return json.loads(out)


def _events(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "events.jsonl").read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True)
    parser.add_argument("--link", type=float, default=20.0)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    root = Path(tempfile.mkdtemp())
    folder = root / "hub" / REPO / COMMIT
    folder.mkdir(parents=True)
    try:
        subprocess.run([args.python, "-c", MODEL, str(folder), str(args.layers), str(HERE.parent / "tests" / "e2e")], check=True)
        with _hub(root / "hub", args.link) as port:
            measure(args, Bench(root, args.python, port), folder)
    finally:
        shutil.rmtree(root)


class _hub:
    def __init__(self, folder: Path, link: float) -> None:
        argv = [sys.executable, str(HERE.parent / "tests" / "hub" / "server.py"), str(folder)]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.link = link

    def __enter__(self) -> int:
        assert self.process.stdout is not None
        port = int(self.process.stdout.readline())
        for path, body in ((f"api/models/{REPO}", None), ("_faults", json.dumps({"link_bytes_per_second": self.link * 1e6}).encode())):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", data=body).close()
        return port

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def measure(args: argparse.Namespace, bench: Bench, folder: Path) -> None:
    total = sum(p.stat().st_size for p in folder.iterdir())
    rows = []
    print(f"{total / 1e6:.0f} MB over {args.link:.0f} MB/s, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}; seconds")
    print(f"{'round':>5} {'fetch':>8} {'rehearsal':>10} | {'fetch':>8} {'rehearsal':>10} side by side")
    for i in range(args.rounds):
        alone = (bench.fetch(), bench.rehearse(folder))
        both = bench.beside()
        rows.append((*alone, *both))
        print(f"{i + 1:>5} {alone[0]:>8.1f} {alone[1]:>10.1f} | {both[0]:>8.1f} {both[1]:>10.1f}", flush=True)
    names = ("fetch_alone", "rehearsal_alone", "fetch_beside", "rehearsal_beside")
    medians = {name: round(statistics.median(row[i] for row in rows), 1) for i, name in enumerate(names)}
    result = {
        "command": "python bench/beside.py --python PYTHON " + f"--link {args.link:g} --layers {args.layers}",
        "bytes": total,
        "link_bytes_per_second": args.link * 1e6,
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "rounds": args.rounds,
        "seconds": medians,
    }
    path = HERE / "results" / "beside.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(results | {f"link-{args.link:g}MB": result}, indent=2) + "\n")


if __name__ == "__main__":
    main()
