"""llama.cpp's own breakdown of a real GGUF, without allocating it."""

import json
from pathlib import Path

import pytest

from firstlight.app.group import run

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
