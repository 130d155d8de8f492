"""Small true checkpoints for the hub on loopback: real safetensors shards with an index, a GGUF header, wheels."""

import hashlib
import json
import random
import struct
import zipfile
from pathlib import Path

REPO = "org/tiny"
COMMIT, LATER = "a" * 40, "b" * 40


def safetensors(name: str, size: int, seed: int) -> bytes:
    """One U8 tensor of `size` random bytes under a correct header."""
    header = json.dumps({name: {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + random.Random(seed).randbytes(size)


def gguf(size: int, seed: int) -> bytes:
    """Magic, version 3, no tensors, no keys, then random bytes."""
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 0) + random.Random(seed).randbytes(size)


def write_model(folder: Path, *, shards: int, size: int, seed: int = 0, extras: bool = True) -> Path:
    """A sharded model in the usual files, and what a real repository has beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    for i, name in enumerate(names):
        (folder / name).write_bytes(safetensors(f"layer.{i}.weight", size + i, seed * 1000 + i))
    index = {"metadata": {"total_size": shards * size}, "weight_map": {f"layer.{i}.weight": n for i, n in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "seed": seed}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "LICENSE").write_text("Apache License")
    if extras:
        (folder / "README.md").write_text("# tiny")
        (folder / ".gitattributes").write_text("*.safetensors filter=lfs")
        (folder / "pytorch_model.bin").write_bytes(b"pickle" * 100)
        (folder / "original").mkdir()
        (folder / "original" / "consolidated.00.pth").write_bytes(b"again" * 100)
    return folder


def write_wheel(folder: Path, member: bytes, *, package: str = "tiny_model", version: str = "1.0") -> Path:
    """A wheel with one model file inside, stored compressed."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{package}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(f"{package}/model.gguf", member)
        wheel.writestr(f"{package}/__init__.py", "")
        wheel.writestr(f"{package}-{version}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        wheel.writestr(f"{package}-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{package}-{version}.dist-info/RECORD", "")
    return path


def digests(folder: Path) -> dict[str, str]:
    """sha256 of every file that is not firstlight's own, by relative name; links are followed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not name.startswith(".firstlight/"):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found
