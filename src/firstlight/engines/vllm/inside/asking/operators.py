"""Compiled operators and Triton's driver, as far as decisions need them: predicates answer, nothing is computed or compiled."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from .predicates import PREDICATES
from .stubs import Inert

# Namespaces of the engine's own compiled operators; what a namespace lacks is a stub, what others lack is an error as ever.
OPERATORS = frozenset(
    [
        "_C",
        "_moe_C",
        "_C_stable_libtorch",
        "_moe_C_stable_libtorch",
        "_qutlass_C",
        "_flashmla_C",
        "_vllm_fa2_C",
        "_vllm_fa3_C",
        "_C_cache_ops",
        "_C_cuda_utils",
        "_C_custom_ar",
        "_flashmla_extension_C",
        "_rocm_C",
    ]
)


class StubOperator:
    """A compiled operator: answers where it is a predicate, refuses to compute."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._name in PREDICATES:
            return PREDICATES[self._name](*args, **kwargs)
        raise NotImplementedError(f"the operator {self._name} runs on a GPU only")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


def stub_operators() -> None:
    import torch._ops

    original = torch._ops._OpNamespace.__getattr__

    def getattribute(namespace: Any, name: str) -> Any:
        try:
            return original(namespace, name)
        except AttributeError:
            if name.startswith("__") or namespace.name not in OPERATORS:
                raise
        operator = StubOperator(name)
        setattr(namespace, name, operator)
        return operator

    torch._ops._OpNamespace.__getattr__ = getattribute


class _TritonDriver:
    """Triton's active driver: names the target, compiles nothing."""

    def __init__(self, sm: Callable[[], tuple[int, int]]) -> None:
        self._sm = sm

    def get_current_device(self) -> int:
        return 0

    def get_current_target(self) -> Any:
        compiler: Any = importlib.import_module("triton.backends.compiler")
        return compiler.GPUTarget("cuda", self._sm()[0] * 10 + self._sm()[1], 32)

    def is_active(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Inert()


def set_triton_driver(sm: Callable[[], tuple[int, int]]) -> None:
    """The engine counts active Triton drivers and asks the active one for its target."""
    try:
        backends: Any = importlib.import_module("triton.backends").backends
        driver: Any = getattr(importlib.import_module("triton.runtime"), "driver")  # noqa: B009 - the object, not the module of its name
    except ImportError:
        return
    driver.set_active(_TritonDriver(sm))
    for name, backend in backends.items():
        if backend.driver is not None and name != "cpu":
            backend.driver.is_active = staticmethod(lambda _active=name == "nvidia": _active)
