"""The engine's own configuration of a model: its argument parser, its defaults, its refusals."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

# Weights are never read, and a model folder with a config alone has no tokenizer.
FIXED = {"load_format": "dummy", "skip_tokenizer_init": True, "distributed_executor_backend": "mp"}


def engine_config(model: str, args: list[str], served_name: str | None = None) -> tuple[Any, list[str]]:
    """(VllmConfig, flags that the engine's parser does not know: the HTTP server's own, or another release's)."""
    _allow_plain_attributes()
    arg_utils: Any = importlib.import_module("vllm.engine.arg_utils")
    parser = arg_utils.EngineArgs.add_cli_args(_parser())
    parsed, unknown = parser.parse_known_args(["--model", model, *args])
    if not getattr(parsed, "tokenizer", None):
        parsed.tokenizer = model
    engine_args = arg_utils.EngineArgs.from_cli_args(parsed)
    for name, value in FIXED.items():
        setattr(engine_args, name, value)
    if hasattr(engine_args, "swap_space"):
        engine_args.swap_space = 0  # otherwise refused on a machine with little memory, which this one may be
    return engine_args.create_engine_config(usage_context=_as_server()), unknown


def _allow_plain_attributes() -> None:
    """The newest transformers refuses to name one head size for a model that has several (Gemma 4). Releases made before that read
    the plain one, which is what the configuration file says, and look at single layers themselves."""
    try:
        module: Any = importlib.import_module("transformers.integrations.heterogeneity")
    except ImportError:
        return
    name = "allow_global_per_layer_attribute_access"
    setattr(module.HeterogeneousConfigMixin, name, property(lambda config: True, lambda config, value: None))


def _parser() -> Any:
    for place in ("vllm.utils.argparse_utils", "vllm.utils"):
        try:
            return importlib.import_module(place).FlexibleArgumentParser()
        except (ImportError, AttributeError):
            continue
    raise ImportError("this release has no FlexibleArgumentParser where it is looked for")


def _as_server() -> Any:
    """Defaults differ between the server and the library: the server's are meant."""
    return importlib.import_module("vllm.usage.usage_lib").UsageContext.OPENAI_API_SERVER


def resolved(config: Any) -> dict[str, Any]:
    """What the engine made of the flags, in its own names; a setting that this release does not have is left out."""
    model, cache, scheduler = config.model_config, config.cache_config, config.scheduler_config
    parallel, graphs = config.parallel_config, config.compilation_config
    found = {
        "kv_cache_dtype": getattr(cache, "cache_dtype", None),
        "max_model_len": model.max_model_len,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "block_size": cache.block_size,
        "gpu_memory_utilization": cache.gpu_memory_utilization,
        "enable_prefix_caching": getattr(cache, "enable_prefix_caching", None),
        "dtype": str(model.dtype).replace("torch.", ""),
        "quantization": getattr(model, "quantization", None),
        "architecture": _try(lambda: model.architecture),
        "runner": "v2" if _try(lambda: config.use_v2_model_runner) else "v1",
        "cudagraph_mode": _name(getattr(graphs, "cudagraph_mode", None)),
        "cudagraph_capture_sizes": list(getattr(graphs, "cudagraph_capture_sizes", None) or []),
        "tensor_parallel_size": parallel.tensor_parallel_size,
        "pipeline_parallel_size": parallel.pipeline_parallel_size,
        "data_parallel_size": parallel.data_parallel_size,
        "enable_expert_parallel": parallel.enable_expert_parallel,
        "decode_context_parallel_size": getattr(parallel, "decode_context_parallel_size", 1),
        "enforce_eager": model.enforce_eager,
    }
    return {name: value for name, value in found.items() if value is not None}


def _name(value: Any) -> str | None:
    return getattr(value, "name", None) or (str(value) if value is not None else None)


def _try(read: Any) -> Any:
    try:
        return read()
    except Exception:
        return None


def accepted(function: Any, **wanted: Any) -> dict[str, Any]:
    """Those arguments that this release's function takes."""
    names = inspect.signature(function).parameters
    return {name: value for name, value in wanted.items() if name in names}
