"""`inspect`: a source's files -> Checkpoint. Headers and small JSON files only, never the weights."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from firstlight.core.checkpoint import Checkpoint
from firstlight.core.errors import InputError
from firstlight.core.ports import FileInfo, Source
from firstlight.inspect.folder import inspect_folder


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
    top = [f.path for f in files if "/" not in f.path]
    if any(name.endswith(".safetensors") or name == "config.json" for name in top):
        return inspect_folder(source, files)
    if any(f.path.endswith(".gguf") for f in files):
        return _gguf(source, files)
    if getattr(source, "one_file", False):
        return _gguf(source, files)
    if any(name.endswith((".bin", ".pt", ".pth")) for name in top):
        return inspect_folder(source, files)
    raise _nothing(source, files)


def _gguf(source: Source, files: Sequence[FileInfo]) -> Checkpoint:
    from firstlight.inspect.gguf_files import inspect_gguf  # a folder of safetensors need not wait for it

    return inspect_gguf(source, files)


def _nothing(source: Source, files: Sequence[FileInfo]) -> InputError:
    inside = [f.path.removesuffix("/config.json") for f in files if f.path.endswith("/config.json")]
    shown = ", ".join(f.path for f in files[:6]) or "no files at all"
    return InputError(
        "not-a-checkpoint",
        f"{source.ref} holds neither config.json nor weights",
        evidence=(f"looked in {source.root or source.ref}", f"found: {shown}"),
        hint=f"name one of the folders inside: {', '.join(inside[:5])}" if inside else "name the folder that holds config.json, or a .gguf",
    )
