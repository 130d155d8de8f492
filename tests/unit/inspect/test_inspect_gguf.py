"""GGUF: versions, endianness, split files, MLA keys, long token lists, files that are none. The reference reader is the oracle."""

import os
import struct
import time
import tracemalloc

import gguf as reference
import gguf_made as made
import pytest
from gguf.constants import GGML_QUANT_SIZES
from inspect_made import codes, look

from firstlight.core.errors import InputError
from firstlight.inspect.config import normalise
from firstlight.inspect.gguf import BY_NAME, TYPES, read_gguf
from firstlight.inspect.gguf_config import gguf_config
from firstlight.inspect.kv import kv_bytes_per_token, kv_cache_groups


def _read(raw: bytes, size: int | None = None):
    return read_gguf(lambda o, n: raw[o : o + n], len(raw) if size is None else size, "m.gguf")


@pytest.mark.parametrize(("order", "version"), [("<", 2), ("<", 3), (">", 3)])
def test_versions_and_endianness(tmp_path, order, version):
    found = look(made.write(tmp_path / "m.gguf", made.llama(), made.llama_tensors(), order=order, version=version))
    assert codes(found) == []
    assert (found.format, found.architectures, found.model_type, found.num_hidden_layers) == ("gguf", ["llama"], "llama", 2)
    assert (found.tensor_count, found.shards, found.vocab_size) == (19, 1, 3)
    assert found.quantization.format == "Q4_K_M"
    assert set(found.quantization.layers) == {"Q4_K", "Q6_K", "F32"}
    assert found.tensor_bytes == sum(found.bytes_by_role.values()) <= found.file_bytes
    assert found.kv_bytes_per_token == {"bf16": 2 * 2 * 128 * 2, "fp8": 2 * 2 * 128}
    assert (found.license, found.chat_template.source, found.chat_template.tools) == ("mit", "gguf", True)
    assert (found.tokenizer.class_, found.tokenizer.vocab_size) == ("gpt2", 3)
    assert found.bytes_by_role.keys() >= {"embedding", "lm_head", "attention", "dense_mlp", "norm"}


def test_sizes_of_every_type_equal_the_reference():
    for number, (weights, size) in GGML_QUANT_SIZES.items():
        if number.name == "Q8_1":
            continue  # the Python package counts two floats there, ggml two halves; it is never stored
        assert TYPES[int(number)] == (number.name, weights, size)
    assert BY_NAME["Q4_K"] == (256, 144)


