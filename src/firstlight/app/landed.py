"""Headers of weight files as they land: what the fetch room is handed, since rooms do not know each other."""

from pathlib import Path

from firstlight.core.errors import InputError
from firstlight.core.findings import Finding, Severity


def check_landed(path: Path) -> list[Finding]:
    """Findings about one weight file's header and extent; weights are not read. Raises OSError."""
    if path.name.endswith(".gguf") or path.resolve().name.endswith(".gguf") or _starts_with(path, b"GGUF"):
        return _gguf(path)
    return _safetensors(path)


def _safetensors(path: Path) -> list[Finding]:
    from firstlight.inspect.fold import Fold
    from firstlight.inspect.safetensors import LENGTH_BYTES, HeaderError, header_length, read_header

    size = path.stat().st_size
    with path.open("rb") as file:
        try:
            length = header_length(file.read(LENGTH_BYTES), path.name, size)
            return read_header(file.read(length), path.name, size, Fold())
        except HeaderError as e:
            return [e.finding]


def _gguf(path: Path) -> list[Finding]:
    from firstlight.inspect.gguf import read_gguf

    with path.open("rb") as file:

        def read(offset: int, length: int) -> bytes:
            file.seek(offset)
            return file.read(length)

        try:
            read_gguf(read, path.stat().st_size, path.name)
        except InputError as e:
            return [Finding(code=e.code, severity=Severity.BLOCKER, message=e.message, evidence=list(e.evidence), hint=e.hint)]
    return []


def _starts_with(path: Path, magic: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(magic)) == magic
