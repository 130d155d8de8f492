"""Adapters: what they start, what they find, what they patch. Nothing runs but the discovery script."""

import shlex
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from firstlight.core.checkpoint import Checkpoint, KvCacheQuantization
from firstlight.core.errors import FirstlightError
from firstlight.core.figures import Figure, Rung
from firstlight.core.intent import Intent
from firstlight.core.machine import Accelerator, EngineInstall, Machine
from firstlight.core.plan import Candidate, EngineRef, OverlaySpec, Predicted
from firstlight.core.ports import EngineAdapter
from firstlight.engines.llamacpp.adapter import RUNNER
from firstlight.engines.llamacpp.adapter import adapter as llamacpp
from firstlight.engines.llamacpp.inside.serve import arguments
from firstlight.engines.registry import find_adapter, load_adapters
from firstlight.engines.vllm.adapter import adapter as vllm

FAKE_PYTHON = Path(__file__).parents[2] / "fake_engine" / "python"
SOURCES = ["config.json:quantization_config.kv_cache_scheme", "hf_quant_config.json:quantization.kv_cache_quant_algo"]
MLA: dict[str, Any] = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}


def checkpoint(**changes: Any) -> Checkpoint:
    return Checkpoint(**{"ref": "m", "format": "safetensors", "path": "/m", **changes})


def candidate(**changes: Any) -> Candidate:
    return Candidate(**{"engine": EngineRef(name="vllm"), **changes})


def cpu(version: str = "0.32.0") -> EngineInstall:
    return EngineInstall(engine="vllm", version=version, python="/env/bin/python", device="cpu")


def cuda(version: str) -> EngineInstall:
    return EngineInstall(engine="vllm", version=version, python="/env/bin/python", device="cuda")


def gpus(sm: int) -> Machine:
    return Machine(hostname="h", accelerators=[Accelerator(index=0, name="GPU", sm=sm)])


def launch(adapter: EngineAdapter = vllm, *, install: EngineInstall | None = None, intent: Intent | None = None, **changes: Any) -> Any:
    return adapter.launch(
        candidate=candidate(**changes),
        checkpoint=checkpoint(),
        intent=intent or Intent(model="m"),
        install=install or cpu(),
        model_path="/models/my model",
        served_name="mine",
        port=8123,
    )


def test_both_engines_come_through_the_entry_points() -> None:
    assert [a.name for a in load_adapters()] == ["llamacpp", "vllm"]
    assert all(isinstance(a, EngineAdapter) for a in load_adapters())
    assert find_adapter("vllm@0.32.0").name == "vllm"
    with pytest.raises(FirstlightError) as raised:
        find_adapter("nonesuch")
    assert raised.value.code == "engine-unknown"


def test_a_broken_or_doubled_adapter_is_named() -> None:
    for value, code in (("no.such.module:x", "adapter-broken"), ("json:dumps", "adapter-broken")):
        with pytest.raises(FirstlightError) as raised:
            load_adapters([EntryPoint("broken", value, "firstlight.engines")])
        assert raised.value.code == code
    ours = EntryPoint("vllm", "firstlight.engines.vllm.adapter:adapter", "firstlight.engines")
    with pytest.raises(FirstlightError) as raised:
        load_adapters([ours, ours])
    assert raised.value.code == "adapter-twice"