def test_written_by_the_reference_writer(tmp_path):
    import numpy as np

    writer = reference.GGUFWriter(str(tmp_path / "w.gguf"), "llama")
    writer.add_block_count(3)
    writer.add_head_count(8)
    writer.add_array("some.list", [1, 2, 3])
    writer.add_token_list(["<s>", "ü", ""])
    writer.add_tensor("token_embd.weight", np.zeros((3, 64), dtype=np.float16))
    writer.add_tensor("blk.2.attn_q.weight", np.zeros((64, 64), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    raw = (tmp_path / "w.gguf").read_bytes()
    header = _read(raw)
    oracle = reference.GGUFReader(str(tmp_path / "w.gguf"))
    assert [(t.name, t.dtype, t.shape, header.data_start + t.offset) for t in header.tensors] == [
        (t.name, t.tensor_type.name, tuple(int(n) for n in reversed(t.shape)), t.data_offset) for t in oracle.tensors
    ]
    assert header.values["some.list"] == [1, 2, 3]
    assert header.values["tokenizer.ggml.tokens#length"] == 3


def test_the_demo_model(demo_gguf):
    found = look(demo_gguf)
    assert codes(found) == []
    assert (found.tensor_count, found.num_hidden_layers, found.attention) == (272, 30, "gqa")
    assert found.parameters.total == 134_515_008
    assert found.kv_bytes_per_token["bf16"] == 30 * 3 * 128 * 2


def test_token_lists_of_300000_are_stepped_over_at_once():
    raw, _ = made.header(made.llama() | {"tokenizer.ggml.tokens": ["token"] * 300_000, "tokenizer.ggml.merges": ["to ken"] * 300_000}, [])
    reads = []
    start = time.process_time()
    header = read_gguf(lambda o, n: reads.append(n) or raw[o : o + n], len(raw), "m.gguf")
    assert time.process_time() - start < 3
    assert header.values["tokenizer.ggml.tokens#length"] == 300_000
    assert "tokenizer.ggml.tokens" not in header.values
    assert max(reads) <= 1 << 20


def _split(tmp_path, count=3):
    tensors = made.llama_tensors()
    for i in range(count):
        values = {"split.no": i, "split.count": count, "split.tensors.count": len(tensors)} | (made.llama() if i == 0 else {})
        made.write(tmp_path / f"big-Q4_K_M-{i + 1:05d}-of-{count:05d}.gguf", values, tensors[i::count])


def test_split_file_from_any_part_and_from_its_folder(tmp_path):
    _split(tmp_path)
    parts = sorted(tmp_path.iterdir())
    for ref in (*parts, tmp_path):
        found = look(ref)
        assert codes(found) == []
        assert (found.shards, found.tensor_count) == (3, 19)


def test_split_file_with_a_part_missing(tmp_path):
    _split(tmp_path)
    (tmp_path / "big-Q4_K_M-00002-of-00003.gguf").unlink()
    finding = next(f for f in look(tmp_path).findings if f.code == "shard-missing")
    assert finding.evidence == ["expected: 3 parts, found: 2", "big-Q4_K_M-00002-of-00003.gguf"]


def test_several_models_in_one_folder_need_a_name(tmp_path):
    for quant in ("Q4_K_M", "Q8_0"):
        made.write(tmp_path / f"m-{quant}.gguf", made.llama(), made.llama_tensors())
    made.write(tmp_path / "mmproj-F16.gguf", made.llama(), [])
    with pytest.raises(InputError) as error:
        look(tmp_path)
    assert error.value.code == "gguf-ambiguous"
    assert "Q8_0" in error.value.evidence[0]


def test_shorter_than_its_header_says(tmp_path):
    path = made.write(tmp_path / "m.gguf", made.llama(), made.llama_tensors())
    os.truncate(path, path.stat().st_size - 512)
    assert "shard-truncated" in codes(look(path))


def test_without_tokenizer_and_template(tmp_path):
    values = {k: v for k, v in made.llama().items() if not k.startswith("tokenizer")}
    assert codes(look(made.write(tmp_path / "a.gguf", values, made.llama_tensors()))) == ["tokenizer-missing"]
    values["tokenizer.ggml.model"] = "gpt2"
    assert codes(look(made.write(tmp_path / "b.gguf", values, made.llama_tensors()))) == ["chat-template-missing"]


START = b"GGUF" + struct.pack("<I", 3)


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"", "gguf-wrong-magic"),
        (b"GG", "gguf-wrong-magic"),
        (b"PK\x03\x04" + b"\0" * 60, "gguf-wrong-magic"),
        (b"version https://git-lfs.github.com/spec/v1\n", "lfs-pointer"),
        (b"GGUF", "gguf-truncated"),
        (b"GGUF" + struct.pack("<I", 1) + b"\0" * 16, "gguf-version"),
        (b"GGUF" + struct.pack("<I", 77) + b"\0" * 16, "gguf-version"),
        (START + struct.pack("<QQ", 1 << 60, 0), "gguf-absurd-count"),
        (START + struct.pack("<QQ", 0, 1 << 60), "gguf-absurd-count"),
        (START + struct.pack("<QQ", 0, 1) + struct.pack("<Q", 1 << 40) + b"x" * 64, "gguf-absurd-count"),
        (START + struct.pack("<QQ", 0, 1) + made.text("k") + struct.pack("<I", 99) + b"\0" * 64, "gguf-invalid"),
        (START + struct.pack("<QQ", 0, 1) + made.text("k") + struct.pack("<IIQ", 9, 9, 1) + b"\0" * 64, "gguf-invalid"),
        (START + struct.pack("<QQ", 0, 1) + made.text("k") + struct.pack("<IIQ", 9, 4, 1 << 50) + b"\0" * 64, "gguf-absurd-count"),
        (START + struct.pack("<QQ", 0, 1) + made.text("k") + struct.pack("<IIQQ", 9, 8, 4, 1 << 50) + b"\0" * 64, "gguf-truncated"),
        (START + struct.pack("<QQ", 1, 0) + made.text("t") + struct.pack("<I", 9) + b"\0" * 96, "gguf-absurd-count"),
        (START + struct.pack("<QQ", 0, 1) + made.text("general.alignment") + struct.pack("<II", 4, 7) + b"\0" * 64, "gguf-invalid"),
    ],
)  # fmt: skip
def test_files_that_are_none(tmp_path, raw, code):
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    with pytest.raises(InputError) as error:
        look(path)
    assert error.value.code == code
    assert "m.gguf" in error.value.message


