"""Copies of a real GGUF with one thing damaged: what a wrong conversion, a bad disk or a bug in a kernel would leave behind.

python -m corrupt.gguf_models SOURCE.gguf OUT_FOLDER [NAME ...]      (from tests/)
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

Array = NDArray[np.float32]
Weights = dict[str, Array]
Fields = dict[str, Any]
MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


class Model(NamedTuple):
    """fields: metadata by key with its GGUF types; weights: float32 by tensor name."""

    fields: dict[str, tuple[list[Any], Any]]
    weights: Weights

    @property
    def architecture(self) -> str:
        return str(self.fields["general.architecture"][1])

    @property
    def layers(self) -> int:
        return int(self.fields[f"{self.architecture}.block_count"][1])


def read(path: Path) -> Model:
    reader = gguf.GGUFReader(path)
    fields = {k: (list(f.types), f.contents()) for k, f in reader.fields.items() if not k.startswith("GGUF.")}
    weights = {t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32) for t in reader.tensors}
    return Model(fields, weights)


def write(model: Model, path: Path, kind: Type = Type.Q8_0) -> Path:
    """Matrices as `kind`, vectors as float32."""
    writer = gguf.GGUFWriter(path, model.architecture)
    for key, (types, value) in model.fields.items():
        if key != "general.architecture":
            writer.add_key_value(key, value, types[0], types[-1] if len(types) > 1 else None)
    for name, array in model.weights.items():
        own = Type.F32 if array.ndim == 1 or "ffn_gate_inp" in name else kind
        writer.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(array), own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _matrices(model: Model, layers: range | None = None, only: tuple[str, ...] = MATRICES) -> list[str]:
    return [f"blk.{i}.{m}.weight" for i in (layers or range(model.layers)) for m in only]


def scales_times_four(model: Model) -> None:
    for name in _matrices(model):
        model.weights[name] = model.weights[name] * 4


def keys_and_values_swapped(model: Model) -> None:
    for i in range(model.layers):
        k, v = f"blk.{i}.attn_k.weight", f"blk.{i}.attn_v.weight"
        model.weights[k], model.weights[v] = model.weights[v], model.weights[k]


def embeddings_permuted(model: Model) -> None:
    rows = model.weights["token_embd.weight"]
    model.weights["token_embd.weight"] = rows[np.random.default_rng(1).permutation(len(rows))]


def half_the_layers_zeroed(model: Model) -> None:
    for name in _matrices(model, range(model.layers // 2, model.layers), ("attn_output", "ffn_down")):
        model.weights[name] = np.zeros_like(model.weights[name])


def shard_of_noise(model: Model) -> None:
    """A quarter of the layers, as one shard of four would hold them."""
    random = np.random.default_rng(2)
    for name in _matrices(model, range(model.layers // 2, 3 * model.layers // 4)):
        weight = model.weights[name]
        model.weights[name] = (random.standard_normal(weight.shape) * weight.std()).astype(np.float32)


def tokenizer_off_by_one(model: Model) -> None:
    types, tokens = model.fields["tokenizer.ggml.tokens"]
    kinds = model.fields["tokenizer.ggml.token_type"][1]
    plain = [i for i, k in enumerate(kinds) if k == 1]
    moved = list(tokens)
    for here, there in zip(plain, [*plain[1:], plain[0]], strict=True):
        moved[here] = tokens[there]
    model.fields["tokenizer.ggml.tokens"] = (types, moved)


LLAMA2_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] + ' </s>' }}{% endif %}{% endfor %}"
)
GEMMA_TEMPLATE = (
    "{% for message in messages %}{{ '<start_of_turn>' + message['role'] + '\\n' + message['content'] + '<end_of_turn>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)
LLAMA3_TEMPLATE = (
    "{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}"
    "{{ message['content'] + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)

TEMPLATES = {"template-llama2": LLAMA2_TEMPLATE, "template-gemma": GEMMA_TEMPLATE, "template-llama3": LLAMA3_TEMPLATE}


def _template(text: str) -> Callable[[Model], None]:
    def change(model: Model) -> None:
        model.fields["tokenizer.chat_template"] = ([gguf.GGUFValueType.STRING], text)

    return change


def one_layer_zeroed(model: Model) -> None:
    for name in _matrices(model, range(14, 15), ("attn_output", "ffn_down")):
        model.weights[name] = np.zeros_like(model.weights[name])


def two_neighbours_swapped(model: Model) -> None:
    for a in [n for n in model.weights if n.startswith("blk.12.")]:
        b = a.replace("blk.12.", "blk.13.")
        model.weights[a], model.weights[b] = model.weights[b], model.weights[a]


def rope_theta_wrong(model: Model) -> None:
    types, theta = model.fields["llama.rope.freq_base"]
    model.fields["llama.rope.freq_base"] = (types, theta / 10)


def one_layers_scale_off(model: Model) -> None:
    for name in _matrices(model, range(14, 15)):
        model.weights[name] = model.weights[name] * 1.1


def experts(model: Model, count: int = 4, used: int = 2) -> None:
    """The same function as a mixture of experts: every expert a copy of the dense feed-forward, a random router over them."""
    random = np.random.default_rng(3)
    for i in range(model.layers):
        for part in ("gate", "up", "down"):
            dense = model.weights.pop(f"blk.{i}.ffn_{part}.weight")
            model.weights[f"blk.{i}.ffn_{part}_exps.weight"] = np.repeat(dense[None], count, axis=0)
        width = model.weights[f"blk.{i}.attn_norm.weight"].shape[0]
        model.weights[f"blk.{i}.ffn_gate_inp.weight"] = random.standard_normal((count, width)).astype(np.float32)
    for key, value in (("expert_count", count), ("expert_used_count", used)):
        model.fields[f"llama.{key}"] = ([gguf.GGUFValueType.UINT32], value)


def one_experts_scale_off(model: Model) -> None:
    experts(model)
    for part in ("gate", "up", "down"):
        weight = model.weights[f"blk.14.ffn_{part}_exps.weight"]
        weight[1] *= 1.1


def _healthy(model: Model) -> None:
    """Nothing is changed: the same weights in another quantization."""


GROSS: dict[str, Callable[[Model], None]] = {
    "scales-x4": scales_times_four,
    "kv-swapped": keys_and_values_swapped,
    "embeddings-permuted": embeddings_permuted,
    "half-zeroed": half_the_layers_zeroed,
    "noise-shard": shard_of_noise,
    "tokenizer-off-by-one": tokenizer_off_by_one,
    **{name: _template(text) for name, text in TEMPLATES.items()},
}
MILD: dict[str, Callable[[Model], None]] = {
    "layer-zeroed": one_layer_zeroed,
    "neighbours-swapped": two_neighbours_swapped,
    "rope-theta": rope_theta_wrong,
    "layer-scale-10pct": one_layers_scale_off,
    "expert-scale-10pct": one_experts_scale_off,
}
HEALTHY: dict[str, tuple[Callable[[Model], None], Type]] = {
    "q4_0": (_healthy, Type.Q4_0),
    "q5_1": (_healthy, Type.Q5_1),
    "q8_0": (_healthy, Type.Q8_0),
    "f16": (_healthy, Type.F16),
    "bf16": (_healthy, Type.BF16),
    "experts-q8_0": (experts, Type.Q8_0),
}


def make(source: Path, folder: Path, name: str) -> Path:
    """The model called `name`, made once: a damaged one as Q8_0, a healthy one in its own quantization."""
    target = folder / f"{name}.gguf"
    if target.exists():
        return target
    change, kind = HEALTHY.get(name) or ((GROSS | MILD)[name], Type.Q8_0)
    model = read(source)
    change(model)
    part = target.with_suffix(".part")
    folder.mkdir(parents=True, exist_ok=True)
    write(model, part, kind)
    return part.rename(target)


if __name__ == "__main__":
    chosen = sys.argv[3:] or [*HEALTHY, *GROSS, *MILD]
    for each in chosen:
        print(make(Path(sys.argv[1]), Path(sys.argv[2]), each), flush=True)
