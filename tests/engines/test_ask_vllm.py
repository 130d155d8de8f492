"""The engine's own answers, from the Python files of real releases: offline, without a GPU, held to what GPUs measured."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from firstlight.app.group import run
from firstlight.ask.ask import ask
from firstlight.catalog.gpus import imagine
from firstlight.core.answer import EngineAnswer
from firstlight.core.checkpoint import Checkpoint
from firstlight.core.machine import EngineInstall
from firstlight.core.plan import Candidate, EngineRef
from firstlight.core.units import GIB
from firstlight.probe.local import LocalHost

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
# Read before any test changes HOME. `firstlight engines source vllm@0.16.0 …` puts them there.
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
WHEELS = Path(os.environ.get("FIRSTLIGHT_TEST_WHEELS") or _CACHE / "firstlight/ask/wheels")
PYTHON = os.environ.get("FIRSTLIGHT_ENGINE_PYTHON", "")
STRICT = os.environ.get("FIRSTLIGHT_TEST_STRICT") == "1"

SHAPES = Path(__file__).parent.parent / "data/ask"


def kimi(layers: int) -> dict[str, Any]:
    """Kimi-K2's published shape with fewer layers: MLA, one dense layer, 384 NVFP4 experts, an embedded FP8 KV cache."""
    return _shape(f"kimi-nvfp4-{layers}-layers")


def llama() -> dict[str, Any]:
    return _shape("llama-3.1-8b")


def _shape(name: str) -> dict[str, Any]:
    return dict(json.loads((SHAPES / f"{name}.json").read_text()))


@pytest.fixture(scope="session")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """asked(config, release, gpu, **candidate fields): each question once a session."""
    cache = tmp_path_factory.mktemp("asking")

    def asked(config: dict[str, Any], release: str, gpu: str, **fields: Any) -> EngineAnswer:
        if not PYTHON or not (WHEELS / f"vllm-{release}" / "wheel.json").exists():
            reason = f"needs FIRSTLIGHT_ENGINE_PYTHON and {WHEELS}/vllm-{release} (`make engines`)"
            pytest.fail(reason) if STRICT else pytest.skip(reason)
        if not (cache / "wheels").exists():
            (cache / "wheels").symlink_to(WHEELS)
        folder = tmp_path_factory.mktemp("model")
        (folder / "config.json").write_text(json.dumps(config))
        return ask(
            LocalHost(),
            checkpoint=Checkpoint(ref="test", format="config-only", path=str(folder)),
            machine=imagine(gpu),
            candidate=Candidate(engine=EngineRef(name="vllm", version=release), **fields),
            install=None,
            wheel=f"vllm=={release}",
            asking=EngineInstall(engine="vllm", python=PYTHON, device="cpu"),
            cache=str(cache),
            timeout=400,
        )

    return asked


def gib(answer: EngineAnswer) -> float:
    assert answer.parameter_bytes is not None, answer.findings
    return answer.parameter_bytes / GIB


@pytest.mark.parametrize("release", ["0.16.0", "0.24.0", "0.33.0"])
def test_bytes_of_a_rank_are_what_an_h200_measured(answers: Any, release: str) -> None:
    answer = answers(kimi(3), release, "h200", kv_cache_memory_bytes=10 * GIB)
    assert gib(answer) == pytest.approx(23.35, rel=0.0015)
    assert answer.refusal is None
    assert answer.kv_tokens == pytest.approx(10 * GIB / (3 * 576), rel=0.001)


def test_llama_8b_is_fifteen_gib(answers: Any) -> None:
    answer = answers(llama(), "0.24.0", "h200", max_model_len=32768, kv_cache_memory_bytes=10 * GIB)
    assert gib(answer) == pytest.approx(15.00, rel=0.0015)
    assert answer.kv_tokens == 10 * GIB // (32 * 2 * 8 * 128 * 2 * 16) * 16


def test_the_first_users_case_refused_by_0_16_and_served_by_0_24(answers: Any) -> None:
    old = answers(kimi(3), "0.16.0", "8xrtx-pro-6000-blackwell", tensor_parallel_size=8)
    assert old.refusal is not None
    assert old.refusal.startswith("No valid attention backend found")
    assert [f.code for f in old.findings] == ["engine-refuses-backend"]
    assert old.backends[0].chosen is None
    assert old.backends[0].rejected["TRITON_MLA"] == ["kv_cache_dtype not supported"]
    new = answers(kimi(3), "0.24.0", "8xrtx-pro-6000-blackwell", tensor_parallel_size=8, kv_cache_memory_bytes=GIB)
    assert new.refusal is None
    assert (new.backends[0].layer, new.backends[0].kv_cache_dtype, new.backends[0].chosen) == ("mla576", "fp8_e4m3", "TRITON_MLA")


def test_too_long_a_context_is_refused_with_the_length_that_fits(answers: Any) -> None:
    answer = answers(llama(), "0.24.0", "h200", max_model_len=131072, kv_cache_memory_bytes=10 * GIB)
    assert answer.refusal is not None
    assert "estimated maximum model length is 81920" in answer.refusal
    assert answer.findings[0].hint == "--max-model-len 81920, or less"
    assert gib(answer) == pytest.approx(15.00, rel=0.0015)