def test_every_cut_of_a_header_is_an_error_with_a_code(tmp_path):
    raw, _ = made.header(made.llama(), made.llama_tensors())
    for length in range(0, len(raw) - 32, 7):
        with pytest.raises(InputError) as error:
            _read(raw[:length])
        assert error.value.code.startswith("gguf-")


def test_unknown_tensor_type_is_a_finding(tmp_path):
    raw, _ = made.header(made.llama(), [("blk.0.x", "F32", [4])])
    at = raw.index(b"blk.0.x") + 7 + 4 + 8
    (tmp_path / "m.gguf").write_bytes(raw[:at] + struct.pack("<I", 500) + raw[at + 4 :] + b"\0" * 64)
    assert "dtype-unknown" in codes(look(tmp_path / "m.gguf"))


def test_latent_attention_costs_what_llama_cpp_allocates():
    """deepseek2: one KV head of 512 + 64, 61 layers: 70,272 bytes a token."""
    values = {
        "general.architecture": "deepseek2", "deepseek2.block_count": 61, "deepseek2.attention.head_count": 64,
        "deepseek2.attention.head_count_kv": 1, "deepseek2.attention.key_length": 576, "deepseek2.attention.value_length": 512,
        "deepseek2.attention.key_length_mla": 192, "deepseek2.attention.value_length_mla": 128, "deepseek2.attention.kv_lora_rank": 512,
        "deepseek2.rope.dimension_count": 64, "deepseek2.embedding_length": 7168,
    }  # fmt: skip
    fields = normalise(gguf_config(values)).fields
    assert kv_bytes_per_token(kv_cache_groups(fields)) == {"bf16": 70_272, "fp8": 35_136}
    assert (fields["qk_nope_head_dim"], fields["v_head_dim"]) == (128, 128)


def test_sparse_latent_attention_has_an_indexer():
    values = {
        "general.architecture": "glm-dsa", "glm-dsa.block_count": 3, "glm-dsa.attention.head_count": 64,
        "glm-dsa.attention.kv_lora_rank": 512,
        "glm-dsa.rope.dimension_count": 64, "glm-dsa.attention.indexer.top_k": 2048, "glm-dsa.attention.indexer.key_length": 128,
    }  # fmt: skip
    assert [g.kind for g in kv_cache_groups(normalise(gguf_config(values)).fields)] == ["sparse-mla", "indexer"]


def test_sliding_layers_by_list_and_by_rule():
    base = {
        "general.architecture": "gpt-oss",
        "gpt-oss.block_count": 4,
        "gpt-oss.attention.head_count": 64,
        "gpt-oss.embedding_length": 2880,
    }
    base |= {"gpt-oss.attention.head_count_kv": 8, "gpt-oss.attention.key_length": 64, "gpt-oss.attention.sliding_window": 128}
    for pattern in ({}, {"gpt-oss.attention.sliding_window_pattern": [True, False, True, False]}):
        groups = kv_cache_groups(normalise(gguf_config(base | pattern)).fields)
        assert [(g.kind, g.layers, g.window) for g in groups] == [("sliding-window", [0, 2], 128), ("full", [1, 3], None)]


def test_a_file_full_of_lists_is_not_held_in_memory():
    values = {f"list.{i}": [i] * 4000 for i in range(500)}
    raw, _ = made.header(made.llama() | values, [])
    tracemalloc.start()
    try:
        header = _read(raw)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
    assert header.values["list.499#length"] == 4000
    assert "list.499" not in header.values


def test_more_text_than_any_model_has():
    raw, _ = made.header({f"text.{i}": "x" * (1 << 20) for i in range(20)}, [])
    with pytest.raises(InputError) as error:
        _read(raw)
    assert error.value.code == "gguf-absurd-count"


