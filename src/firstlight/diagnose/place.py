"""Where in the engine's code an exception was raised: by its frames, or by its message alone where a paste has no frames."""

import re
from collections.abc import Sequence

from firstlight.diagnose.units import Unit

_FRAME = re.compile(r'File "(?P<path>[^"]+)", line \d+(?:, in (?P<function>\S+))?')
_SITE = re.compile(r".*/(?:site|dist)-packages/(?P<path>.+)")
_ENGINE = re.compile(
    r".*/(?P<path>(?:vllm/(?:v1|engine|config|model_executor|models|lora|distributed|attention|compilation|entrypoints|executor|worker|core"
    r"|platforms|plugins|multimodal|inputs|transformers_utils|tokenizers|spec_decode|kernels|utils|ray|sampling_params|envs|sequence"
    r"|forward_context|_custom_ops|device_allocator|third_party|vllm_flash_attn|triton_utils)|sglang|transformers_modules|vllm_[a-z]\w*/"
    r"|lmcache|nixl|mooncake|transformers|torch|triton|flashinfer|deep_gemm|deep_ep|aiter|xgrammar|huggingface_hub)\b.+)"
)
_ELIDED = re.compile(  # `.../mem_cache/common.py`: whoever posted it cut the path in front of SGLang's folders
    r"\.\.\./(?P<path>(?:managers|mem_cache|model_executor|speculative|disaggregation|constrained|server_args|entrypoints|eplb)\b.+)"
)
_QUALIFIED = re.compile(
    r"(?P<path>(?!vllm\b|sglang\b|builtins\b|asyncio\b|multiprocessing\b)[a-z_]\w*(?:\.\w+)*)\.[A-Z]\w*(?:\(\w+\))?(?::|\s*$)"
)
_TOOLS = re.compile(
    r"/python\d[\d.]*/(?!lib/|(?:site|dist)-packages/)|<frozen|<string>|/uv/python/"
    r"|-packages/(?:torch/(?:nn/|_ops\.py|utils/|_tensor|functional\.py|autograd/|storage\.py|cuda/|_C|__init__|_jit_internal)"
    r"|pydantic|msgspec|typing_extensions|importlib|cloudpickle|uvloop|concurrent|setuptools|pluggy)"
    r"|/vllm/(?:utils\.py|tracing|utils/(?:func_utils|import_utils|torch_utils|async_utils)|model_executor/custom_op|_custom_ops)\b"
)
_CARRIERS = re.compile(
    r"vllm/(?:v1/)?(?:engine/(?:core|core_client|utils|async_llm|llm_engine|async_llm_engine|multiprocessing/\w+)"
    r"|executor/(?:abstract|multiproc_executor|uniproc_executor|executor_base|gpu_executor|mp_distributed_executor|multiproc_worker_utils)"
    r"|worker/(?:worker_base|gpu_worker|worker|cpu_worker)|entrypoints/(?:cli/\w+|openai/api_server|llm|launcher|openai/rpc/server))\.py"
    r"|/\w*(?:engine_core|core_proc|worker_proc|patch_core)\w*\.py"
)


_CALLS = re.compile(
    r"/(?:ray_\w*executor\w*|ray_executor)\.py:(?:_?run_workers\w*|_?run_ray_workers|collective_rpc|_driver_execute_model)$"
)


def only_hands_on(path: str) -> bool:
    """Whether a file is of the engine's and executor's loops, through which every failure comes."""
    return bool(_CARRIERS.search(path))


def place_of_frames(frames: Sequence[str]) -> str | None:
    """`vllm/lora/utils.py:get_lora` of the innermost frame whose code is nobody's mere tool (Python, torch.nn, pydantic); None without one.

    Where that frame only hands calls on (the engine's and executor's loops), what it called is missing from the paste: None as well.
    """
    for frame in reversed(frames):
        m = _FRAME.search(frame)
        if m is None or _TOOLS.search(m["path"]):
            continue
        if only_hands_on(m["path"]) or _CALLS.search(f"{m['path']}:{m['function']}"):
            return None
        if elided := _ELIDED.match(m["path"]):
            return f"sglang/srt/{elided['path']}:{m['function'] or ''}"
        inner = _SITE.match(m["path"]) or _ENGINE.match(m["path"])
        return f"{inner['path'] if inner else m['path'].removeprefix('.../')}:{m['function'] or ''}"
    return None


_STEPS = (  # functions by which a traceback tells how far its process was: the innermost counts, except that a running loop outweighs them
    ("configuring", re.compile(r", in (?:validate_parsed_serve_args|make_arg_parser|parse_args)$")),
    ("distributed-init", re.compile(r", in (?:init_device|init_worker_distributed_environment|init_torch_distributed)$")),
    ("loading", re.compile(r", in (?:load_model|load_weights)$")),
    ("profiling", re.compile(r", in (?:profile_run|determine_available_memory|determine_num_available_blocks|profile_cudagraph_memory)$")),
    ("kv-allocation", re.compile(r", in (?:initialize_from_config|initialize_kv_cache|initialize_cache|init_memory_pool)$")),
    ("capturing", re.compile(r", in (?:capture_model|init_device_graphs|init_cuda_graphs)$")),
    ("warming", re.compile(r", in (?:compile_or_warm_up_model|kernel_warmup)$")),
)
_RUNNING = re.compile(
    r", in (?:run_busy_loop|_process_engine_step|step_with_batch_queue|event_loop_\w+|run_engine_loop|engine_step|output_handler)$"
)
_STEP = re.compile(r"(?:gpu_worker|worker_base|multiproc_executor)\.py\", line \d+, in execute_model$")


def phase_of_frames(frames: Sequence[str]) -> str | None:
    """How far the process was that a traceback is of: `serving` where its loop ran; None where the frames do not tell."""
    names = [frame.rstrip() for frame in frames if frame.lstrip().startswith("File ")]
    if any(_RUNNING.search(name) for name in names):
        return "serving"
    step = next((phase for name in reversed(names) for phase, function in _STEPS if function.search(name)), None)
    return step or ("serving" if any(_STEP.search(name) for name in names) else None)


_OWN_TYPES = frozenset(
    {
        "AssertionError",
        "AttributeError",
        "IndexError",
        "KeyError",
        "RecursionError",
        "StopIteration",
        "TypeError",
        "UnboundLocalError",
        "ZeroDivisionError",
    }
)
_LOOPS = re.compile(r"(?:core|multiproc_executor|uniproc_executor|async_llm|engine|multiproc_worker_utils|worker_base|patch_core)\.py:")


def place_of_process(unit: Unit) -> str | None:
    """The engine itself, where its loop logged an exception without frames, of a kind that says that code is wrong, and not a setting."""
    if not unit.frames and unit.type in _OWN_TYPES and _LOOPS.match(unit.source or ""):
        return "vllm/engine/:"
    return None


def place_of_type(text: str) -> str | None:
    """`huggingface_hub/errors:` of `huggingface_hub.errors.HfHubHTTPError: …`: an exception's full name tells whose it is."""
    m = _QUALIFIED.match(text)
    return f"{m['path'].replace('.', '/')}/:" if m else None
