"""The first user's case end to end, through the command line: a config alone, a machine and a release that are not there."""

import json
from pathlib import Path
from typing import Any

import kimi_folder
import pytest

from firstlight.app.group import run

MACHINE = ["--gpu", "8xrtx-pro-6000-blackwell"]
CODE = "attn-backend-unsupported-kv-dtype"


@pytest.fixture(scope="module")
def kimi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kimi_folder.write(tmp_path_factory.mktemp("models") / "Kimi K2.5 NVFP4 ü")


def found(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, Any]]:
    status = run([*argv, "-o", "json"])
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["kind"]) == ("firstlight/1", "FindingList")
    return status, {f["code"]: f for f in document["items"]}


def test_0_16_is_blocked_with_its_cures(kimi: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, findings = found(capsys, "preflight", str(kimi), *MACHINE, "--engine", "vllm@0.16.0")
    finding = findings[CODE]
    assert (status, finding["severity"]) == (4, "blocker")
    assert "config.json:quantization_config.kv_cache_scheme" in finding["evidence"][0]
    assert "hf_quant_config.json:quantization.kv_cache_quant_algo" in finding["evidence"][0]
    assert "with a 16-bit KV cache the release picks TRITON_MLA" in finding["evidence"]
    assert finding["hint"].startswith(
        "--kv-cache-dtype bfloat16; or an overlay without config.json:quantization_config.kv_cache_scheme and "
    )
    assert "vllm@0.18.1" in finding["hint"]
    blockers = [c for c, f in findings.items() if f["severity"] == "blocker"]
    assert blockers == [CODE], "a config alone blocks nothing on a machine that is not there"


def test_0_24_has_none_and_says_that_fp8_holds_twice_the_tokens(kimi: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, findings = found(capsys, "preflight", str(kimi), *MACHINE, "--engine", "vllm@0.24.0")
    assert (status, CODE in findings) == (0, False)
    note = findings["kv-cache-fp8"]
    assert "2 times the tokens" in note["message"]
    assert "KV cache per token: 35,136 bytes instead of 70,272" in note["evidence"]


def test_the_cure_as_a_flag_is_taken(kimi: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, findings = found(capsys, "preflight", str(kimi), *MACHINE, "--engine", "vllm@0.16.0", "--kv-cache-dtype", "bfloat16")
    assert (status, CODE in findings) == (0, False)


def test_overridden_by_name_and_never_hidden(kimi: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, findings = found(capsys, "preflight", str(kimi), *MACHINE, "--engine", "vllm@0.16.0", "--ignore", CODE)
    assert (status, findings[CODE]["ignored"], findings[CODE]["severity"]) == (0, True, "blocker")


def test_the_users_own_docker_command(kimi: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = ["docker", "run", "--gpus", "all", "--ipc=host", "-v", "/m:/m", "vllm/vllm-openai:v0.16.0"]
    status, findings = _check(capsys, [*image, "--model", str(kimi), "-tp", "8", "--max_model_len", "131072"])
    assert (status, findings[CODE]["severity"]) == (4, "blocker")
    assert findings[CODE]["note"] is None, "it is the user's command: `up` has no say"


def _check(capsys: pytest.CaptureFixture[str], words: list[str]) -> tuple[int, dict[str, Any]]:
    status = run(["check", *MACHINE, "-o", "json", "--", *words])
    return status, {f["code"]: f for f in json.loads(capsys.readouterr().out)["items"]}


def test_a_model_inside_a_container_leaves_the_rest_checked(capsys: pytest.CaptureFixture[str]) -> None:
    image = ["docker", "run", "vllm/vllm-openai:v0.16.0", "--model", "/only/in/there", "--swap-spce", "4", "--tool-call-parser", "kimi_k9"]
    status, findings = _check(capsys, image)
    assert (status, {"flag-unknown", "parser-unknown"} <= set(findings)) == (4, True)
    assert run(["check", *MACHINE, "--", *image]) == 4
    assert "/only/in/there cannot be read from here (model-not-found)" in capsys.readouterr().out


def test_a_release_can_be_named(kimi: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["vllm", "serve", str(kimi), "-tp", "8"]
    assert run(["check", *MACHINE, "--engine", "vllm@0.16.0", "-o", "json", "--", *words]) == 4
    assert CODE in capsys.readouterr().out
    assert run(["check", *MACHINE, "--engine", "vllm@0.24.0", "-o", "json", "--", *words]) == 0
    assert CODE not in capsys.readouterr().out
    assert run(["check", *MACHINE, "--engine", "llamacpp@1", "--", *words]) == 2


def test_a_person_reads_the_same(kimi: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = run(["preflight", str(kimi), *MACHINE, "--engine", "vllm@0.16.0"])
    text = capsys.readouterr().out
    assert status == 4
    assert "8xrtx-pro-6000-blackwell" in text
    assert "engine   vLLM 0.16.0" in text
    assert f"blocker {CODE}: vLLM 0.16.0 has no attention backend for a KV cache in fp8 on compute capability 12.0" in text
    assert text.rstrip().endswith("blocked by 1 problem")
