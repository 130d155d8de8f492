"""Integrity before anything trusts it: each kind of damage, with its code, the file, what was expected and what was found."""

import json
import os
import tracemalloc

import pytest
from inspect_made import codes, header_of, look, tiny_tensors, write_raw, write_shard, write_sharded, write_tiny

from firstlight.core.findings import Severity


def _finding(checkpoint, code):
    return next(f for f in checkpoint.findings if f.code == code)


def test_a_whole_checkpoint_has_no_findings(tmp_path):
    found = look(write_tiny(tmp_path / "m", shards=3))
    assert codes(found) == []
    assert (found.tensor_count, found.shards) == (len(tiny_tensors()), 3)
    assert found.tensor_bytes == sum(found.bytes_by_role.values()) == sum(found.bytes_by_dtype.values())
    assert found.file_bytes == sum(size for name, size in found.files.items() if name.endswith(".safetensors"))


def test_missing_shard(tmp_path):
    write_tiny(tmp_path, shards=3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    found = _finding(look(tmp_path), "shard-missing")
    assert found.severity is Severity.BLOCKER
    assert "model-00002-of-00003.safetensors" in found.message


@pytest.mark.parametrize(("change", "code", "word"), [(-3, "shard-truncated", "3 missing"), (5, "shard-too-long", "5 too many")])
def test_shard_of_another_length(tmp_path, change, code, word):
    write_tiny(tmp_path)
    path = tmp_path / "model.safetensors"
    os.truncate(path, path.stat().st_size + change)
    assert word in _finding(look(tmp_path), code).evidence[0]


def test_shard_cut_inside_its_header(tmp_path):
    write_tiny(tmp_path)
    os.truncate(tmp_path / "model.safetensors", 100)
    assert "shard-truncated" in codes(look(tmp_path))


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "shard-empty"),
        (b"abc", "shard-truncated"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 4967\n", "lfs-pointer"),
        ((1 << 40).to_bytes(8, "little") + b"{}", "header-too-large"),
        ((2).to_bytes(8, "little") + b"[]", "header-not-json"),
        ((9).to_bytes(8, "little") + b'{"a": nul', "header-not-json"),
        ((8).to_bytes(8, "little") + b'{"a": 1}', "header-wrong-shape"),
        ((2).to_bytes(8, "little") + b"\xff\xfe", "header-not-json"),
    ],
)
def test_files_that_are_no_shards(tmp_path, content, code):
    write_tiny(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(content)
    found = _finding(look(tmp_path), code)
    assert "model.safetensors" in found.message
    assert found.severity is Severity.BLOCKER


def test_lfs_pointer_names_the_real_size(tmp_path):
    write_tiny(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4967123456\n")
    found = _finding(look(tmp_path), "lfs-pointer")
    assert "4,967,123,456" in found.evidence[0]
    assert found.hint == "git lfs pull"


def _entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("entries", "data", "code"),
    [
        ({"a": _entry("U8", [4], 0, 4), "b": _entry("U8", [4], 2, 6)}, 6, "offsets-overlap"),
        ({"a": _entry("U8", [4], 0, 4), "b": _entry("U8", [4], 6, 10)}, 10, "offsets-gap"),
        ({"a": _entry("U8", [4], 4, 0)}, 4, "offsets-invalid"),
        ({"a": _entry("U8", [4], -4, 0)}, 0, "offsets-invalid"),
        ({"a": _entry("U8", [4], 0, 5)}, 5, "tensor-size-mismatch"),
        ({"a": _entry("BF16", [1 << 40, 1 << 40], 0, 5)}, 5, "tensor-size-mismatch"),
        ({"a": _entry("U8", [-4], 0, 4)}, 4, "shape-invalid"),
        ({"a": _entry("Q9", [4], 0, 4)}, 4, "dtype-unknown"),
        ({"a": {"dtype": "U8", "shape": [4]}}, 4, "header-wrong-shape"),
        ({"a": _entry("U8", [4], 0, 1 << 50)}, 4, "shard-truncated"),
    ],
)
def test_offsets_that_lie(tmp_path, entries, data, code):
    write_tiny(tmp_path)
    write_raw(tmp_path / "model.safetensors", json.dumps(entries).encode(), data)
    assert code in codes(look(tmp_path))


def test_duplicate_names_in_one_header(tmp_path):
    write_tiny(tmp_path)
    entry = b'{"dtype":"U8","shape":[4],"data_offsets":[0,4]}'
    write_raw(tmp_path / "model.safetensors", b'{"a":' + entry + b',"a":' + entry + b"}", 4)
    assert "tensor-duplicate" in codes(look(tmp_path))


def test_the_same_tensor_in_two_shards(tmp_path):
    write_tiny(tmp_path, shards=2)
    names = tiny_tensors()
    write_shard(tmp_path / "model-00002-of-00002.safetensors", dict(list(names.items())[len(names) // 2 - 1 :]))
    assert "index-shard-mismatch" in codes(look(tmp_path))


def test_index_that_names_another_tensor(tmp_path):
    write_tiny(tmp_path, shards=2)
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(path.read_text().replace("model.norm.weight", "model.morn.weight"))
    found = _finding(look(tmp_path), "index-shard-mismatch")
    assert "as many, but under other names" in found.evidence


def test_shard_that_the_index_forgets(tmp_path):
    write_tiny(tmp_path, shards=2)
    write_shard(tmp_path / "model-00003-of-00003.safetensors", {"x": ("U8", [4])})
    assert "shard-not-in-index" in codes(look(tmp_path))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"weight_map": 3}', '{"weight_map": {"a": 1}}', "\x00\x01"])
def test_index_that_is_none(tmp_path, text):
    write_tiny(tmp_path, shards=2)
    (tmp_path / "model.safetensors.index.json").write_text(text)
    assert "index-not-json" in codes(look(tmp_path))


def test_large_index_is_compared_in_pieces(tmp_path):
    tensors = {f"model.layers.{i // 300}.mlp.experts.{i % 300}.up_proj.weight": ("BF16", [2, 2]) for i in range(24_000)}
    write_tiny(tmp_path, num_hidden_layers=80)
    (tmp_path / "model.safetensors").unlink()
    write_sharded(tmp_path, tensors, 3)
    assert (tmp_path / "model.safetensors.index.json").stat().st_size > 2 << 20
    found = look(tmp_path)
    assert found.tensor_count == 24_000
    assert not {"index-shard-mismatch", "index-not-json"} & set(codes(found))
    assert [g.count for g in found.tensor_groups] == [24_000]
    assert found.tensor_groups[0].pattern == "model.layers.{layer}.mlp.experts.{expert}.up_proj.weight"


def test_very_large_checkpoint_is_folded_by_two_processes_alike(tmp_path, monkeypatch):
    from firstlight.inspect import headers

    write_tiny(tmp_path, shards=4)
    alone = look(tmp_path)
    monkeypatch.setattr(headers, "LARGE_INDEX", 1)
    monkeypatch.setattr(headers, "may_fork", lambda: True)
    assert look(tmp_path) == alone
    os.truncate(tmp_path / "model-00004-of-00004.safetensors", 50)
    assert "shard-truncated" in codes(look(tmp_path))


def test_a_killed_child_costs_time_and_nothing_else(tmp_path, monkeypatch):
    from firstlight.inspect import headers

    write_tiny(tmp_path, shards=4)
    alone = look(tmp_path)
    monkeypatch.setattr(headers, "LARGE_INDEX", 1)
    monkeypatch.setattr(headers, "may_fork", lambda: True)
    monkeypatch.setattr(headers, "_in_child", lambda *_: os._exit(9))
    assert look(tmp_path) == alone


def test_header_larger_than_a_piece_is_decoded_in_pieces(tmp_path, monkeypatch):
    from firstlight.inspect import safetensors

    write_tiny(tmp_path)
    whole = look(tmp_path)
    monkeypatch.setattr(safetensors, "PIECE", 256)
    assert look(tmp_path).tensor_groups == whole.tensor_groups
    assert codes(look(tmp_path)) == []


def test_header_bomb_by_depth(tmp_path):
    write_tiny(tmp_path)
    write_raw(tmp_path / "model.safetensors", b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}", 0)
    assert {"header-too-deep", "header-not-json", "header-wrong-shape"} & set(codes(look(tmp_path)))


def test_header_bomb_by_count(tmp_path, monkeypatch):
    from firstlight.inspect import safetensors

    monkeypatch.setattr(safetensors, "TENSOR_LIMIT", 10)
    write_tiny(tmp_path)
    assert "header-too-many-tensors" in codes(look(tmp_path))


def test_links_in_a_circle_and_to_nowhere(tmp_path):
    write_tiny(tmp_path)
    (tmp_path / "again").symlink_to(tmp_path)
    (tmp_path / "up").symlink_to("..")
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors").symlink_to("model.safetensors")
    found = look(tmp_path)
    assert "broken-link" in codes(found)
    assert not any(name.count("again") > 1 for name in found.files)


def test_unfinished_download(tmp_path):
    write_tiny(tmp_path)
    left = tmp_path / ".cache/huggingface/download/model.incomplete"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"12345")
    assert "5 bytes" in _finding(look(tmp_path), "download-unfinished").evidence[0]


def test_pickles_are_named_and_never_opened(tmp_path):
    write_tiny(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch /tmp/pwned'\ntR.")
    found = look(tmp_path)
    assert "pickle-only" in codes(found)
    assert found.format == "config-only"


def test_second_copy_in_another_layout_is_not_counted(tmp_path):
    write_tiny(tmp_path)
    write_shard(tmp_path / "consolidated.safetensors", tiny_tensors())
    found = look(tmp_path)
    assert "weights-twice" in codes(found)
    assert found.tensor_count == len(tiny_tensors())


def test_tokenizer_and_template_missing(tmp_path):
    write_tiny(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert "chat-template-missing" in codes(look(tmp_path))
    (tmp_path / "tokenizer.json").unlink()
    assert "tokenizer-missing" in codes(look(tmp_path))


def test_several_files_without_an_index(tmp_path):
    write_tiny(tmp_path, shards=2)
    (tmp_path / "model.safetensors.index.json").unlink()
    found = _finding(look(tmp_path), "index-missing")
    assert found.severity is Severity.WARNING


def test_entries_out_of_order_are_still_right(tmp_path):
    write_tiny(tmp_path)
    raw, data = header_of(tiny_tensors())
    table = json.loads(raw)
    write_raw(tmp_path / "model.safetensors", json.dumps(dict(reversed(table.items()))).encode(), data)
    assert codes(look(tmp_path)) == []


INDEX = "model.safetensors.index.json"


def _sparse(path, size, head):
    with path.open("wb") as f:
        f.write(head)
        f.truncate(size)


@pytest.mark.parametrize("head", [b'{"metadata": {', b'{"weight_map":{"a":"b",'])
@pytest.mark.parametrize("size", [90 << 20, 3 << 40])
def test_an_index_that_is_a_bomb(tmp_path, head, size):
    write_tiny(tmp_path)
    _sparse(tmp_path / INDEX, size, head)
    tracemalloc.start()
    found = _finding(look(tmp_path), "index-not-json")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert INDEX in found.message
    assert peak < 64 << 20


def test_an_index_that_is_no_file(tmp_path):
    write_tiny(tmp_path)
    os.mkfifo(tmp_path / INDEX)
    found = _finding(look(tmp_path), "not-a-file")
    assert found.evidence == ["expected: an index, found: a pipe, socket or device"]
    (tmp_path / INDEX).unlink()
    (tmp_path / INDEX).symlink_to("nowhere")
    assert _finding(look(tmp_path), "broken-link").message == f"{INDEX} is a link that leads nowhere"
    (tmp_path / INDEX).unlink()
    (tmp_path / INDEX).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 31000000\n")
    assert _finding(look(tmp_path), "lfs-pointer").evidence[0].startswith("expected: 31,000,000 bytes of an index")


def test_a_config_that_is_no_file(tmp_path):
    write_tiny(tmp_path)
    (tmp_path / "config.json").unlink()
    os.mkfifo(tmp_path / "config.json")
    assert "not-a-file" in codes(look(tmp_path))


@pytest.mark.parametrize("present", [1, 2])
def test_numbered_files_without_an_index(tmp_path, present):
    write_tiny(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    for n, name in list(enumerate(tiny_tensors(), 1))[:present]:
        write_shard(tmp_path / f"model-{n:05d}-of-00003.safetensors", {name: tiny_tensors()[name]})
    found = [f for f in look(tmp_path).findings if f.code == "shard-missing"]
    assert [f.message for f in found] == [f"model-{n:05d}-of-00003.safetensors is not there" for n in range(present + 1, 4)]
    assert found[0].evidence == [f"expected: 3 numbered files, found: {present}"]


def test_a_number_that_is_absurd_is_told_in_short(tmp_path):
    write_tiny(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "model-00001-of-99999.safetensors")
    found = [f.message for f in look(tmp_path).findings if f.code == "shard-missing"]
    assert len(found) == 21
    assert found[-1] == "9,979 more numbered files are not there"


def test_the_same_tensor_in_two_shards_without_an_index(tmp_path):
    write_tiny(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    name = next(iter(tiny_tensors()))
    write_shard(tmp_path / "a.safetensors", tiny_tensors())
    write_shard(tmp_path / "b.safetensors", {name: tiny_tensors()[name]})
    found = _finding(look(tmp_path), "tensor-duplicate")
    assert (found.message, found.evidence) == ("1 tensor name(s) of b.safetensors are in another file, too", [name])


def test_a_duplicate_is_named(tmp_path):
    write_tiny(tmp_path)
    entry = b'{"dtype":"U8","shape":[4],"data_offsets":[0,4]}'
    write_raw(tmp_path / "model.safetensors", b'{"a.weight":' + entry + b',"a.weight":' + entry + b"}", 4)
    assert _finding(look(tmp_path), "tensor-duplicate").evidence == ["expected: each name once, found: 'a.weight'"]


def test_a_long_header_is_held_once(tmp_path):
    """90 MB of header that is no JSON: what it costs is its own length and little more."""
    write_tiny(tmp_path)
    _sparse(tmp_path / "model.safetensors", (90 << 20) + 8, (90 << 20).to_bytes(8, "little") + b"{")
    tracemalloc.start()
    found = look(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "header-not-json" in codes(found)
    assert peak < (90 + 64) << 20


def test_weights_that_cannot_be_read_are_not_called_absent(tmp_path):
    write_tiny(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"<!DOCTYPE html><html><body>Not found</body></html>")
    found = look(tmp_path)
    assert _finding(found, "weights-absent").message == "the weight file cannot be read"
    assert "begins with b'<!DOCTYPE html><'" in _finding(found, "header-too-large").evidence


def test_a_duplicate_beside_bytes_that_are_no_text(tmp_path):
    """Found by the fuzzer: fields that are skipped may hold what the parser that looks for the name cannot read."""
    write_tiny(tmp_path)
    entry = b'{"dtype":"U8","shape":[4],"data_offsets":[0,4],"x":"\x97"}'
    write_raw(tmp_path / "model.safetensors", b'{"a":' + entry + b',"a":' + entry + b"}", 4)
    assert set(codes(look(tmp_path))) & {"tensor-duplicate", "header-not-json", "header-wrong-shape"}