def test_vllm_command_can_be_pasted() -> None:
    spec = launch(
        args=["--max-model-len", "4096"], intent=Intent(model="m", extra_args=["--seed", "1"], gpus=[0, 1], api_key_file="/k e y")
    )
    expected = ["/env/bin/python", "-m", "vllm.entrypoints.cli.main", "serve", "/models/my model", "--served-model-name", "mine"]
    expected += ["--host", "127.0.0.1", "--port", "8123", "--max-model-len", "4096", "--seed", "1"]
    assert spec.argv == expected
    assert spec.env["VLLM_TARGET_DEVICE"] == "cpu"
    assert spec.env["HF_HUB_OFFLINE"] == "1"
    assert spec.env["VLLM_NO_USAGE_STATS"] == "1"
    assert spec.env["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert spec.secret_files == {"VLLM_API_KEY": "/k e y"}
    words = shlex.split(vllm.command(spec))
    assert words[0] == "env"
    assert words[-len(expected) :] == expected
    assert "VLLM_API_KEY=$(cat '/k e y')" in words


def test_a_pasted_command_runs_as_it_says(tmp_path: Path) -> None:
    key = tmp_path / "the key"
    key.write_text("geheim\n")
    show = "import os, sys; print(sys.argv[1:], os.environ['A'], os.environ.get('B'), os.environ['K'])"
    spec = launch().__class__(
        engine="x", argv=[sys.executable, "-c", show, "a b", "$HOME"], env={"A": "x y"}, unset_env=["B"], secret_files={"K": str(key)}
    )
    done = subprocess.run(["sh", "-c", vllm.command(spec)], env={"B": "1"}, capture_output=True, text=True, check=True)
    assert done.stdout == "['a b', '$HOME'] x y None geheim\n"


@pytest.mark.parametrize("word", ["--api-key", "--api-key=secret", "--hf-token"])
def test_secrets_are_refused_among_arguments(word: str) -> None:
    for adapter in (vllm, llamacpp):
        with pytest.raises(FirstlightError) as raised:
            launch(adapter, intent=Intent(model="m", extra_args=[word, "x"]))
        assert raised.value.code == "secret-in-arguments"


def test_the_ready_timeout_is_set_where_it_bites() -> None:
    slow = Predicted(
        load_seconds=Figure(), decode_tokens_per_second_upper_bound=Figure(), ready_seconds=Figure.exact(1500.0, Rung.COMPUTED)
    )
    assert "VLLM_ENGINE_READY_TIMEOUT_S" not in launch(predicted=slow).env
    assert launch(predicted=slow, data_parallel_size=2).env["VLLM_ENGINE_READY_TIMEOUT_S"] == "4500"
    assert launch(intent=Intent(model="m", extra_args=["--api-server-count=4"])).env["VLLM_ENGINE_READY_TIMEOUT_S"] == "2400"
    mine = Intent(model="m", env={"VLLM_ENGINE_READY_TIMEOUT_S": "7"})
    assert launch(data_parallel_size=2, intent=mine).env["VLLM_ENGINE_READY_TIMEOUT_S"] == "7"


def test_remote_code_only_on_a_yes() -> None:
    assert "--trust-remote-code" not in launch().argv
    allowed = Intent(model="m", trust_remote_code=True)
    assert launch(intent=allowed).argv.count("--trust-remote-code") == 1
    assert launch(intent=allowed, args=["--trust_remote_code"]).argv.count("--trust-remote-code") == 0


def test_llamacpp_runs_the_binary_or_the_runner_with_the_same_flags() -> None:
    flags = ["--ctx-size", "2048", "--parallel", "2", "-ngl", "99", "-fa", "on", "--cache-type-k", "q8_0", "--jinja"]
    embedded = launch(llamacpp, install=EngineInstall(engine="llamacpp", python="/p"), args=flags)
    binary = launch(llamacpp, install=EngineInstall(engine="llamacpp", binary="/b/llama-server"), args=flags)
    assert embedded.argv[:2] == ["/p", RUNNER]
    assert binary.argv == ["/b/llama-server", *embedded.argv[2:]]
    parsed = arguments().parse_args(embedded.argv[2:])
    assert (parsed.model, parsed.alias, parsed.port) == ("/models/my model", "mine", 8123)
    assert getattr(parsed, "--ctx-size") == 2048


def test_discovery_reads_an_environment_without_importing_it() -> None:
    done = subprocess.run(vllm.discovery(str(FAKE_PYTHON)), capture_output=True, text=True, check=True)
    found = vllm.read_install(str(FAKE_PYTHON), "noise of a sitecustomize\n" + done.stdout)
    assert found is not None
    assert (found.version, found.device, found.torch, found.python) == ("0.32.0", "cpu", "2.13.0+cpu", str(FAKE_PYTHON))
    assert vllm.read_install(sys.executable, "") is None
    assert vllm.read_install(sys.executable, '{"other": 1}\n') is None
    plain = subprocess.run([sys.executable, "-S", "-c", vllm.discovery("x")[2]], capture_output=True, text=True, check=True)
    assert vllm.read_install(sys.executable, plain.stdout) is None


def test_discovery_of_a_llama_server() -> None:
    assert llamacpp.discovery("/b/llama-server") == ["/b/llama-server", "--version"]
    found = llamacpp.read_install("/b/llama-server", "version: 6527 (7f76692)\nbuilt with gcc\n")
    assert found is not None
    assert (found.version, found.binary, found.python) == ("6527", "/b/llama-server", None)
    assert llamacpp.read_install("/b/llama-server", "usage: …") is None


def fp8(**changes: Any) -> Checkpoint:
    return checkpoint(
        attention="mla",
        config={**MLA, "num_hidden_layers": 4},
        kv_cache_quantization=KvCacheQuantization(dtype="fp8", sources=SOURCES),
        **changes,
    )


def test_an_embedded_kv_dtype_without_a_backend_is_stripped() -> None:
    spec = vllm.overlay(fp8(), candidate(), Machine(hostname="h"), cpu())
    assert spec is not None
    assert [(p.file, p.path, p.remove) for p in spec.patches] == [
        ("config.json", ["quantization_config", "kv_cache_scheme"], True),
        ("hf_quant_config.json", ["quantization", "kv_cache_quant_algo"], True),
    ]
    assert "CPU" in spec.because
    assert vllm.overlay(fp8(), candidate(), gpus(120), cuda("0.16.0")) is not None


def test_it_is_left_where_it_works_or_was_asked_for() -> None:
    assert vllm.overlay(fp8(), candidate(), gpus(120), cuda("0.24.0")) is None
    assert vllm.overlay(fp8(), candidate(), gpus(90), cuda("0.16.0")) is None
    assert vllm.overlay(fp8(), candidate(args=["--kv-cache-dtype", "fp8"]), Machine(hostname="h"), cpu()) is None
    assert vllm.overlay(checkpoint(attention="mla"), candidate(), Machine(hostname="h"), cpu()) is None
    mine = OverlaySpec(patches=[], because="planned")
    assert vllm.overlay(checkpoint(), candidate(overlay=mine), gpus(90), cuda("0.24.0")) is mine
    assert llamacpp.overlay(fp8(), candidate(), Machine(hostname="h"), None) is None


def test_install_hints_know_the_machine() -> None:
    assert vllm.install_hint(Machine(hostname="h")).endswith("--cpu")
    assert "--cpu" not in vllm.install_hint(gpus(90))
    assert "--cpu" not in vllm.install_hint(None)
