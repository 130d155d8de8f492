"""A reference from a model folder instead of an endpoint: transformers on the CPU, in its own environment."""

import json
import subprocess
import time
from importlib.resources import as_file, files

import msgspec
from msgspec import Struct

from firstlight.core.errors import FirstlightError
from firstlight.core.reference import Reference, ReferenceRow
from firstlight.verify.reference import digest_of, passages, prompts

SECONDS = 1800.0


class _Made(Struct):
    rows: list[ReferenceRow]
    ids: list[list[int]]


def reference_of_folder(folder: str, python: str) -> Reference:
    """Computed in float32 on the CPU, for models small enough. python: of an environment with torch and transformers.

    Raises FirstlightError `reference-failed` with the script's last lines.
    """
    asked = prompts()
    script = files("firstlight.engines.transformers").joinpath("inside/reference.py")
    with as_file(script) as path:
        argv = [python, "-I", str(path), folder]
        try:
            done = subprocess.run(argv, input=json.dumps(asked), capture_output=True, text=True, timeout=SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as e:
            raise _failed(str(e).splitlines()) from None
    if done.returncode:
        raise _failed(done.stderr.strip().splitlines())
    try:
        made = msgspec.json.decode((done.stdout.strip().splitlines() or [""])[-1], type=_Made)
    except msgspec.DecodeError:
        raise _failed([f"{python} printed no rows", *done.stdout.strip().splitlines()]) from None
    if {len(made.rows), len(made.ids)} != {len(asked)}:
        raise _failed([f"{len(made.rows)} rows for {len(asked)} prompts"])
    ids = dict(zip(asked, made.ids, strict=True))
    digest = digest_of([ids[p] for p in passages(asked)])
    own = {"model": folder, "engine": "transformers", "note": "float32 on the CPU"}
    return Reference(**own, taken=time.time(), prompts=asked, rows=made.rows, tokens_digest=digest)


def _failed(lines: list[str]) -> FirstlightError:
    hint = "--engine-python names a Python with torch and transformers, and the model must fit into memory in float32"
    return FirstlightError("reference-failed", "transformers made no reference", evidence=tuple(lines[-6:]), hint=hint)
