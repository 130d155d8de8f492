"""A CUDA platform that is not there: enough of it for the engine's Python to take every decision as on that GPU.

Nothing is computed on it. Tensors that would go to a CUDA device are made on the meta device (a shape and a dtype, no bytes).
"""

from __future__ import annotations

import functools
import importlib
import os
import shutil
import sys
from collections.abc import Callable
from typing import Any

from . import operators
from .stubs import Inert

FACTORIES = [
    "empty",
    "zeros",
    "ones",
    "full",
    "tensor",
    "arange",
    "rand",
    "randn",
    "empty_strided",
    "randint",
    "eye",
    "linspace",
    "as_tensor",
]


class Gpu:
    """The GPU that everything below pretends to be. sm: (major, minor); one per process, changed by the sweep."""

    sm = (9, 0)
    count = 8
    name = "GPU"
    memory = 96 << 30
    processors = 148


class Properties:
    """What `torch.cuda.get_device_properties` gives."""

    def __init__(self) -> None:
        self.major, self.minor = Gpu.sm
        self.name, self.total_memory, self.multi_processor_count = Gpu.name, Gpu.memory, Gpu.processors
        self.gcnArchName, self.L2_cache_size, self.warp_size = "", 1 << 26, 32
        # Data-center parts have 227 KiB of shared memory a block, workstation parts 99 KiB.
        self.shared_memory_per_block_optin = 101376 if Gpu.sm[0] == 12 or Gpu.sm in ((8, 6), (8, 9)) else 232448
        self.shared_memory_per_multiprocessor = self.shared_memory_per_block_optin + 1024
        self.regs_per_multiprocessor, self.max_threads_per_multi_processor, self.uuid = 65536, 2048, "GPU-0"


class _Nothing:
    """A stream or an event."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *a, **k: None

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *exc: Any) -> None:
        pass


def spoof_torch() -> None:
    """Before the engine is imported: torch says that there are CUDA devices, and puts their tensors on meta."""
    import torch

    _before_spoofing()
    torch.version.cuda = "13.0"
    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: Gpu.count,
        "get_device_capability": lambda *a, **k: Gpu.sm,
        "get_device_properties": lambda *a, **k: Properties(),
        "get_device_name": lambda *a, **k: Gpu.name,
        "current_device": lambda: 0,
        "mem_get_info": lambda *a, **k: (Gpu.memory, Gpu.memory),
        "memory_allocated": lambda *a, **k: 0,
        "memory_reserved": lambda *a, **k: 0,
        "is_current_stream_capturing": lambda: False,
        "current_stream": lambda *a, **k: _Nothing(),
        "Stream": _Nothing,
        "Event": _Nothing,
    }
    for name in ("synchronize", "empty_cache", "set_device", "init", "_lazy_init", "reset_peak_memory_stats"):
        answers[name] = lambda *a, **k: None
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    fixed = {"synchronize": None, "empty_cache": None, "device_count": Gpu.count, "current_device_index": 0}
    for name, value in fixed.items():
        setattr(torch.accelerator, name, lambda *a, _value=value, **k: _value)
    torch.Tensor.pin_memory = lambda self, *a, **k: self
    for name in FACTORIES:
        setattr(torch, name, _on_meta(getattr(torch, name)))
    for name in ("register_fake", "impl", "define", "custom_op"):
        setattr(torch.library, name, _tolerant(getattr(torch.library, name)))
    operators.stub_operators()
    operators.set_triton_driver(lambda: Gpu.sm)


def _before_spoofing() -> None:
    """Modules that look at the device when they are imported must see this machine as it is; and `with torch.device(...)`
    remembers the factories by identity, so it must do so before they are wrapped."""
    for name in ("torch._dynamo", "torch._inductor.utils", "torch._inductor.compile_fx"):
        try:
            importlib.import_module(name)
        except Exception:
            continue
    devices: Any = importlib.import_module("torch.utils._device")
    devices._device_constructors()


def _on_meta(factory: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(factory)
    def make(*args: Any, **kwargs: Any) -> Any:
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "meta"
        kwargs.pop("pin_memory", None)
        return factory(*(_sized(a) for a in args), **kwargs)

    return make


def _sized(argument: Any) -> Any:
    """A size that a stubbed kernel library would have named (a workspace) counts as one element."""
    if isinstance(argument, Inert):
        return 1
    return type(argument)(_sized(a) for a in argument) if type(argument) in (tuple, list) else argument


def _tolerant(register: Callable[..., Any]) -> Callable[..., Any]:
    """Registering an operator whose compiled half is a stub does nothing, instead of failing the import."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            result = register(*args, **kwargs)
        except Exception:
            return lambda function: function
        return _tolerant_decorator(result) if callable(result) else result

    return call


