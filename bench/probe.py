"""How fast firstlight looks: probing this machine, finding engines, every check.

    python bench/probe.py [--json FILE]

Best of five, wall time, in one process that is already imported; the command's own time (a fresh process) beside it.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from firstlight.catalog.gpus import imagine
from firstlight.core.checkpoint import Checkpoint, KvCacheQuantization
from firstlight.core.intent import Intent
from firstlight.core.plan import Candidate, EngineRef
from firstlight.engines.registry import load_adapters
from firstlight.preflight.context import Context
from firstlight.preflight.run import run_checks
from firstlight.probe.engines import find_engines
from firstlight.probe.local import LocalHost
from firstlight.probe.machine import probe_machine

MLA = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_attention_heads": 64}


def best(action: Callable[[], object], times: int = 5) -> float:
    took = []
    for _ in range(times):
        began = time.perf_counter()
        action()
        took.append(time.perf_counter() - began)
    return min(took)


def checks() -> object:
    checkpoint = Checkpoint(
        ref="x",
        format="safetensors",
        architectures=["KimiK25ForConditionalGeneration"],
        attention="mla",
        config=MLA,
        kv_cache_quantization=KvCacheQuantization(dtype="fp8", sources=["config.json:quantization_config.kv_cache_scheme"]),
    )
    candidate = Candidate(engine=EngineRef(name="vllm", version="0.16.0"), tensor_parallel_size=8)
    machine = imagine("8xrtx-pro-6000-blackwell")
    return run_checks(Context(checkpoint=checkpoint, machine=machine, intent=Intent(model="x", engine="vllm@0.16.0"), candidate=candidate))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "probe.json")
    host, adapters = LocalHost(), load_adapters()
    rows = {
        "probe this machine (13 facts)": best(lambda: probe_machine(host)),
        "find engines": best(lambda: find_engines(host, adapters), 3),
        "every check, 8 GPUs": best(checks),
        "firstlight probe --no-engines (process)": best(lambda: command("probe", "--no-engines", "-o", "json"), 3),
        "firstlight explain CODE (process)": best(lambda: command("explain", "shm-too-small"), 3),
    }
    for name, seconds in rows.items():
        print(f"{name:<42} {seconds * 1000:8.1f} ms")
    options = parser.parse_args()
    options.json.write_text(json.dumps({"unit": "seconds", "rows": {k: round(v, 5) for k, v in rows.items()}}, indent=1) + "\n")


def command(*words: str) -> None:
    program = "import sys; from firstlight.app.main import main; sys.argv = ['firstlight', *sys.argv[1:]]; main()"
    subprocess.run([sys.executable, "-c", program, *words], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
