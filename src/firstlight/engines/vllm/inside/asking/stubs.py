"""Inert stand-ins for compiled modules that cannot be loaded where there is no GPU, and for nothing else.

A module that the wheel ships imports as an empty shell whose every attribute is a no-op, so that the engine's own Python runs
and decides as it would. A module that the wheel does not ship stays missing: its absence is part of the answer.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import re
import sys
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

# Kernel packages that open the CUDA driver when imported. They come with the engine's CUDA wheel as its dependencies.
KERNEL_PACKAGES = frozenset(
    [
        "flashinfer",
        "flashinfer_cubin",
        "flashinfer_jit_cache",
        "deep_gemm",
        "cutlass",
        "quack",
        "tilelang",
        "tokenspeed_mla",
        "humming",
        "flash_attn",
        "flash_mla",
        "tvm",
        "tvm_ffi",
        "cuda",
        "cupy",
        "cudnn",
        "pynvml",
        "nvidia",
        "nixl",
        "fmha_sm100",
        "b12x",
        "hpc",
        "amdsmi",
        "gguf",
        "xgrammar",
    ]
)


# Processors of images and sound import these; the asking environment leaves them out, and nothing is processed here.
MEDIA = frozenset({"torchvision", "torchaudio"})
# transformers takes a stub of these for the real thing; the engine runs without them.
LEFT_OUT = frozenset({"vllm", "torchcodec"})


class Inert:
    """Stands for any object: called, indexed or subclassed it gives another one; as a decorator it returns what it decorates."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        decorates = len(args) == 1 and not kwargs and callable(args[0]) and not isinstance(args[0], Inert)
        return args[0] if decorates else Inert()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Inert()

    def __getitem__(self, key: Any) -> Inert:
        return Inert()

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()

    def __or__(self, other: Any) -> type:
        return Inert

    def __ror__(self, other: Any) -> type:
        return Inert

    def __int__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def _nothing(self, *others: Any) -> Inert:
        return Inert()

    def _no(self, other: object) -> bool:
        return False

    # A size that a kernel library would have named is computed with and compared: it is neither less nor more than anything.
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __rfloordiv__ = _nothing
    __truediv__ = __rtruediv__ = __mod__ = __rmod__ = __neg__ = __abs__ = _nothing
    __lt__ = __le__ = __gt__ = __ge__ = _no


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            return "99.0"
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        value = Inert()
        setattr(self, name, value)
        return value


class StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers for `modules` (exact names) and everything below `packages`."""

    def __init__(self, modules: Iterable[str], packages: Iterable[str]) -> None:
        self.modules, self.packages = frozenset(modules), frozenset(packages)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname in self.modules or fullname.split(".")[0] in self.packages:
            return importlib.machinery.ModuleSpec(fullname, self, origin="stub", is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _Module(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def module_of(extension: str) -> str:
    """The module that a compiled file is: `vllm/_C.abi3.so` -> `vllm._C`."""
    return re.sub(r"(\.abi3|\.cpython[^/]*)?\.so$", "", extension).replace("/", ".")


def install(extensions: Iterable[str], packages: Iterable[str], required: Iterable[str]) -> None:
    """required: distributions that the wheel asks for. Where this environment lacks one, it is stubbed after all else failed."""
    sys.meta_path.insert(0, StubFinder((module_of(e) for e in extensions), packages))
    names = ({name.lower().replace("-", "_") for name in required} | MEDIA) - LEFT_OUT
    missing = {name for name in names if importlib.util.find_spec(name) is None}
    sys.meta_path.append(StubFinder((), missing))
    _give_versions(missing)


def installed(package: str) -> tuple[list[str], frozenset[str]]:
    """(compiled files of an installed package, kernel packages beside it): what this environment has, and nothing more."""
    spec = importlib.util.find_spec(package)
    folders = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    files = [f"{package}/{file.relative_to(folder)}" for folder in folders for file in folder.rglob("*.so")]
    return files, frozenset(name for name in KERNEL_PACKAGES if importlib.util.find_spec(name) is not None)


def _give_versions(missing: set[str]) -> None:
    """A stubbed distribution has a version too, because importers ask for it."""
    original = importlib.metadata.version

    def version(distribution_name: str) -> str:
        if distribution_name.lower().replace("-", "_") in missing:
            return "99.0"
        return original(distribution_name)

    importlib.metadata.version = version
