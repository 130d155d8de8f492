"""`up` on a real vLLM (CPU build): an overlay makes a checkpoint serve that would have died, and a real model makes sense."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from e2e_runner import Firstlight, hashes, run_folder

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
HERE = Path(__file__).parent
ENGINE_LIMIT = 600
# Random weights may end an answer before its first token: nothing to judge, and nothing for bench to measure.
RANDOM_WEIGHTS_FAIL = (
    "completions",
    "trivial-continuations",
    "known-answers",
    "logprob-sanity",
    "prefill-against-decode",
    "no-floods",
    "parallel",
    "stop-strings",
)


def make(*argv: str, cwd: Path = HERE) -> None:
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=300, check=False, cwd=cwd, env={**os.environ, "HF_HUB_OFFLINE": "1"}
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture(scope="module")
def tiny_mla(vllm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny mla"
    make(vllm_python, str(HERE / "tiny_mla.py"), str(folder))
    return folder


@pytest.fixture(scope="module")
def smollm2(demo_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "smollm2"
    make(sys.executable, "-m", "corrupt.hf_folder", str(demo_gguf), str(folder), "healthy", cwd=HERE.parent)
    return folder / "healthy"


def up(folder: Path, python: str, *more: str) -> tuple[str, ...]:
    return ("up", str(folder), "--engine", "vllm", "--engine-python", python, "--max-model-len", "2048", "--enforce-eager", *more)


def test_embedded_fp8_kv_is_said_before_starting_and_an_overlay_makes_it_serve(
    firstlight: Firstlight, tiny_mla: Path, vllm_python: str
) -> None:
    before = hashes(tiny_mla)
    shown = firstlight(*up(tiny_mla, vllm_python, "--dry-run"))
    assert "attn-backend-unsupported-kv-dtype" in shown.stderr
    accepted = [word for name in RANDOM_WEIGHTS_FAIL for word in ("--accept", name)]
    result = firstlight(*up(tiny_mla, vllm_python, "--name", "mla", "--skip", "bench", *accepted), seconds=ENGINE_LIMIT)
    assert result.returncode == 0, result.stderr
    folder = run_folder(firstlight.runs()[0])
    overlay = json.loads((folder / "overlay.json").read_text())
    patched = {f["name"]: f["changes"] for f in overlay["files"] if f["kind"] == "patched"}
    assert set(patched) == {"config.json", "hf_quant_config.json"}
    assert "--served-model-name 'tiny mla'" in (folder / "command.txt").read_text()
    checks = {c["name"]: c for c in json.loads((folder / "verdict.json").read_text())["checks"]}
    assert checks["models"]["passed"]
    assert checks["chat"]["passed"]
    assert not checks["known-answers"]["passed"]
    assert firstlight("verify", "mla", seconds=ENGINE_LIMIT).returncode == 6
    assert hashes(tiny_mla) == before
    assert Path(overlay["path"]).is_dir()
    assert firstlight("down", "mla").returncode == 0


def test_everything_wrong_at_once_stops_with_the_whole_story_or_converges(
    firstlight: Firstlight, tiny_mla: Path, vllm_python: str, tmp_path: Path
) -> None:
    """An embedded FP8 KV cache, a context far beyond the model's, a busy port, and at first a shard that was cut.

    Everything that can be known is said at once, before a start; with what the hints said, the overlay and a free port make it serve.
    """
    model = tmp_path / "all wrong"
    shutil.copytree(tiny_mla, model)
    before = hashes(model)
    weights = max(model.glob("*.safetensors"), key=lambda p: p.stat().st_size)
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of an earlier test may still be in TIME_WAIT
        with contextlib.suppress(OSError):  # somebody else listens there: as good
            stranger.bind(("127.0.0.1", 8000))
            stranger.listen()
        wrong = ("--engine", "vllm", "--engine-python", vllm_python, "--enforce-eager", "--name", "wrong")
        stopped = firstlight("up", str(model), *wrong, "--max-model-len", "100000", "--port", "8000", seconds=ENGINE_LIMIT)
        assert stopped.returncode == 4, stopped.stderr
        for code in ("shard-truncated", "port-in-use", "max-model-len-too-large"):
            assert code in stopped.stderr
        assert not (run_folder(firstlight.runs()[0]) / "attempts").exists()

        weights.write_bytes(whole)
        mended = ("--max-model-len", "4096", "--skip", "verify", "--skip", "bench")  # as the hints said; the port is firstlight's to find
        served = firstlight("up", str(model), *wrong, *mended, seconds=ENGINE_LIMIT)
    assert served.returncode == 0, served.stderr
    run = firstlight.runs()[0]
    folder = run_folder(run)
    assert (run["state"], run["attempt"]) == ("serving", 1)
    assert not run["endpoint"]["base_url"].startswith("http://127.0.0.1:8000/")
    assert json.loads((folder / "plan.json").read_text())["best"]["max_model_len"] == 4096
    assert json.loads((folder / "overlay.json").read_text())["because"]
    assert hashes(model) == before
    assert firstlight("down", "wrong").returncode == 0


def test_a_real_model_is_verified_and_measured(firstlight: Firstlight, smollm2: Path, vllm_python: str) -> None:
    result = firstlight(*up(smollm2, vllm_python, "--name", "smol"), seconds=ENGINE_LIMIT)
    assert result.returncode == 0, result.stderr
    folder = run_folder(firstlight.runs()[0])
    assert json.loads((folder / "verdict.json").read_text())["passed"]
    assert json.loads((folder / "bench.json").read_text())["points"]
    assert "http://127.0.0.1:" in result.stdout
    assert firstlight("down", "smol").returncode == 0
