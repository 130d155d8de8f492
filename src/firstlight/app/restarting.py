"""What the supervisor asks before it starts a dead engine again: `python -m firstlight.app.restarting ATTEMPT-FOLDER`.

Prints one JSON object (restart, code, title, because, remedy) and leaves the whole diagnosis in the folder. The supervisor passes how the
engine ended in FIRSTLIGHT_DATA. Where firstlight is not installed this cannot run, and the supervisor goes on without an answer.
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from firstlight.core.diagnosis import Diagnosis
from firstlight.core.schema import encode
from firstlight.diagnose.diagnose import diagnose

LOG_LIMIT = 16 << 20
# Causes that outlive the process: the next start would meet the same, and the machine or the disk needs a person first.
STAYS = {
    "gpu-lost": "the driver has lost the GPU: another start finds it lost as well",
    "no-gpu-found": "no GPU is there to start on",
    "cuda-driver-mismatch-803": "the driver changed under the running system: a reboot or a reload of its modules comes first",
    "storage-error": "the storage reports errors: the next start would read from it again",
    "checkpoint-shard-corrupt": "the checkpoint on disk is damaged",
    "checkpoint-shard-missing": "a file of the checkpoint is gone",
    "weights-not-found": "the weights are gone",
    "engine-package-inconsistent": "the engine's package was changed while it ran",
    "engine-not-installed": "the engine is gone",
}


def judge(found: Diagnosis) -> dict[str, Any]:
    """Whether another start makes sense, and what is known of the cause."""
    cause = found.cause
    if cause is None:
        code, title = found.headline
        said = [found.unknown.first_exception[:200]] if found.unknown and found.unknown.first_exception else []
        return {"restart": True, "code": code, "title": title, "because": "", "evidence": said}
    remedy = next((r for r in found.remedies if r.change or r.action), None)
    return {
        "restart": cause.code not in STAYS,
        "code": cause.code,
        "title": cause.title,
        "because": STAYS.get(cause.code, "another start may live"),
        "remedy": (remedy.action or json.dumps(remedy.change)) if remedy else None,
        "evidence": [e.text.strip()[:200] for e in cause.evidence[:2]],
    }


def examine(folder: Path, death: Mapping[str, Any]) -> Diagnosis:
    """The diagnosis of this life of the engine: what the log has gained since it was started. Raises OSError."""
    request = _request(folder)
    status = death.get("returncode")
    return diagnose(
        _last(folder / "engine.log", int(death.get("log_bytes") or 0) - int(death.get("log_offset") or 0)),
        engine=request.get("engine"),
        exit_status=status if isinstance(status, int) else None,
        context={"cgroup_oom_kills": 1} if death.get("oom_killed") else {},
    )


def _request(folder: Path) -> dict[str, Any]:
    try:
        spec = json.loads((folder / "supervise.json").read_text())["spec"]
    except (OSError, ValueError, KeyError):
        return {}
    return {"engine": spec["engine"]} if spec.get("engine") in ("vllm", "llamacpp", "sglang") else {}


def _last(path: Path, count: int) -> bytes:
    """The last `count` bytes (0: all), at most LOG_LIMIT."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        wanted = min(size, LOG_LIMIT, count if count > 0 else size)
        file.seek(size - wanted)
        return file.read(wanted)


def main(argv: list[str]) -> int:
    folder = Path(argv[0])
    found = examine(folder, json.loads(os.environ.get("FIRSTLIGHT_DATA") or "{}"))
    (folder / "diagnosis.json").write_bytes(encode(found))
    print(json.dumps(judge(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
