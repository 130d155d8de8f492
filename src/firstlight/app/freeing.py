"""GPU memory that somebody gives back just now: waited for, instead of a smaller plan for what a moment later is free."""

import asyncio
import time

from firstlight.app.session import Session
from firstlight.core.diagnosis import Diagnosis
from firstlight.core.errors import HostError
from firstlight.core.ports import Host

CODES = frozenset({"gpu-memory-occupied", "gpu-memory-marginal"})
QUERY = ["nvidia-smi", "--query-gpu=index,memory.free", "--format=csv,noheader,nounits"]
PATIENCE_SECONDS = 60.0
STILL_SECONDS = 5.0  # nothing was given back for so long: whoever holds it keeps it
LOOK_SECONDS = 0.5
STEP_MIB = 16


async def came_back(session: Session, diagnosis: Diagnosis) -> str | None:
    """Waits while memory of the run's GPUs is being freed; why another start of the same plan makes sense, None where it does not."""
    wanted = diagnosis.facts.get("wanted_gib")
    if diagnosis.cause is None or diagnosis.cause.code not in CODES or not isinstance(wanted, int | float):
        return None
    return await asyncio.to_thread(_watched, session, float(wanted) * 1024)


def _watched(session: Session, wanted_mib: float) -> str | None:
    begun = changed = time.monotonic()
    before = free_memory(session.host, session.intent.gpus)
    while before:
        now = time.monotonic()
        if min(before.values()) >= wanted_mib:
            return f"the GPU memory that it wants is free {now - begun:.0f} s later"
        if now - changed > STILL_SECONDS or now - begun > PATIENCE_SECONDS:
            return None
        session.emitter.emit("phase", name="waiting for GPU memory that is being freed")
        time.sleep(LOOK_SECONDS)
        found = free_memory(session.host, session.intent.gpus)
        if any(free > before.get(index, free) + STEP_MIB for index, free in found.items()):
            changed = time.monotonic()
        before = found
    return None


def free_memory(host: Host, gpus: list[int] | None) -> dict[int, int]:
    """Index -> MiB that are free, as the driver says; {} where it says nothing."""
    try:
        text = host.run(QUERY, timeout=20).text
    except HostError:
        return {}
    rows = [line.split(",") for line in text.splitlines() if line.count(",") == 1]
    found = {int(index): int(free) for index, free in rows if index.strip().isdigit() and free.strip().isdigit()}
    return {index: free for index, free in found.items() if gpus is None or index in gpus}
