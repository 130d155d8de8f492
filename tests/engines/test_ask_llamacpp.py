"""llama.cpp's own breakdown of a real GGUF, without allocating it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from firstlight.app.group import run
from firstlight.core.units import MIB

pytestmark = pytest.mark.llamacpp
# SmolLM2-135M: 30 layers, 3 KV heads of 64, keys and values in f16.
KV_BYTES_PER_TOKEN = 30 * 3 * 64 * 2 * 2


@pytest.mark.parametrize("context", [2048, 8192])
def test_kv_cache_is_exact_and_weights_are_the_files(demo_gguf: Path, context: int, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("xllamacpp")
    assert run(["ask", str(demo_gguf), "--engine", "llamacpp", "--max-model-len", str(context), "-o", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    (group,) = answer["kv_groups"]
    assert group["bytes"] == KV_BYTES_PER_TOKEN * context
    assert (group["cells"], group["layers"], group["k"]) == (context, 30, "f16")
    assert answer["kv_tokens"] == context
    weights = answer["per_gpu"]["weights"]
    assert weights["rung"] == "asked"
    assert abs(weights["mid"] - demo_gguf.stat().st_size) < 3 << 20
    assert answer["per_gpu"]["activation_peak"]["mid"] > 0


_LOAD = """
import sys, xllamacpp
from firstlight.engines.llamacpp.inside.serve import arguments, parameters
made = parameters(arguments().parse_args(sys.argv[1:]))
made.fit_params, made.warmup, made.verbosity = False, False, 5
server = xllamacpp.Server(made)
"""


def really_loaded(gguf: Path, context: int) -> dict[str, float]:
    """MiB of a load without the fitting step: what llama.cpp says when it has allocated them."""
    argv = [sys.executable, "-c", _LOAD, "--model", str(gguf), "--alias", "m", "--port", "0", "--ctx-size", str(context)]
    found: dict[str, float] = {}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as process:
        for line in process.stdout or ():
            if match := re.search(r"(model|KV|compute) buffer size =\s*([\d.]+) MiB", line):
                found[match[1]] = found.get(match[1], 0.0) + float(match[2])
            if len(found) == 3:
                break
        process.kill()
    return found


def test_what_was_asked_is_what_a_load_allocates(demo_gguf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("xllamacpp")
    assert run(["ask", str(demo_gguf), "--engine", "llamacpp", "--max-model-len", "4096", "-o", "json"]) == 0
    budget = json.loads(capsys.readouterr().out)["per_gpu"]
    loaded = really_loaded(demo_gguf, 4096)
    asked = {"model": budget["weights"], "KV": budget["kv_pool"], "compute": budget["activation_peak"]}
    assert {name: round(figure["mid"] / MIB, 2) for name, figure in asked.items()} == loaded
