"""What a checkpoint says about itself. Sizes in bytes; unknown is None."""

from typing import Any

from msgspec import Struct, field

from firstlight.core.findings import Finding


class TensorGroup(Struct, frozen=True, kw_only=True):
    """Tensors that share a name pattern, role, dtype and shape.

    pattern: the tensor's name with `{layer}` and `{expert}` in place of numbers. shape: one tensor's, as stored.
    count: tensors in the group. layers: layer numbers that have them (empty outside the stack).
    """

    pattern: str
    role: str
    dtype: str
    shape: list[int]
    count: int
    layers: list[int] = []


class QuantSpec(Struct, frozen=True, kw_only=True):
    """How weights are quantized. method: modelopt, compressed-tensors, fp8, fbgemm_fp8, mxfp4, awq, gptq, bitsandbytes, gguf, …

    format: the number format in the field's words (nvfp4, fp8, fp8-block, mxfp4, int4, mixed, …). ignore: patterns as the file gives them.
    """

    method: str
    format: str | None = None
    group_size: int | list[int] | None = None
    bits: int | None = None
    ignore: list[str] = []
    activation: str | None = None
    producer: str | None = None
    layers: dict[str, Any] = {}


class KvCacheQuantization(Struct, frozen=True, kw_only=True):
    """A KV cache dtype embedded in the checkpoint. sources: each `file:key.path` that sets it."""

    dtype: str
    sources: list[str]


class KvCacheGroup(Struct, frozen=True, kw_only=True):
    """Layers that cache alike. kind: full | mla | sparse-mla | sliding-window | chunked | linear | mamba | shared | indexer.

    bytes_per_token_per_layer: by KV dtype (bf16, fp8, …), for a whole model (TP is the planner's).
    state_bytes_per_request: for linear and Mamba layers, one request's state in one layer.
    The shape fields let the planner shard: kv_heads, head_dim (K), head_dim_v, window.
    """

    kind: str
    layers: list[int]
    bytes_per_token_per_layer: dict[str, float] = {}
    state_bytes_per_request: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    head_dim_v: int | None = None
    window: int | None = None


class MoeSpec(Struct, frozen=True, kw_only=True):
    num_experts: int
    num_experts_per_tok: int | None = None
    shared: int | None = None
    moe_intermediate_size: int | None = None
    first_dense_layers: int | None = None


class Parameters(Struct, frozen=True, kw_only=True):
    total: int | None = None
    active: int | None = None


class TokenizerSpec(Struct, frozen=True, kw_only=True, rename={"class_": "class"}):
    class_: str | None = None
    vocab_size: int | None = None
    files: list[str] = []


class ChatTemplate(Struct, frozen=True, kw_only=True):
    """source: `tokenizer_config.json`, `chat_template.jinja`, `gguf`, … tools, reasoning: whether the template mentions them."""

    present: bool
    source: str | None = None
    tools: bool | None = None
    reasoning: bool | None = None


class RemoteCode(Struct, frozen=True, kw_only=True):
    needed: bool
    files: list[str] = []


class Checkpoint(Struct, frozen=True, kw_only=True):
    """A model as its files describe it; a plan needs nothing else.

    ref: what the user named. path: where the files are on their host, None when they are only on a hub.
    tensor_bytes: sum of tensors; file_bytes: sum of weight files. config: normalised (the language model's own keys at the top).
    kv_bytes_per_token: sum over layers that grow with every token, by dtype; None where a dtype does not exist for the model.
    """

    ref: str
    format: str
    path: str | None = None
    revision: str | None = None
    name: str | None = None
    architectures: list[str] = []
    model_type: str | None = None
    config: dict[str, Any] = {}
    num_hidden_layers: int | None = None
    hidden_size: int | None = None
    attention: str | None = None
    max_position_embeddings: int | None = None
    vocab_size: int | None = None
    moe: MoeSpec | None = None
    tensor_count: int | None = None
    shards: int | None = None
    tensor_bytes: int | None = None
    file_bytes: int | None = None
    parameters: Parameters = Parameters()
    bytes_by_dtype: dict[str, int] = {}
    bytes_by_role: dict[str, int] = {}
    tensor_groups: list[TensorGroup] = []
    quantization: QuantSpec | None = None
    kv_cache_quantization: KvCacheQuantization | None = None
    kv_cache_groups: list[KvCacheGroup] = []
    kv_bytes_per_token: dict[str, int | None] = {}
    modalities: list[str] = field(default_factory=lambda: ["text"])
    tokenizer: TokenizerSpec | None = None
    chat_template: ChatTemplate | None = None
    generation_config: dict[str, Any] | None = None
    trust_remote_code: RemoteCode = RemoteCode(needed=False)
    license: str | None = None
    files: dict[str, int] = {}
    findings: list[Finding] = []
