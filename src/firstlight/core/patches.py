"""Patches of a checkpoint's JSON files: what an overlay lays, and what an engine that is asked has to see."""

import json
import posixpath
from typing import Any

from firstlight.core.errors import InputError
from firstlight.core.plan import JsonPatch


def by_file(patches: list[JsonPatch]) -> dict[str, list[JsonPatch]]:
    """File name, relative to the checkpoint -> its patches. Raises InputError `patch-impossible` for one outside of it."""
    found: dict[str, list[JsonPatch]] = {}
    for patch in patches:
        found.setdefault(posixpath.normpath(patch.file), []).append(patch)
    for name in found:
        if name.startswith(("..", "/")):
            raise InputError("patch-impossible", "a patch points outside the checkpoint", evidence=(f"file: {name}",))
    return found


def patch_json(text: bytes, patches: list[JsonPatch], *, origin: str) -> tuple[bytes, list[str]]:
    """A JSON file with its patches applied, and one line for each change. Key order is kept. Raises InputError `patch-impossible`."""
    try:
        document = json.loads(text)
    except ValueError as e:
        raise InputError("patch-impossible", f"{origin} is not JSON", evidence=(str(e),)) from None
    lines = [line for patch in patches if (line := _apply(document, patch, origin)) is not None]
    return json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n", lines


def _apply(document: Any, patch: JsonPatch, origin: str) -> str | None:
    """Changes `document` in place; None where a key to remove is not there."""
    holder: Any = document
    for key in patch.path[:-1]:
        if not isinstance(holder, dict):
            raise InputError("patch-impossible", f"{origin} has no object at {'.'.join(patch.path)}", evidence=(f"at {key}",))
        if key not in holder and patch.remove:
            return None
        holder = holder.setdefault(key, {})
    name, last = ".".join(patch.path), patch.path[-1]
    if not isinstance(holder, dict):
        raise InputError("patch-impossible", f"{origin} has no object above {name}", evidence=(f"found {type(holder).__name__}",))
    if patch.remove:
        return f"removed {name} (was {json.dumps(holder.pop(last))}): {patch.because}" if last in holder else None
    before = json.dumps(holder[last]) if last in holder else "absent"
    holder[last] = patch.value
    return f"set {name} to {json.dumps(patch.value)} (was {before}): {patch.because}"
