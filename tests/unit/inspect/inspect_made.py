"""Makes checkpoints for tests: true headers over sparse files, and configs expanded from the compact table."""

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from firstlight.core.checkpoint import Checkpoint, TensorGroup
from firstlight.inspect.checkpoint import inspect
from firstlight.inspect.safetensors import tensor_bytes
from firstlight.inspect.sources import open_source
from firstlight.probe.hosts import open_host

Tensors = Mapping[str, tuple[str, list[int]]]


def look(path: Path | str, **options: Any) -> Checkpoint:
    return inspect(open_source(str(path), open_host("local"), **options))


def codes(checkpoint: Checkpoint) -> list[str]:
    return [f.code for f in checkpoint.findings]


def header_of(tensors: Tensors, *, metadata: bool = True) -> tuple[bytes, int]:
    """A safetensors header (without its length) and the bytes of data that it describes."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}} if metadata else {}
    at = 0
    for name, (dtype, shape) in tensors.items():
        size = tensor_bytes(dtype, tuple(shape)) or 0
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(entries, separators=(",", ":")).encode()
    return raw + b" " * (-len(raw) % 8), at


def write_raw(path: Path, header: bytes, data: int, *, length: int | None = None) -> None:
    """A shard with this header and `data` bytes after it, sparse."""
    with path.open("wb") as f:
        f.write((len(header) if length is None else length).to_bytes(8, "little"))
        f.write(header)
        f.truncate(8 + len(header) + data)


def write_shard(path: Path, tensors: Tensors, **options: Any) -> None:
    header, data = header_of(tensors, **options)
    write_raw(path, header, data)


def write_sharded(folder: Path, tensors: Tensors, shards: int) -> list[Path]:
    """`shards` files and their index, as the reference writer lays them out."""
    names = list(tensors)
    cut = -(-len(names) // shards)
    paths, weight_map = [], {}
    for i in range(shards):
        part = names[i * cut : (i + 1) * cut]
        if not part:
            break
        path = folder / f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        write_shard(path, {n: tensors[n] for n in part})
        weight_map |= dict.fromkeys(part, path.name)
        paths.append(path)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    return paths


def expand(groups: Iterable[TensorGroup]) -> dict[str, tuple[str, list[int]]]:
    """Every tensor of the groups by name."""
    tensors = {}
    for g in groups:
        layers: list[int | None] = list(g.layers) or [None]
        for layer in layers:
            for expert in range(g.count // len(layers)):
                name = g.pattern.replace("{layer}", str(layer)).replace("{expert}", str(expert))
                tensors[name] = (g.dtype, g.shape)
    return tensors


def tiny(**fields: Any) -> dict[str, Any]:
    """config.json of a small Llama."""
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 256, "max_position_embeddings": 512, "torch_dtype": "bfloat16",
    } | fields  # fmt: skip


def tiny_tensors() -> dict[str, tuple[str, list[int]]]:
    tensors: dict[str, tuple[str, list[int]]] = {"model.embed_tokens.weight": ("BF16", [256, 64])}
    for i in range(2):
        base = f"model.layers.{i}."
        for name, shape in (("q", [64, 64]), ("k", [32, 64]), ("v", [32, 64]), ("o", [64, 64])):
            tensors[f"{base}self_attn.{name}_proj.weight"] = ("BF16", shape)
        for name, shape in (("gate", [128, 64]), ("up", [128, 64]), ("down", [64, 128])):
            tensors[f"{base}mlp.{name}_proj.weight"] = ("BF16", shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{base}{name}.weight"] = ("BF16", [64])
    return tensors | {"model.norm.weight": ("BF16", [64]), "lm_head.weight": ("BF16", [256, 64])}


def write_tiny(folder: Path, shards: int = 1, **fields: Any) -> Path:
    """A whole small checkpoint with tokenizer and template."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(tiny(**fields)))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "T", "chat_template": "{{ messages }}"}))
    if shards == 1:
        write_shard(folder / "model.safetensors", tiny_tensors())
    else:
        write_sharded(folder, tiny_tensors(), shards)
    return folder


def published() -> list[dict[str, Any]]:
    """The rows of published.jsonl: shapes of published models, and what must be read from them."""
    lines = (Path(__file__).parent / "published.jsonl").read_text().splitlines()
    return [_expanded(json.loads(line)) for line in lines]


def row(model: str) -> dict[str, Any]:
    return next(r for r in published() if r["model"] == model)


def write_row(folder: Path, one: Mapping[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(one["config"]))
    if "hf_quant" in one:
        (folder / "hf_quant_config.json").write_text(json.dumps(one["hf_quant"]))
    return folder


def _expanded(value: Any) -> Any:
    """Undoes the table's short forms: runs, cycles, word lists, layer ranges, blocks."""
    if isinstance(value, list):
        return [one for v in value for one in (_ranges(v) if isinstance(v, str) else [_expanded(v)])]
    if not isinstance(value, dict):
        return value
    if "runs" in value:
        return [v for v, n in value["runs"] for _ in range(n)]
    if "cycle" in value:
        return [value["cycle"][i % len(value["cycle"])] for i in range(value["length"])]
    if "words" in value:
        return [int(w) if value["int"] else w for w in value["words"].split()]
    if "blocks" in value:
        return [_block(*b) for b, n in value["blocks"] for _ in range(n)]
    return {k: _quantized(v) if k == "quantized_layers" else _expanded(v) for k, v in value.items()}


def _quantized(by_algorithm: Mapping[str, list[str]]) -> dict[str, Any]:
    return {name: {"quant_algo": algo} for algo, names in by_algorithm.items() for n in names for name in _ranges(n)}


def _ranges(text: str) -> list[str]:
    match = re.search(r"<([\d,-]+)>", text)
    if match is None:
        return [text]
    numbers = []
    for part in match[1].split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return [text.replace(match[0], str(n)) for n in numbers]


def _block(group: int, multiple: float) -> dict[str, Any]:
    attention = {"n_heads_in_group": group or None, "no_op": group == 0, "replace_with_linear": group == -1}
    return {"attention": attention, "ffn": {"ffn_mult": multiple or None, "no_op": multiple == 0}}


def can_be_denied() -> bool:
    """Whether file modes bind this user at all."""
    return os.geteuid() != 0