def test_nvfp4_kv_passes_the_selector_and_dies_in_the_builder(answers: Any) -> None:
    answer = answers(
        llama(), "0.24.0", "rtx-pro-6000-blackwell", kv_cache_dtype="nvfp4", max_model_len=8192, kv_cache_memory_bytes=10 * GIB
    )
    assert answer.backends[0].chosen == "FLASHINFER"
    assert answer.refusal == "--kv-cache-dtype nvfp4 requires sm100f, please try a different dtype or remove"
    assert answer.findings[0].code == "engine-refuses-late"


def test_tensor_expert_and_context_parallel_share_what_they_share(answers: Any) -> None:
    one = answers(kimi(3), "0.33.0", "8xh200", tensor_parallel_size=1, kv_cache_memory_bytes=GIB, max_model_len=32768)
    eight = answers(
        kimi(3),
        "0.33.0",
        "8xh200",
        tensor_parallel_size=8,
        enable_expert_parallel=True,
        decode_context_parallel_size=8,
        kv_cache_memory_bytes=GIB,
        max_model_len=32768,
    )
    assert gib(one) / 8 < gib(eight) < gib(one) / 4
    assert eight.kv_tokens == pytest.approx(8 * one.kv_tokens, rel=0.01)


def test_pipeline_stages_have_their_own_budgets(answers: Any) -> None:
    answer = answers(kimi(3), "0.24.0", "2xh200", pipeline_parallel_size=2, kv_cache_memory_bytes=GIB, max_model_len=32768)
    assert [r.ranks for r in answer.ranks] == [[0], [1]]
    weights = [r.per_gpu.weights.mid for r in answer.ranks]
    assert answer.parameter_bytes == max(weights)
    assert sum(weights) == pytest.approx(23.35 * GIB, rel=0.01)


def test_an_answer_is_remembered(answers: Any) -> None:
    first = answers(llama(), "0.24.0", "h200", max_model_len=32768, kv_cache_memory_bytes=10 * GIB)
    assert answers(llama(), "0.24.0", "h200", max_model_len=32768, kv_cache_memory_bytes=10 * GIB) == first


def test_a_model_that_the_release_does_not_have_is_its_own_refusal(answers: Any) -> None:
    config = {**llama(), "architectures": ["NeverMadeForCausalLM"], "model_type": "llama"}
    answer = answers(config, "0.24.0", "h200")
    assert answer.refusal is not None
    assert "NeverMadeForCausalLM" in answer.refusal


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\n", "ModuleNotFoundError"),
        ("raise RuntimeError('no engine at all')\n", "no engine at all"),
        ("import os\nos._exit(7)\n", "exit status 7"),
        ("import os\nos.kill(os.getpid(), 9)\n", "out of memory"),
        ("raise SystemExit(0)\n", "SystemExit"),
        ("print('{}' * 99)\nraise ImportError('no libcuda')\n", "no libcuda"),
        ("x = [bytearray(1 << 28) for _ in range(64)]\n", "MemoryError"),
        ("while True: pass\n", "no answer within"),
    ],
)
def test_a_package_called_vllm_that_is_none_leaves_a_finding(tmp_path: Path, text: str, said: str) -> None:
    if not PYTHON:
        pytest.fail("needs `make engines`") if STRICT else pytest.skip("needs `make engines`")
    source = tmp_path / "cache/wheels/vllm-0.24.0"
    (source / "vllm").mkdir(parents=True)
    (source / "vllm/__init__.py").write_text(text)
    contents = {
        "name": "vllm",
        "version": "0.24.0",
        "sha256": None,
        "built": "",
        "extensions": [],
        "requires": [],
        "files": 1,
        "bytes_read": 1,
    }
    (source / "wheel.json").write_text(json.dumps({**contents, "files": 1, "bytes_read": 1}))
    (tmp_path / "config.json").write_text(json.dumps(llama()))
    answer = ask(
        LocalHost(),
        checkpoint=Checkpoint(ref="test", format="config-only", path=str(tmp_path)),
        machine=imagine("h200"),
        candidate=Candidate(engine=EngineRef(name="vllm", version="0.24.0")),
        install=None,
        wheel="vllm==0.24.0",
        asking=EngineInstall(engine="vllm", python=PYTHON, device="cpu"),
        cache=str(tmp_path / "cache"),
        timeout=20 if "while" in text else 300,
    )
    (finding,) = answer.findings
    assert finding.severity == "warning"
    assert said in " ".join(finding.evidence)
    assert (answer.refusal, answer.per_gpu) == (None, None)


def test_the_command_gives_a_document_and_an_exit_code(own_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not PYTHON or not (WHEELS / "vllm-0.16.0/wheel.json").exists():
        pytest.fail("needs `make engines`") if STRICT else pytest.skip("needs `make engines`")
    (own_home / "cache/firstlight/ask").mkdir(parents=True)
    (own_home / "cache/firstlight/ask/wheels").symlink_to(WHEELS)
    (tmp_path / "config.json").write_text(json.dumps(kimi(3)))
    argv = ["ask", str(tmp_path), "--engine-wheel", "vllm==0.16.0", "--gpu", "8xrtx-pro-6000-blackwell", "--kv-cache-dtype", "fp8"]
    assert run([*argv, "--timeout", "400", "-o", "json"]) == 4
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["kind"], document["version"]) == ("firstlight/1", "EngineAnswer", "0.16.0")
    assert "No valid attention backend found" in document["refusal"]
    assert run(argv) == 4  # remembered: no engine is started again
    shown = capsys.readouterr().out
    assert "refuses" in shown
    assert "TRITON_MLA" in shown
