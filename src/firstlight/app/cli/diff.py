"""`firstlight diff A B`: what differs between two runs or two JSON documents."""

import os
from pathlib import Path
from typing import Any

import click

from firstlight.app import completing
from firstlight.app.output import say

COMPARED = ("intent.json", "checkpoint.json", "machine.json", "plan.json", "launch.json")
NOISE = frozenset({"created", "updated", "free_bytes", "memory_available_bytes", "shm_free_bytes", "processes", "ports_in_use", "port"})


@click.command("diff", short_help="what differs between two runs or plans")
@click.argument("a", shell_complete=completing.runs_or_files)
@click.argument("b", shell_complete=completing.runs_or_files)
def command(a: str, b: str) -> int:
    """Compares runs A and B (or two JSON files) field by field; facts that change by themselves are left out."""
    found = [d for left, right in _pairs(a, b) for d in _differing(left, right)]
    for name, old, new in found:
        click.echo(f"{name}: {old!r} -> {new!r}")
    if not found:
        say("nothing differs")
    return 0


def _pairs(a: str, b: str) -> list[tuple[Path, Path]]:
    """Two files as they are, or what two runs have of the documents that are compared."""
    return [(Path(a), Path(b))] if os.path.isfile(a) and os.path.isfile(b) else _run_files(a, b)


def _differing(left: Path, right: Path) -> list[tuple[str, Any, Any]]:
    return [(f"{left.stem}.{name}" if name else left.stem, old, new) for name, old, new in differences(_read(left), _read(right))]


def _run_files(a: str, b: str) -> list[tuple[Path, Path]]:
    from firstlight.app.store import RunStore

    store = RunStore()
    left, right = store.find(a).path, store.find(b).path
    return [(left / n, right / n) for n in COMPARED if (left / n).exists() or (right / n).exists()]


def _read(path: Path) -> Any:
    import msgspec

    from firstlight.core.errors import InputError

    try:
        return msgspec.json.decode(path.read_bytes()) if path.exists() else {}
    except OSError as e:
        raise InputError("file-unreadable", f"{path} cannot be read", evidence=(e.strerror or str(e),)) from None
    except (msgspec.DecodeError, RecursionError) as e:
        raise InputError("not-json", f"{path} is not JSON", evidence=(str(e),)) from None


def differences(a: Any, b: Any, name: str = "") -> list[tuple[str, Any, Any]]:
    """(path, left, right) of every leaf that differs."""
    if isinstance(a, dict) and isinstance(b, dict):
        keys = [k for k in {**a, **b} if k not in NOISE]
        return [d for k in keys for d in differences(a.get(k), b.get(k), f"{name}.{k}".lstrip("."))]
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [d for i, (x, y) in enumerate(zip(a, b, strict=True)) for d in differences(x, y, f"{name}[{i}]")]
    return [] if a == b else [(name, a, b)]
