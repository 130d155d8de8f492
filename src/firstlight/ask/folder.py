"""A folder with a model's configuration: its own where it lies on the host, else a copy of its small files."""

from firstlight.core.checkpoint import Checkpoint
from firstlight.core.errors import InputError
from firstlight.core.ids import digest, slug
from firstlight.core.ports import Host, Source

_SMALL = 4 << 20
_KINDS = (".json", ".py", ".jinja", ".txt")
# Tokenizers are large and never asked about.
_LEFT_OUT = ("tokenizer.json", "vocab.json", "merges.txt", "model.safetensors.index.json")


def model_folder(host: Host, checkpoint: Checkpoint, source: Source | None, cache: str) -> str:
    """Raises InputError `config-missing` when nothing has the model's config.json."""
    if checkpoint.path and host.stat(f"{checkpoint.path}/config.json") is not None:
        return checkpoint.path
    parent = checkpoint.path.rsplit("/", 1)[0] if checkpoint.path else ""
    if checkpoint.path and checkpoint.path.endswith("/config.json") and host.stat(checkpoint.path) is not None:
        return parent
    if source is None:
        raise InputError(
            "config-missing",
            f"{checkpoint.ref} has no config.json here that an engine could be asked about",
            evidence=(f"path: {checkpoint.path or 'none'}",),
            hint="name the model's folder or its hub name",
        )
    return _copied(host, checkpoint, source, cache)


def _copied(host: Host, checkpoint: Checkpoint, source: Source, cache: str) -> str:
    names = [f.path for f in source.list() if f.size < _SMALL and f.path.endswith(_KINDS) and f.path not in _LEFT_OUT and "/" not in f.path]
    if "config.json" not in names:
        raise InputError("config-missing", f"{checkpoint.ref} has no config.json", evidence=(f"files: {', '.join(names[:8]) or 'none'}",))
    files = {name: source.read(name) for name in sorted(names)}
    folder = f"{cache}/models/{slug(checkpoint.name or checkpoint.ref)[:60]}-{digest(sorted(files.items()))}"
    for name, data in files.items():
        if host.stat(f"{folder}/{name}") is None:
            host.write(f"{folder}/{name}", data)
    return folder
