"""Any bytes: a Checkpoint with findings or an error with a code, never another exception, never more memory than the header is worth."""

import json
import struct
import tracemalloc
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import gguf_made
from hypothesis import given, settings
from hypothesis import strategies as st
from inspect_made import header_of, look, tiny, tiny_tensors, write_raw, write_shard, write_sharded
from safetensors import safe_open

from firstlight.core.checkpoint import Checkpoint
from firstlight.core.errors import FirstlightError
from firstlight.core.schema import decode, encode
from firstlight.inspect.config import normalise
from firstlight.inspect.fold import Fold
from firstlight.inspect.gguf import read_gguf
from firstlight.inspect.kv import kv_cache_groups
from firstlight.inspect.safetensors import HeaderError, header_length, read_header

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
OFFSET = st.integers(-8, 64) | st.integers(-(2**65), 2**65)
ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["BF16", "U8", "F4", "X"]) | JSON,
        "shape": st.lists(OFFSET, max_size=4) | JSON,
        "data_offsets": st.tuples(OFFSET, OFFSET) | JSON,
    },
)
NAME = st.sampled_from(["model.layers.0.a.weight", "model.layers.12.mlp.experts.3.w1", "__metadata__", "a\nb", "x"]) | st.text(max_size=12)
LIMIT = 64 << 20


def _header(raw: bytes, size: int) -> None:
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    with suppress(HeaderError, FirstlightError):
        read_header(raw, "f", size, Fold(4))
    assert tracemalloc.get_traced_memory()[1] - before < LIMIT + len(raw)


@settings(max_examples=150, deadline=1000)
@given(st.dictionaries(NAME, ENTRY | JSON, max_size=6), st.integers(0, 1000))
def test_any_table_as_a_header(table, extra):
    tracemalloc.start()
    try:
        raw = json.dumps(table, default=str).encode()
        _header(raw, 8 + len(raw) + extra)
    finally:
        tracemalloc.stop()


@settings(max_examples=150, deadline=1000)
@given(st.binary(max_size=300) | st.just(b"version https://git-lfs").map(lambda b: b + b"x" * 40), st.integers(0, 1 << 62))
def test_any_bytes_as_a_shard(raw, size):
    try:
        length = header_length(raw[:8], "f", size)
        read_header(raw[8 : 8 + length], "f", size, Fold())
    except (HeaderError, FirstlightError):
        pass


@settings(max_examples=100, deadline=1000)
@given(st.data())
def test_any_damage_to_a_true_header(data):
    raw, size = header_of(tiny_tensors())
    at = data.draw(st.integers(0, len(raw) - 1))
    broken = raw[:at] + data.draw(st.binary(max_size=6)) + raw[at + data.draw(st.integers(0, 6)) :]
    _header_or_error(broken, 8 + len(broken) + size)


def _header_or_error(raw: bytes, size: int) -> None:
    try:
        for finding in read_header(raw, "f", size, Fold(2)):
            assert finding.code
            assert "f" in finding.message
    except (HeaderError, FirstlightError):
        pass


def _is_gguf_error(error: FirstlightError) -> None:
    assert error.code.startswith("gguf-")


@settings(max_examples=150, deadline=1000)
@given(st.data())
def test_any_damage_to_a_gguf(data):
    raw, size = gguf_made.header(gguf_made.llama(), gguf_made.llama_tensors(), order=data.draw(st.sampled_from("<>")))
    at = data.draw(st.integers(0, len(raw) - 1))
    broken = raw[:at] + data.draw(st.binary(max_size=9)) + raw[at + data.draw(st.integers(0, 9)) :]
    try:
        read_gguf(lambda o, n: broken[o : o + n], len(broken) + size, "f")
    except FirstlightError as e:
        _is_gguf_error(e)


@settings(max_examples=100, deadline=1000)
@given(st.binary(max_size=200), st.integers(0, 1 << 40))
def test_any_bytes_as_a_gguf(raw, size):
    start = b"GGUF" + struct.pack("<I", 3) + raw
    try:
        read_gguf(lambda o, n: start[o : o + n], max(len(start), size), "f")
    except FirstlightError as e:
        _is_gguf_error(e)


FIELDS = st.sampled_from(
    [
        "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "layer_types", "sliding_window",
        "kv_lora_rank", "qk_rope_head_dim", "index_topk", "compress_ratios", "linear_attn_config", "block_configs", "text_config",
        "quantization_config", "model_type", "architectures", "vision_config", "sparse_attention_config", "hybrid_override_pattern",
        "n_routed_experts", "moe_layer_freq", "mamba_num_heads", "num_kv_shared_layers", "indexer_types", "hybrid_layer_pattern",
    ]
)  # fmt: skip


@settings(max_examples=150, deadline=2000)
@given(st.dictionaries(FIELDS, JSON | st.integers(0, 300), max_size=6))
def test_any_config(fields):
    one = normalise(tiny(**fields))
    kv_cache_groups(one.fields)


@settings(max_examples=60, deadline=5000)
@given(st.dictionaries(FIELDS, JSON | st.integers(0, 300), max_size=4), JSON)
def test_any_config_becomes_a_document_that_can_be_read_back(fields, hf_quant):
    with TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(tiny(**fields)))
        Path(folder, "hf_quant_config.json").write_text(json.dumps(hf_quant))
        write_shard(Path(folder, "model.safetensors"), tiny_tensors())
        found = look(folder)
        again = decode(encode(found), Checkpoint)
        assert (again.tensor_groups, again.findings, again.kv_cache_groups) == (found.tensor_groups, found.findings, found.kv_cache_groups)


DTYPE = st.sampled_from(["F32", "BF16", "F16", "U8", "I8", "I64", "F8_E4M3", "BOOL"])
TENSORS = st.dictionaries(
    st.from_regex(r"\A(model\.layers\.[0-9]{1,3}\.)?[a-z]{1,4}[0-9]{0,2}(\.experts\.[0-9]{1,3})?\.weight\Z"),
    st.tuples(DTYPE, st.lists(st.integers(0, 3), max_size=3)),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=5000)
@given(TENSORS, st.integers(1, 3))
def test_groups_hold_every_tensor_once_and_the_reference_reads_the_same(tensors, shards):
    with TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(tiny()))
        write_sharded(Path(folder), {n: (d, list(s)) for n, (d, s) in tensors.items()}, min(shards, len(tensors)))
        found = look(folder)
        assert sum(g.count for g in found.tensor_groups) == len(tensors)
        assert not [f for f in found.findings if "index" in f.code or "shard" in f.code or "offset" in f.code]
        for path in Path(folder).glob("*.safetensors"):
            with safe_open(path, "np") as reference:
                for name in list(reference.keys()):
                    one = reference.get_slice(name)
                    assert (one.get_dtype(), one.get_shape()) == (tensors[name][0], list(tensors[name][1]))


def test_a_header_of_60000_tensors_costs_less_than_64_mb_more_than_itself(tmp_path):
    raw, size = header_of({f"model.layers.{i % 61}.mlp.experts.{i}.up_proj.weight": ("U8", [1]) for i in range(60_000)})
    write_raw(tmp_path / "m.safetensors", raw, size)
    tracemalloc.start()
    try:
        _header(raw, 8 + len(raw) + size)
    finally:
        tracemalloc.stop()
