"""vLLM, process by process, signal by signal, phase by phase: what stops and goes on is looked at in the start that a SIGSEGV then ends."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from fault_cases_engines import _member_died
from fault_cases_fake import died, unseen, unsupervised
from fault_kit import (
    Case,
    Kit,
    Result,
    Skip,
    engine_pid,
    log_has,
    memory_limit,
    named,
    post,
    strike,
    supervisor_pid,
    until,
    wait,
    with_changes,
)

from firstlight.core.run import LaunchSpec
from firstlight.launch.client import SupervisorClient

SEEN_SECONDS = 3.6  # members that lived for three seconds are named when they end
TITLES = {"the engine core": "VLLM::EngineCore", "a worker": "VLLM::Worker"}
Rows = list[tuple[str, Result]]


def begin(kit: Kit, phase: str, *, spec: LaunchSpec | None = None, seen: str = TITLES["the engine core"]) -> SupervisorClient:
    """A vLLM that has come to the phase, its processes known to its supervisor. seen: who must be there where it loads."""
    client = kit.start(spec or (compiled(kit) if phase == "compiles" else kit.vllm()))
    if phase == "imports":
        time.sleep(3)
    elif phase == "compiles":
        wait(lambda: log_has(client, "Warming up model for the compilation"), seconds=400, what="the compilation")
        time.sleep(2)
        assert client.status().state == "starting", "it was ready too soon"
    elif phase == "loads":
        named(client, seen, seconds=300)
        time.sleep(SEEN_SECONDS)
        assert client.status().state == "starting", "it was ready too soon"
    else:
        kit.ready(client)
    kit.note(client)
    return client


def compiled(kit: Kit) -> LaunchSpec:
    """Not eager, and with nothing compiled before."""
    spec = kit.vllm()
    caches = {"VLLM_CACHE_ROOT": str(kit.root / "vllm-cache"), "TORCHINDUCTOR_CACHE_DIR": str(kit.root / "inductor")}
    return with_changes(spec, argv=[word for word in spec.argv if word != "--enforce-eager"], env={**spec.env, **caches})


def stop_and_go(client: SupervisorClient, pid: int, kinds: tuple[str, str]) -> Result:
    """Stopped, told, continued, told."""

    def told(kind: str, since: float) -> float:
        found = wait(
            lambda: next((e for e in client.past_events() if e.kind == kind and e.data["pid"] == pid and e.time >= since), None), what=kind
        )
        return float(found.time)

    since = strike(pid, "SIGSTOP")
    paused = told(kinds[0], since) - since
    again = strike(pid, "SIGCONT")
    return Result(paused, f"reported as paused, and after SIGCONT as going on ({told(kinds[1], again) - again:.2f} s)")


def api_server(phase: str, kit: Kit) -> Rows:
    client = begin(kit, phase)
    stopped = stop_and_go(client, engine_pid(client), ("paused", "continued"))
    rows = [(f"SIGSTOP of the API server while it {phase}", stopped)]
    if phase == "serves":
        for what, title in TITLES.items():
            rows.append((f"SIGSTOP of {what} while it serves, for a moment", _member_paused(client, named(client, title))))
        status, _ = post(client.status().port, {"model": "tiny", "prompt": "hello", "max_tokens": 4})
        assert status == 200, f"it answers {status} after it went on"
    return [*rows, (f"SIGSEGV of the API server while it {phase}", died(client, strike(engine_pid(client), "SIGSEGV")))]


def _member_paused(client: SupervisorClient, pid: int) -> Result:
    return stop_and_go(client, pid, ("member-paused", "member-continued"))


def member(what: str, phase: str, kit: Kit) -> Rows:
    client = begin(kit, phase, seen=TITLES[what])
    pid = named(client, TITLES[what])
    rows = [(f"SIGSTOP of {what} while it {phase}", _member_paused(client, pid))] if phase != "serves" else []
    return [*rows, (f"SIGSEGV of {what} while it {phase}", _member_died(client, pid, strike(pid, "SIGSEGV")))]


def member_killed(what: str, kit: Kit) -> Result:
    client = begin(kit, "compiles")
    pid = named(client, TITLES[what])
    return _member_died(client, pid, strike(pid))


def api_server_killed(kit: Kit) -> Result:
    client = begin(kit, "compiles")
    return died(client, strike(engine_pid(client)))


def supervisor(signal: str, phase: str, kit: Kit) -> Result:
    return _unsupervised_or_unseen(begin(kit, phase), signal)


def _unsupervised_or_unseen(client: SupervisorClient, signal: str) -> Result:
    since = strike(supervisor_pid(client), signal)
    if signal != "SIGSTOP":
        return unsupervised(client, since, timeout=60)
    begun = time.monotonic()
    noticed, ended = unseen(client, since, grace=3)
    return Result(
        noticed, f"seen to be stopped; down ended it in {time.monotonic() - begun:.1f} s, clean={(ended.exit or {})['proof']['clean']}"
    )


def two_ranks(kit: Kit, phase: str) -> SupervisorClient:
    """Tensor parallel on two cores, one for each rank: vLLM's CPU build takes nodes of memory else, and this machine may have one."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise Skip("two ranks want two cores")
    spec = kit.vllm("--tensor-parallel-size", "2")
    bound = {"VLLM_CPU_OMP_THREADS_BIND": "|".join(map(str, cores))}
    return begin(kit, phase, spec=with_changes(spec, env={**spec.env, **bound}), seen="VLLM::Worker_TP1")


