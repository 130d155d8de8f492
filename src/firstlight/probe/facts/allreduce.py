"""A short all-reduce under several NCCL settings: does it end, is the sum right, which settings are faster here."""

import json
from collections.abc import Mapping, Sequence
from importlib import resources

from firstlight.core.machine import Collective
from firstlight.probe.fact import Fact, shell

# NCCL's own choice first and last: what lies between the two is noise (on two H200 the first of six was 1.6 times the others).
SETTINGS: tuple[dict[str, str], ...] = (
    {},
    {"NCCL_PROTO": "LL"},
    {"NCCL_PROTO": "Simple"},
    {"NCCL_P2P_LEVEL": "SYS"},
    {"NCCL_P2P_LEVEL": "SYS", "NCCL_PROTO": "LL"},
    {"NCCL_P2P_DISABLE": "1"},
    {},
)
WITH_AND_WITHOUT_PEERS: tuple[dict[str, str], ...] = ({}, {"NCCL_P2P_DISABLE": "1"})
LIMIT = 45.0
_LIBRARY = """
import glob, sys
found = [p for folder in sys.path for p in glob.glob(folder + "/nvidia/nccl/lib/libnccl.so.2")]
print(found[0] if found else "libnccl.so.2")
"""


def library_of(python: str) -> Fact[str]:
    """Where an engine's environment keeps NCCL; the system's where it has none."""
    return Fact("nccl-library", (python, "-c", _LIBRARY), lambda text: text.strip().splitlines()[-1] if text.strip() else "libnccl.so.2")


def all_reduce(settings: Mapping[str, str], indices: Sequence[int], library: str) -> Fact[Collective]:
    """One measurement in a process of its own, since NCCL reads its settings once."""
    source = resources.files("firstlight.probe.inside").joinpath("allreduce.py").read_text("utf-8")
    words = " ".join(f"{k}={v}" for k, v in settings.items())
    script = f'unset NCCL_PROTO NCCL_P2P_LEVEL NCCL_P2P_DISABLE; {words} exec python3 -c "$1" "$2" "$3"'
    name = "all-reduce:" + (words.replace(" ", ",") or "default")
    gpus = ",".join(str(i) for i in indices)
    return shell(name, script, lambda text: parse_all_reduce(text, settings), arguments=[source, library, gpus], timeout=LIMIT)


def parse_all_reduce(text: str, settings: Mapping[str, str]) -> Collective:
    line = next((row for row in text.splitlines() if row.startswith("{")), None)
    try:
        answer = json.loads(line) if line else None
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or "equal" not in answer:
        said = answer.get("problem") if isinstance(answer, dict) else None
        lines = text.strip().splitlines()
        return Collective(settings=dict(settings), problem=str(said or (lines[-1][:200] if lines else "no answer")))
    return Collective(
        settings=dict(settings),
        equal=answer["equal"],
        small_seconds=answer["small_seconds"],
        large_bytes_per_second=answer["large_bytes_per_second"],
    )
