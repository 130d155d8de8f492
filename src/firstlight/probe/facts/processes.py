"""Who the processes on the GPUs are: user, command, container, start, and whether a firstlight run started them."""

import re
from collections.abc import Sequence

from msgspec import Struct

from firstlight.probe.fact import Fact, shell


class ProcessFacts(Struct, frozen=True, kw_only=True):
    """started: Unix seconds. run: the firstlight run named in its environment, readable only for our own user and root."""

    pid: int
    user: str | None = None
    command: str | None = None
    container: str | None = None
    unit: str | None = None
    started: float | None = None
    run: str | None = None


# Other people's command lines may carry keys: they are hidden before anything is kept.
_HIDE = r"s/\(-[-a-zA-Z_]*\([kK]ey\|KEY\|[tT]oken\|TOKEN\|[pP]assword\|[sS]ecret\)[= ]\)[^ ]*/\1(hidden)/g"
_SCRIPT = (
    f"hide='{_HIDE}';"
    'echo "btime $(sed -n \'s/^btime //p\' /proc/stat)"; echo "ticks $(getconf CLK_TCK 2>/dev/null || echo 100)";'
    ' for p in "$@"; do [ -d "/proc/$p" ] || continue; echo "pid $p"; echo "user $(stat -c %U "/proc/$p" 2>/dev/null)";'
    ' echo "stat $(sed "s/.*) //" "/proc/$p/stat" 2>/dev/null)";'
    ' echo "cmd $(tr \'\\0\\n\' \'  \' <"/proc/$p/cmdline" 2>/dev/null | cut -c 1-500 | sed "$hide")";'
    " sed 's/^/cgroup /' \"/proc/$p/cgroup\" 2>/dev/null;"
    " tr '\\0' '\\n' <\"/proc/$p/environ\" 2>/dev/null | sed -n 's/^FIRSTLIGHT_RUN=/run /p' | head -n 1; done; true"
)


def parse_processes(text: str) -> dict[int, ProcessFacts]:
    head, *blocks = re.split(r"^pid (?=\d+$)", text, flags=re.M)
    btime, ticks = (int(m[1]) if (m := re.search(rf"^{k} (\d+)$", head, re.M)) else 0 for k in ("btime", "ticks"))
    found = (_process(block, btime, ticks or 100) for block in blocks)
    return {p.pid: p for p in found}


def _process(block: str, btime: int, ticks: int) -> ProcessFacts:
    field = {k: v for k, _, v in (line.partition(" ") for line in block.splitlines()[1:]) if k in ("user", "cmd", "stat", "run")}
    stat = field.get("stat", "").split()
    start = int(stat[19]) if len(stat) > 19 and stat[19].isdigit() else None
    return ProcessFacts(
        pid=int(block.split("\n", 1)[0]),
        user=field.get("user", "").replace("UNKNOWN", "") or None,
        command=field.get("cmd", "").strip() or None,
        container=_container(block),
        unit=_unit(block),
        started=btime + start / ticks if start is not None and btime else None,
        run=field.get("run") or None,
    )


def _container(block: str) -> str | None:
    """The short id of a docker, podman or containerd container, or a Kubernetes pod's."""
    found = re.search(r"(?:docker|libpod|cri-containerd|crio|containerd)[-/:]([0-9a-f]{12})[0-9a-f]{52}", block)
    found = found or re.search(r"kubepods\S*/([0-9a-f]{12})[0-9a-f]{52}", block)
    return found[1] if found else None


def _unit(block: str) -> str | None:
    found = re.search(r"^cgroup .*/([^/\s]+\.service)(?:/|$)", block, re.M)
    return found[1] if found else None


def processes(pids: Sequence[int]) -> Fact[dict[int, ProcessFacts]]:
    return shell("gpu-processes", _SCRIPT, parse_processes, arguments=[str(p) for p in pids])
