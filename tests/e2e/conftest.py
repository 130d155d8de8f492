"""Fixtures of the end-to-end tests."""

import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e_runner import Firstlight
from far_machine import HOME_THERE, USER, Far


@pytest.fixture
def firstlight(tmp_path: Path) -> Iterator[Firstlight]:
    """Whatever a test starts is ended with it."""
    runner = Firstlight(tmp_path)
    yield runner
    runner.close()


def write_safetensors(path: Path, tensors: dict[str, tuple[str, list[int], int]]) -> None:
    """Zeros with an honest header. tensors: name -> (dtype, shape, bytes)."""
    header: dict[str, Any] = {}
    position = 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(position))


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 256,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}


@pytest.fixture
def llama_folder(tmp_path: Path) -> Path:
    """A small, complete Llama folder of zeros: right names, shapes, tokenizer files and chat template."""
    folder = tmp_path / "models" / "tiny llama ü"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(LLAMA))
    tensors = {"model.embed_tokens.weight": ("BF16", [256, 64], 256 * 64 * 2), "model.norm.weight": ("BF16", [64], 128)}
    for i in range(2):
        shapes = {
            "self_attn.q_proj": [64, 64], "self_attn.k_proj": [32, 64], "self_attn.v_proj": [32, 64], "self_attn.o_proj": [64, 64],
            "mlp.gate_proj": [128, 64], "mlp.up_proj": [128, 64], "mlp.down_proj": [64, 128],
            "input_layernorm": [64], "post_attention_layernorm": [64],
        }  # fmt: skip
        for name, shape in shapes.items():
            size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
            tensors[f"model.layers.{i}.{name}.weight"] = ("BF16", shape, size)
    write_safetensors(folder / "model.safetensors", tensors)
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": {}, "merges": []}}))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": "{{ messages }}"})
    )
    return folder


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Far]:
    far = Far(tmp_path_factory.mktemp("far") / "s")
    yield far
    far.machine.close()


@pytest.fixture
def way_in(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every ssh of this test goes to the other machine."""
    monkeypatch.setenv("FIRSTLIGHT_SSH_CONFIG", str(far.config))


@pytest.fixture
def gguf_there(far: Far, demo_gguf: Path) -> str:
    """The demo's file under a path with spaces, on the other machine only."""
    path = f"{HOME_THERE}/my models/smöl.gguf"
    target = far.machine.path(path)
    if not target.exists():
        target.parent.mkdir(parents=True)
        shutil.copy(demo_gguf, target)
        far.inside("chown", "-R", USER, HOME_THERE)
    return path
