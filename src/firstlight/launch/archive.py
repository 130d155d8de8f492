"""The supervisor as one file: its package packed into a zip that any Python 3.9 runs, compiled for the one that packs it."""

import importlib.util
import io
import marshal
import zipfile
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.resources import files

PACKAGE = "firstlight.launch.supervisor"
_START = f"import sys\nfrom {PACKAGE}.__main__ import main\nsys.exit(main(sys.argv[1:]))\n"
_UNCHECKED_HASH = 1  # flags of a .pyc (PEP 552): valid by its hash, not looked up again
_WITHOUT_REFERENCES = 2  # marshal's version: later ones write back-references by the live objects' counts, which differ from call to call


@cache
def supervisor_archive() -> bytes:
    """The same bytes for the same sources and interpreter. Another interpreter passes over the compiled part and reads the sources."""
    members: dict[str, bytes] = {"__main__.py": _START.encode(), "firstlight/__init__.py": b"", "firstlight/launch/__init__.py": b""}
    for item in files(PACKAGE).iterdir():
        if item.name.endswith(".py"):
            path = f"{PACKAGE.replace('.', '/')}/{item.name}"
            members[path] = item.read_bytes()
            members[f"{path}c"] = _compiled(item.name.removesuffix(".py"), members[path])
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in sorted(members):
            archive.writestr(zipfile.ZipInfo(name, (2000, 1, 1, 0, 0, 0)), members[name], zipfile.ZIP_DEFLATED, 1)
    return buffer.getvalue()


def _compiled(module: str, source: bytes) -> bytes:
    """The module as a .pyc, from the interpreter's own cache where that has it."""
    name = PACKAGE if module == "__init__" else f"{PACKAGE}.{module}"
    spec = importlib.util.find_spec(name)
    loader = spec.loader if spec else None
    code = loader.get_code(name) if isinstance(loader, SourceFileLoader) else compile(source, f"{module}.py", "exec")
    return (
        importlib.util.MAGIC_NUMBER
        + _UNCHECKED_HASH.to_bytes(4, "little")
        + importlib.util.source_hash(source)
        + marshal.dumps(code, _WITHOUT_REFERENCES)
    )
