"""`inspect`: a source's files -> Checkpoint. Headers and small JSON files only, never the weights."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from firstlight.core.checkpoint import Checkpoint
from firstlight.core.errors import InputError
from firstlight.core.ports import FileInfo, Source
from firstlight.inspect.folder import inspect_folder
from firstlight.inspect.gguf_files import inspect_gguf


def inspect(source: Source) -> Checkpoint:
    """Everything the files say about themselves; what is wrong with them are findings, not errors.

    Raises InputError when there is nothing that a checkpoint could be told from: `not-a-checkpoint`, the `gguf-*` codes, `json-*`.
    """
    with _without_collector():
        return _inspect(source, source.list())


@contextmanager
def _without_collector() -> Iterator[None]:
    """Hundreds of thousands of short-lived tuples without a cycle among them: the cycle collector would look at them in vain."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _inspect(source: Source, files: Sequence[FileInfo]) -> Checkpoint:
    if any(f.path.endswith(".safetensors") or f.path == "config.json" for f in files):
        return inspect_folder(source, files)
    if any(f.path.endswith(".gguf") for f in files):
        return inspect_gguf(source, files)
    if getattr(source, "one_file", False):
        return inspect_gguf(source, files)
    if any(f.path.endswith((".bin", ".pt", ".pth")) for f in files):
        return inspect_folder(source, files)
    raise _nothing(source, files)


def _nothing(source: Source, files: Sequence[FileInfo]) -> InputError:
    shown = ", ".join(f.path for f in files[:6]) or "no files at all"
    return InputError(
        "not-a-checkpoint",
        f"{source.ref} holds neither config.json nor weights",
        evidence=(f"looked in {source.root or source.ref}", f"found: {shown}"),
        hint="name the folder that holds config.json, or a .gguf",
    )
