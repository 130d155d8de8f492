"""What loading reads: the weight files of a checkpoint, and how fast the storage that holds them was measured."""

from firstlight.core.checkpoint import Checkpoint
from firstlight.core.machine import Machine

_WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth")
_MOST_FILES = 1000


def weight_files(checkpoint: Checkpoint | None) -> list[str]:
    """Full paths on the checkpoint's host; none where it is only on a hub."""
    if checkpoint is None or checkpoint.path is None:
        return []
    if checkpoint.path.endswith(_WEIGHTS):
        return [checkpoint.path]
    return [f"{checkpoint.path.rstrip('/')}/{name}" for name in sorted(checkpoint.files) if name.endswith(_WEIGHTS)][:_MOST_FILES]


def read_rate(checkpoint: Checkpoint | None, machine: Machine | None) -> float | None:
    """Bytes a second of the storage that holds the checkpoint, None where it was not measured."""
    path = checkpoint.path if checkpoint else None
    places = [s for s in machine.storage if s.read_bytes_per_second] if machine else []
    fitting = [s for s in places if path and path.startswith(s.path.rstrip("/"))]
    return max(fitting, key=lambda s: len(s.path)).read_bytes_per_second if fitting else None
