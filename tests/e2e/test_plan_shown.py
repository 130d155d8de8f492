"""`plan` through the front door: what is shown of every engine, and that a config without sense gives no answer."""

from pathlib import Path

import pytest
from e2e_runner import Firstlight

GPU = ("--gpu", "1xrtx-4090")


def test_a_gguf_on_a_gpu_is_shown(firstlight: Firstlight, demo_gguf: Path) -> None:
    shown = firstlight("plan", str(demo_gguf), *GPU, "--engine", "llamacpp")
    assert shown.returncode == 0, shown.stderr
    assert "one user: at most" in shown.stdout
    assert "--n-gpu-layers" in shown.stdout


@pytest.mark.parametrize("text", [None, "", "{", '{"num_hidden_layers": "many"}', '{"hidden_size": -1}'])
def test_a_config_without_sense_is_blocked(firstlight: Firstlight, llama_folder: Path, text: str | None) -> None:
    config = llama_folder / "config.json"
    config.unlink() if text is None else config.write_text(text)
    shown = firstlight("plan", str(llama_folder), *GPU, "--engine", "vllm@0.32.0")
    assert shown.returncode == 4
    assert "config.json" in shown.stdout
    assert "FITS" not in shown.stdout


def test_a_broken_tokenizer_does_not_spoil_the_figures(firstlight: Firstlight, llama_folder: Path) -> None:
    (llama_folder / "tokenizer_config.json").write_text("{")
    shown = firstlight("plan", str(llama_folder), *GPU, "--engine", "vllm@0.32.0")
    assert shown.returncode == 0
    assert "tokenizer_config.json is not JSON" in shown.stdout
