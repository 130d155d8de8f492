"""A folder with a model's configuration: its own where it lies on the host, else a copy of its small files."""

import posixpath

from firstlight.core.checkpoint import Checkpoint
from firstlight.core.errors import InputError
from firstlight.core.ids import digest, slug
from firstlight.core.patches import by_file, patch_json
from firstlight.core.plan import OverlaySpec
from firstlight.core.ports import Host, Source

_SMALL = 4 << 20
_KINDS = (".json", ".py", ".jinja", ".txt")
# Tokenizers are large and never asked about.
_LEFT_OUT = ("tokenizer.json", "vocab.json", "merges.txt", "model.safetensors.index.json")


def model_folder(host: Host, checkpoint: Checkpoint, source: Source | None, cache: str, overlay: OverlaySpec | None = None) -> str:
    """The folder that the engine will be started on, or one whose small files are the same.

    overlay: what the plan will change in it. Raises InputError `patch-impossible`, and `config-missing` when nothing has a config.json.
    """
    if (own := _own_folder(host, checkpoint)) is not None:
        return own if overlay is None else _laid(host, checkpoint, _patched(_small_files(host, own), overlay), cache)
    if source is None:
        raise InputError(
            "config-missing",
            f"{checkpoint.ref} has no config.json here that an engine could be asked about",
            evidence=(f"path: {checkpoint.path or 'none'}",),
            hint="name the model's folder or its hub name",
        )
    files = _of_source(checkpoint, source)
    return _laid(host, checkpoint, files if overlay is None else _patched(files, overlay), cache)


def _own_folder(host: Host, checkpoint: Checkpoint) -> str | None:
    path = checkpoint.path
    if not path:
        return None
    if host.stat(f"{path}/config.json") is not None:
        return path
    return posixpath.dirname(path) if path.endswith("/config.json") and host.stat(path) is not None else None


def _asked_about(name: str, size: int) -> bool:
    return size < _SMALL and name.endswith(_KINDS) and name not in _LEFT_OUT and "/" not in name


def _small_files(host: Host, folder: str) -> dict[str, bytes]:
    """Sizes are those that links lead to: a hub's cache is links."""
    names = sorted(posixpath.basename(info.path) for info in host.list(folder))
    sizes = {name: info.size for name in names if (info := host.stat(f"{folder}/{name}")) is not None and info.kind != "directory"}
    return {name: host.read(f"{folder}/{name}") for name, size in sizes.items() if _asked_about(name, size)}


def _of_source(checkpoint: Checkpoint, source: Source) -> dict[str, bytes]:
    names = sorted(f.path for f in source.list() if _asked_about(f.path, f.size))
    if "config.json" not in names:
        raise InputError("config-missing", f"{checkpoint.ref} has no config.json", evidence=(f"files: {', '.join(names[:8]) or 'none'}",))
    return {name: source.read(name) for name in names}


def _patched(files: dict[str, bytes], overlay: OverlaySpec) -> dict[str, bytes]:
    """Patches of files that are never asked about change nothing here."""
    return files | {
        name: patch_json(files[name], patches, origin=name)[0] for name, patches in by_file(overlay.patches).items() if name in files
    }


def _laid(host: Host, checkpoint: Checkpoint, files: dict[str, bytes], cache: str) -> str:
    folder = f"{cache}/models/{slug(checkpoint.name or checkpoint.ref)[:60]}-{digest(sorted(files.items()))}"
    for name, data in files.items():
        if host.stat(f"{folder}/{name}") is None:
            host.write(f"{folder}/{name}", data)
    return folder
