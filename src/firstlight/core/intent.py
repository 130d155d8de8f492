"""What the user wants. None means: not said, the planner chooses."""

from typing import Any

from msgspec import Struct


class Pins(Struct, frozen=True, kw_only=True):
    """Planning flags in vLLM's spelling; a value here is the user's and is never changed silently."""

    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    data_parallel_size: int | None = None
    decode_context_parallel_size: int | None = None
    enable_expert_parallel: bool | None = None
    nodes: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_memory_bytes: int | None = None
    kv_cache_dtype: str | None = None
    dtype: str | None = None
    enforce_eager: bool | None = None
    mm_encoder_tp_mode: str | None = None
    language_model_only: bool | None = None
    speculative_config: dict[str, Any] | None = None
    block_size: int | None = None


class Intent(Struct, frozen=True, kw_only=True):
    """The request behind a run.

    model: as typed. engine: `vllm`, `vllm@0.16.0`, `llamacpp` or None. purpose: single-user | agents | throughput | long-context.
    extra_args: the engine's own flags after `--`, verbatim. gpus: indices to use, None for all.
    """

    model: str
    name: str | None = None
    engine: str | None = None
    engine_python: str | None = None
    host: str = "local"
    pins: Pins = Pins()
    purpose: str | None = None
    context: int | None = None
    concurrency: int | None = None
    bind: str = "127.0.0.1"
    port: int | None = None
    api_key_file: str | None = None
    allow_open: bool = False
    gpus: list[int] | None = None
    extra_args: list[str] = []
    env: dict[str, str] = {}
    trust_remote_code: bool | None = None