def _tolerant_decorator(decorator: Callable[..., Any]) -> Callable[..., Any]:
    def decorate(function: Any) -> Any:
        try:
            return decorator(function)
        except Exception:
            return function

    return decorate


def spoof_platform(source: str | None) -> Any:
    """Sets the engine's current platform to its own CUDA platform on the spoofed GPU; returns its class."""
    platforms: Any = importlib.import_module("vllm.platforms")
    if source and not os.path.realpath(platforms.__file__ or "").startswith(os.path.realpath(source)):
        raise RuntimeError(f"another vllm was imported: {platforms.__file__}")
    cuda = importlib.import_module("vllm.platforms.cuda")
    capability = importlib.import_module("vllm.platforms.interface").DeviceCapability
    platform = _platform_class(cuda.CudaPlatformBase, capability)
    platforms._current_platform = platform()
    platforms.__dict__["current_platform"] = platforms._current_platform
    _assume_toolchain()
    return platform


def _platform_class(base: type, capability: Any) -> type:
    import torch

    def has(cls: Any, wanted: Any, device_id: int = 0) -> bool:
        own = capability(*Gpu.sm)
        return bool(own >= capability(*wanted)) if isinstance(wanted, tuple) else bool(own.to_int() >= wanted)

    answers: dict[str, Callable[..., Any]] = {
        "get_device_capability": lambda cls, device_id=0: capability(*Gpu.sm),
        "has_device_capability": has,
        "current_device": lambda cls: torch.device("meta"),
        "get_device_name": lambda cls, device_id=0: Gpu.name,
        "get_device_uuid": lambda cls, device_id=0: f"GPU-{device_id}",
        "get_device_total_memory": lambda cls, device_id=0: Gpu.memory,
        "is_integrated_gpu": lambda cls, device_id=0: False,
        "num_compute_units": lambda cls, device_id=0: Gpu.processors,
        "is_fully_connected": lambda cls, ids: True,
        "device_count": lambda cls: Gpu.count,
        "log_warnings": lambda cls: None,
        "set_device": lambda cls, device: None,
    }
    body: dict[str, Any] = {name: classmethod(answer) for name, answer in answers.items()}
    return type("SpoofedCudaPlatform", (base,), {**body, "device_name": Gpu.name, "device_type": "cuda"})


def _assume_toolchain() -> None:
    """FlashInfer is usable where nvcc or its prebuilt kernels are; the answer says that this is assumed."""
    which = shutil.which
    shutil.which = lambda cmd, *a, **k: "/usr/local/cuda/bin/nvcc" if cmd == "nvcc" else which(cmd, *a, **k)  # type: ignore[assignment]
    os.environ.setdefault("VLLM_HAS_FLASHINFER_CUBIN", "1")
    try:
        flashinfer: Any = importlib.import_module("vllm.utils.flashinfer")
    except Exception:
        return
    if hasattr(flashinfer, "has_nvidia_artifactory"):
        flashinfer.has_nvidia_artifactory = lambda: True


def change_gpu(sm: tuple[int, int]) -> None:
    """Another GPU in the same process: whatever the engine remembered about the last one is forgotten."""
    Gpu.sm = sm
    for module in list(sys.modules.values()):
        if not str(getattr(module, "__name__", "")).startswith("vllm"):
            continue
        for value in list(vars(module).values()):
            _forget(value)
            if isinstance(value, type) and str(getattr(value, "__module__", "")).startswith("vllm"):
                for member in list(vars(value).values()):
                    _forget(getattr(member, "__func__", member))


def _forget(function: Any) -> None:
    if type(function).__name__ == "_lru_cache_wrapper":
        function.cache_clear()
