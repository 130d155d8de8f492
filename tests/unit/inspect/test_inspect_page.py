"""`firstlight inspect` as a person and as a program see it."""

import json

import pytest
from inspect_made import row, write_row, write_tiny

from firstlight.app.group import run

PAGE = """\
small model  safetensors  2 files, 21 tensors  208.62 KiB
  architecture  LlamaForCausalLM (llama)
  shape         2 layers, hidden 64, GQA attention, context 512, vocabulary 256
  parameters    106,816
  quantization  none (BF16)
  chat          tokenizer T, template

  dense MLP       ███████████████                    96.00 KiB  46.02%
  attention       ███████                            48.00 KiB  23.01%
  embedding       █████                              32.00 KiB  15.34%
  LM head         █████                              32.00 KiB  15.34%
  norm            ▌                                      640 B   0.30%

  KV cache        2 x full            128 bf16, 64 fp8 B a token and layer (2 KV heads of 16)
                a token costs 256 B (bf16), 128 B (fp8) in all layers that grow

✓ nothing wrong found
"""


def test_the_page(tmp_path, capsys):
    assert run(["inspect", str(write_tiny(tmp_path / "small model", shards=2))]) == 0
    out = capsys.readouterr().out
    assert out == PAGE
    assert max(map(len, out.splitlines())) <= 110


def test_without_unicode(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FIRSTLIGHT_ASCII", "1")
    assert run(["inspect", str(write_tiny(tmp_path / "m"))]) == 0
    assert capsys.readouterr().out.isascii()


def test_findings_do_not_change_the_exit_code(tmp_path, capsys):
    folder = write_tiny(tmp_path / "m", shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    assert run(["inspect", str(folder)]) == 0
    assert "✗ blocker shard-missing: model-00002-of-00003.safetensors is not there" in capsys.readouterr().out


def test_json_is_a_document(tmp_path, capsys):
    assert run(["inspect", str(write_row(tmp_path / "k", row("nvidia/Kimi-K2.5-NVFP4"))), "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["kind"]) == ("firstlight/1", "Checkpoint")
    assert found["kv_bytes_per_token"] == {"bf16": 70272, "fp8": 35136}
    for field in [
        "ref",
        "format",
        "revision",
        "architectures",
        "model_type",
        "config",
        "num_hidden_layers",
        "hidden_size",
        "attention",
        "max_position_embeddings",
        "vocab_size",
        "moe",
        "tensor_count",
        "shards",
        "tensor_bytes",
        "file_bytes",
        "parameters",
        "bytes_by_dtype",
        "bytes_by_role",
        "tensor_groups",
        "quantization",
        "kv_cache_quantization",
        "kv_cache_groups",
        "kv_bytes_per_token",
        "modalities",
        "tokenizer",
        "chat_template",
        "generation_config",
        "trust_remote_code",
        "license",
        "findings",
    ]:
        assert field in found


@pytest.mark.parametrize(("ref", "code"), [("./nowhere", "model-not-found"), ("{empty}", "not-a-checkpoint")])
def test_errors_are_messages(tmp_path, capsys, ref, code):
    assert run(["inspect", ref.format(empty=tmp_path)]) == 2
    assert f"error {code}" in capsys.readouterr().err


def test_content_is_verified_on_request(tmp_path, capsys):
    assert run(["inspect", str(write_tiny(tmp_path / "m")), "--verify", "sha256"]) == 0
    assert "content-unverified" in capsys.readouterr().out


def test_the_hybrid_page_shows_states_and_windows(tmp_path, capsys):
    run(["inspect", str(write_row(tmp_path / "q", row("Qwen/Qwen3.5-27B")))])
    assert "48 x linear 3.06 MiB a request and layer" in " ".join(capsys.readouterr().out.split())
    run(["inspect", str(write_row(tmp_path / "g", row("openai/gpt-oss-120b")))])
    assert "the last 128 tokens" in capsys.readouterr().out