def _raw(path, values, infos, *, data, alignment=32):
    """infos: (name, type number, dims as the file has them, offset)."""
    out = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(values))
    for k, v in values.items():
        out += made.text(k) + made.value(v)
    for name, number, dims, offset in infos:
        out += made.text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, number, offset)
    with path.open("wb") as f:
        f.write(out + b"\0" * (-len(out) % alignment))
        f.truncate(len(out) + -len(out) % alignment + data)
    return path


FIRST = ("token_embd.weight", 12, (256, 32), 0)  # 4,608 bytes


@pytest.mark.parametrize(
    ("infos", "data", "code", "evidence"),
    [
        ([FIRST, ("output.weight", 0, (256,), 4608)], 5632, None, ""),
        ([FIRST, ("token_embd.weight", 12, (256, 32), 4608)], 9216, "tensor-duplicate", "found: token_embd.weight"),
        ([FIRST, ("output.weight", 0, (256,), 4640)], 5664, "offsets-gap", "expected: output.weight at 4,608, found: at 4,640"),
        ([FIRST, ("output.weight", 0, (256,), 4613)], 5664, "offsets-gap", "found: at 4,613"),
        ([FIRST, ("output.weight", 0, (256,), 4576)], 5664, "offsets-overlap", "found: at 4,576"),
        ([("output.weight", 12, (100, 256), 0)], 14400, "shape-invalid", "expected: rows of whole blocks of 256, found: rows of 100"),
        ([FIRST], 4608 + 5, "shard-too-long", "5 too many"),
        ([FIRST], 4608 - 5, "shard-truncated", "5 missing"),
        ([FIRST, ("x.weight", 99, (256,), 4608)], 9999, "dtype-unknown", "expected: a type of ggml"),
    ],
)
def test_where_the_tensors_lie(tmp_path, infos, data, code, evidence):
    found = look(_raw(tmp_path / "m.gguf", made.llama(), infos, data=data))
    about = [f for f in found.findings if f.code not in ("tokenizer-missing", "chat-template-missing")]
    assert [f.code for f in about] == ([code] if code else [])
    assert all(evidence in f.evidence[0] for f in about)
    assert (found.tensor_bytes is None) is (code == "dtype-unknown")


@pytest.mark.parametrize(("alignment", "fits"), [(4, True), (64, True), (24, False), (0, False)])
def test_alignments_are_powers_of_two(tmp_path, alignment, fits):
    path = _raw(tmp_path / "m.gguf", made.llama() | {"general.alignment": alignment}, [FIRST], data=4608, alignment=alignment or 32)
    if fits:
        assert "offsets-gap" not in codes(look(path))
    else:
        with pytest.raises(InputError, match="impossible alignment"):
            look(path)


def test_draft_layers_are_no_layers_of_the_stack():
    from firstlight.inspect.gguf_config import gguf_config

    config = gguf_config({"general.architecture": "glm-dsa", "glm-dsa.block_count": 79, "glm-dsa.nextn_predict_layers": 1})
    assert (config["num_hidden_layers"], config["num_nextn_predict_layers"]) == (78, 1)


def test_a_missing_part_of_a_split_file_is_named(tmp_path):
    values = made.llama() | {"split.count": 2, "split.no": 1}
    path = _raw(tmp_path / "m-00002-of-00002.gguf", values, [FIRST], data=4608)
    assert next(f for f in look(path).findings if f.code == "shard-missing").evidence == [
        "expected: 2 parts, found: 1",
        "m-00001-of-00002.gguf",
    ]


def test_a_pointer_in_place_of_a_gguf(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    with pytest.raises(InputError) as caught:
        look(path)
    assert (caught.value.code, caught.value.hint) == ("lfs-pointer", "git lfs pull")


def test_a_file_type_that_no_tensor_has(tmp_path):
    path = _raw(tmp_path / "m.gguf", made.llama() | {"general.file_type": 1}, [FIRST], data=4608)  # says F16
    found = look(path)
    assert found.quantization.format == "Q4_K"
    finding = next(f for f in found.findings if f.code == "quant-config-checkpoint-mismatch")
    assert finding.evidence == ["expected: F16, found: Q4_K"]