def rank(signal: str, at: int, phase: str, kit: Kit) -> Rows:
    """A rank is stopped and goes on where it loads, then struck."""
    client = two_ranks(kit, phase)
    pid = named(client, f"VLLM::Worker_TP{at}")
    stopped = [(f"SIGSTOP of rank {at} of two while they load, for a moment", _member_paused(client, pid))] if phase == "loads" else []
    verb = "load" if phase == "loads" else "serve"
    return [*stopped, (f"{signal} of rank {at} of two while they {verb}", _member_died(client, pid, strike(pid, signal)))]


def rank_stops(kit: Kit) -> Rows:
    client = two_ranks(kit, "serves")
    rows = []
    for at in (0, 1):
        pid = named(client, f"VLLM::Worker_TP{at}")
        rows.append((f"SIGSTOP of rank {at} of two while they serve, for a moment", _member_paused(client, pid)))
    status, _ = post(client.status().port, {"model": "tiny", "prompt": "hello", "max_tokens": 4})
    assert status == 200, f"it answers {status} after it went on"
    pid = named(client, "VLLM::Worker_TP0")
    return [*rows, ("SIGKILL of rank 0 of two while they serve", _member_died(client, pid, strike(pid)))]


def ranks_supervisor(signal: str, kit: Kit) -> Result:
    return _unsupervised_or_unseen(two_ranks(kit, "serves"), signal)


def limited(spec: LaunchSpec, procs: str) -> LaunchSpec:
    return with_changes(spec, argv=["/bin/sh", "-c", f'echo $$ > {procs}; exec "$@"', "sh", *spec.argv])


def out_of_memory_loading(kit: Kit) -> Result:
    with memory_limit(1400) as procs:
        client = kit.start(limited(kit.vllm(), procs))
        found = until(client, "died", "ready", seconds=300)
        assert found.kind == "died", "it was ready within the limit"
        ended = until(client, "ended")
        how = found.data["signal"] or f"exit {found.data['returncode']}"
        return Result(None, f"{how} reported as oom_killed={found.data['oom_killed']}, clean={ended.data['clean']}")


def out_of_memory_serving(kit: Kit) -> Result:
    """Others in the same container take all the memory that is left, in small parts; the kernel picks the largest process, vLLM's."""
    with memory_limit(8000) as procs:
        client = kit.ready(kit.start(limited(kit.vllm(), procs)))
        narrow(Path(procs).parent, spare=256 << 20)
        since = time.time()
        others = [_devour(procs, 200 << 20) for _ in range(4)]
        try:
            found = until(client, "member-exited", "died", seconds=60, after=since)
        finally:
            for pid in others:
                os.kill(pid, 9)
                os.waitpid(pid, 0)
        end = until(client, "died", seconds=90, after=since)
        ended = until(client, "ended", after=since, seconds=60)
        what = found.data.get("command") or "APIServer"
        how = end.data["signal"] or f"exit {end.data['returncode']}"
        return Result(
            None,
            f"the kernel took {what.split()[0]}; vLLM ended ({how}); oom_killed={end.data['oom_killed']}, clean={ended.data['clean']}",
        )


def narrow(cgroup: Path, *, spare: int) -> None:
    """The limit of what is used now and a little more."""
    for used, limit in (("memory.usage_in_bytes", "memory.limit_in_bytes"), ("memory.current", "memory.max")):
        if (cgroup / used).exists():
            (cgroup / limit).write_text(str(int((cgroup / used).read_text()) + spare))


def _devour(procs: str, size: int) -> int:
    """A process of the cgroup that holds that much; its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        Path(procs).write_text(str(os.getpid()))
        kept = b"\1" * size
        time.sleep(600 if kept else 0)
    finally:
        os._exit(1)


def row(fault: str, run: Callable[[Kit], Result | Rows]) -> Case:
    return Case(fault, "vllm", run)


CASES = [
    *(row(f"SIGSTOP, then SIGSEGV of the API server while it {p}", partial(api_server, p)) for p in ("imports", "loads", "serves")),
    row("SIGSTOP, then SIGSEGV of the API server while it compiles", partial(api_server, "compiles")),
    *(row(f"SIGSTOP, then SIGSEGV of {w} while it {p}", partial(member, w, p)) for w in TITLES for p in ("loads", "compiles")),
    *(row(f"SIGKILL of {w} while it compiles", partial(member_killed, w)) for w in TITLES),
    row("SIGKILL of the API server while it compiles", api_server_killed),
    row("SIGKILL of the supervisor while vLLM compiles", partial(supervisor, "SIGKILL", "compiles")),
    *(row(f"SIGSEGV of {w} while it serves", partial(member, w, "serves")) for w in TITLES),
    *(
        row(f"{s} of the supervisor while vLLM {p}", partial(supervisor, s, p))
        for s in ("SIGSEGV", "SIGSTOP")
        for p in ("imports", "loads", "compiles", "serves")
    ),
    row("SIGSTOP, then SIGKILL of rank 1 of two while they load", partial(rank, "SIGKILL", 1, "loads")),
    row("SIGSTOP, then SIGSEGV of rank 0 of two while they load", partial(rank, "SIGSEGV", 0, "loads")),
    row("SIGSEGV of rank 1 of two while they serve", partial(rank, "SIGSEGV", 1, "serves")),
    row("SIGSTOP of both ranks of two, then SIGKILL of rank 0 while they serve", rank_stops),
    row("SIGKILL of the supervisor of two ranks while they serve", partial(ranks_supervisor, "SIGKILL")),
    row("OOM killer (memory cgroup) while vLLM loads", out_of_memory_loading),
    row("OOM killer (memory cgroup) while vLLM serves", out_of_memory_serving),
]
