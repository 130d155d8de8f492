"""Faults on llama.cpp and on vLLM's CPU build: the real programs, with their real children and habits."""

from __future__ import annotations

import json
import os
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from fault_cases_fake import died, unguarded, unsupervised
from fault_kit import (
    HOST,
    Case,
    Kit,
    Result,
    Skip,
    engine_pid,
    event,
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

from firstlight.launch.client import Alive, Options, SupervisorClient
from firstlight.launch.ownership import find_processes

CASES: list[Case] = []


def case(fault: str, engine: str) -> Any:
    def add(run: Any) -> Any:
        CASES.append(Case(fault, engine, run))
        return run

    return add


def busy(client: SupervisorClient, model: str) -> None:
    """A long generation is under way."""
    body = {"model": model, "prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True}
    threading.Thread(target=post, args=(client.status().port, body), daemon=True).start()
    time.sleep(1.0)


# llama.cpp


@case("SIGKILL of the engine while it serves", "llamacpp")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.llama()))
    return died(client, strike(engine_pid(client)))


@case("SIGKILL of the engine before its first line", "llamacpp")
def _(kit: Kit) -> Result:
    client = kit.start(kit.llama())
    return died(client, strike(engine_pid(client)))


@case("SIGSEGV of the engine while it generates", "llamacpp")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.llama()))
    busy(client, "demo")
    return died(client, strike(engine_pid(client), "SIGSEGV"))


@case("SIGSTOP of the engine while it generates", "llamacpp")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.llama()))
    busy(client, "demo")
    since = strike(engine_pid(client), "SIGSTOP")
    paused = until(client, "paused")
    ended = client.stop()
    return Result(paused.time - since, f"reported as paused; down ended it, clean={ended.exit['proof']['clean']}")


@case("down while it generates", "llamacpp")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.llama()))
    busy(client, "demo")
    begun = time.monotonic()
    ended = client.stop()
    return Result(
        None, f"ended in {time.monotonic() - begun:.1f} s with exit {ended.exit['returncode']}, clean={ended.exit['proof']['clean']}"
    )


def llama_supervisor(signal: str, phase: str, kit: Kit) -> Result:
    client = kit.start(kit.llama())
    if phase == "generates":
        kit.ready(client)
        busy(client, "demo")
    since = strike(supervisor_pid(client), signal)
    if signal != "SIGSTOP":
        return unsupervised(client, since)
    assert not client.status().answering
    noticed = time.time() - since
    client.stop(grace_seconds=2)
    return Result(noticed, "seen to be stopped; down killed it and swept the engine")


def llama_engine(signal: str, kit: Kit) -> Result:
    client = kit.start(kit.llama())
    since = strike(engine_pid(client), signal)
    if signal != "SIGSTOP":
        return died(client, since)
    paused = until(client, "paused")
    return Result(paused.time - since, f"reported as paused; down ended it, clean={client.stop().exit['proof']['clean']}")


CASES += [
    *(
        Case(f"{s} of the supervisor while the engine {p}", "llamacpp", partial(llama_supervisor, s, p))
        for s in ("SIGKILL", "SIGSEGV", "SIGSTOP")
        for p in ("starts", "generates")
    ),
    *(Case(f"{s} of the engine before its first line", "llamacpp", partial(llama_engine, s)) for s in ("SIGSEGV", "SIGSTOP")),
]


@case("GGUF cut in the middle of its tensors", "llamacpp")
def _(kit: Kit) -> Result:
    copy = kit.copy(kit.llama().model_path or "")
    os.truncate(copy, copy.stat().st_size // 2)
    client = kit.start(kit.llama(model=str(copy)))
    since = until(client, "died").time
    return Result(None, died(client, since).outcome + f"; the log says so: {log_has(client, 'data is not within the file bounds')}")


@case("GGUF cut while it serves (mapped pages vanish)", "llamacpp")
def _(kit: Kit) -> Result:
    copy = kit.copy(kit.llama().model_path or "")
    client = kit.ready(kit.start(kit.llama(model=str(copy))))
    os.truncate(copy, 1 << 20)
    since = time.time()
    status, _ = post(client.status().port, {"model": "demo", "prompt": "Name the capital of France.", "max_tokens": 8})
    found = until(client, "died", after=since)
    until(client, "ended", after=since)
    return Result(found.time - since, f"the first request (status {status}) meets SIGBUS: reported as {found.data['signal']}")


@case("GGUF deleted while it serves", "llamacpp")
def _(kit: Kit) -> Result:
    copy = kit.copy(kit.llama().model_path or "")
    client = kit.ready(kit.start(kit.llama(model=str(copy))))
    copy.unlink()
    status, _ = post(client.status().port, {"model": "demo", "prompt": "Name the capital of France.", "max_tokens": 8})
    return Result(None, f"serves on from the mapping, status {status}")


@case("GGUF absent at the start", "llamacpp")
def _(kit: Kit) -> Result:
    since = time.time()
    client = kit.start(kit.llama(model=str(kit.root / "absent.gguf")))
    found = until(client, "died")
    until(client, "ended")
    return Result(
        None, f"exit {found.data['returncode']} after {found.time - since:.1f} s, the log names the file: {log_has(client, 'absent.gguf')}"
    )


@case("OOM killer (memory cgroup) while it loads", "llamacpp")
def _(kit: Kit) -> Result:
    with memory_limit(60) as procs:
        spec = kit.llama("--no-mmap")
        client = kit.start(with_changes(spec, argv=["/bin/sh", "-c", f'echo $$ > {procs}; exec "$@"', "sh", *spec.argv]))
        found = until(client, "died", "ready")
        assert found.kind == "died"
        until(client, "ended")
        return Result(None, f"{found.data['signal']} reported as oom_killed={found.data['oom_killed']}")


@case("port taken by another run of llama.cpp", "llamacpp")
def _(kit: Kit) -> Result:
    first = kit.ready(kit.start(kit.llama()))
    spec = kit.llama()
    port = first.status().port
    since = time.time()
    second = kit.start(with_changes(spec, port=port, argv=[*spec.argv, "--port", str(port)]))
    found = until(second, "failed")
    kit.ports.discard(port)
    assert first.status().state == "ready"
    first.stop()
    return Result(found.time - since, f"fails before it starts: {found.data['reason']}; the first serves on")


# vLLM


def _worker(client: SupervisorClient) -> int:
    return named(client, "VLLM::Worker", seconds=300)


def _core(client: SupervisorClient) -> int:
    return named(client, "VLLM::EngineCore", seconds=300)


def _member_died(client: SupervisorClient, pid: int, since: float) -> Result:
    """The death of a child: told by its pidfd; vLLM then ends itself, and the rest is swept."""
    found = wait(lambda: next((e for e in client.past_events() if e.kind == "member-exited" and e.data["pid"] == pid), None), seconds=60)
    end = until(client, "died", after=since, seconds=90)
    ended = until(client, "ended", after=since, seconds=60)
    how = end.data["signal"] or f"exit {end.data['returncode']}"
    return Result(
        found.time - since, f"named at once; vLLM ended itself after {end.time - since:.1f} s ({how}), swept, clean={ended.data['clean']}"
    )


@case("SIGKILL of the API server while it imports", "vllm")
def _(kit: Kit) -> Result:
    client = kit.start(kit.vllm())
    time.sleep(3)
    return died(client, strike(engine_pid(client)))


@case("SIGKILL of the API server while the engine core loads", "vllm")
def _(kit: Kit) -> Result:
    client = kit.start(kit.vllm())
    _core(client)
    kit.note(client)
    return died(client, strike(engine_pid(client)))


@case("SIGKILL of the API server while it serves", "vllm")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.vllm()))
    return died(client, strike(engine_pid(client)))


@case("SIGSEGV of the API server while it serves", "vllm")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.vllm()))
    return died(client, strike(engine_pid(client), "SIGSEGV"))


@case("SIGKILL of the engine core while it loads", "vllm")
def _(kit: Kit) -> Result:
    client = kit.start(kit.vllm())
    pid = _core(client)
    time.sleep(4)
    kit.note(client)
    return _member_died(client, pid, strike(pid))


@case("SIGKILL of the engine core while it serves", "vllm")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.vllm()))
    pid = _core(client)
    return _member_died(client, pid, strike(pid))


@case("SIGKILL of a worker while it loads", "vllm")
def _(kit: Kit) -> Result:
    client = kit.start(kit.vllm())
    pid = _worker(client)
    time.sleep(4)
    kit.note(client)
    return _member_died(client, pid, strike(pid))


@case("SIGKILL of a worker while it serves", "vllm")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.vllm()))
    pid = _worker(client)
    return _member_died(client, pid, strike(pid))


@case("SIGSTOP of the engine core while it serves", "vllm")
def _(kit: Kit) -> Result:
    alive = Alive(interval_seconds=1.0, patience_seconds=5.0)
    client = kit.ready(kit.start(kit.vllm(), options=Options(liveness=alive)))
    since = strike(_core(client), "SIGSTOP")
    found = until(client, "wedged", after=since, seconds=60)
    states = sorted({p["state"] for p in found.data["processes"]})
    ended = client.stop()
    return Result(
        found.time - since, f"wedged after 5 s of patience, process states {states}; down ended it, clean={ended.exit['proof']['clean']}"
    )


@case("SIGKILL of the supervisor while vLLM imports", "vllm")
def _(kit: Kit) -> Result:
    client = kit.start(kit.vllm())
    time.sleep(3)
    kit.note(client)
    return unsupervised(client, strike(supervisor_pid(client)))


@case("SIGKILL of the supervisor while the engine core loads", "vllm")
def _(kit: Kit) -> Result:
    client = kit.start(kit.vllm())
    _core(client)
    time.sleep(2)
    kit.note(client)
    return unsupervised(client, strike(supervisor_pid(client)), timeout=60)


@case("SIGKILL of the supervisor while vLLM serves", "vllm")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.vllm()))
    return unsupervised(client, strike(supervisor_pid(client)), timeout=60)


@case("SIGKILL of supervisor and API server at once", "vllm")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.vllm()))
    engine, since = engine_pid(client), strike(supervisor_pid(client))
    strike(engine)
    return unsupervised(client, since)


@case("SIGKILL of supervisor, guardian and API server at once", "vllm")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.vllm()))
    engine = engine_pid(client)
    since = unguarded(client)
    strike(engine)
    left = find_processes(HOST, client.folder).processes
    noticed = time.time() - since
    proof = client.sweep()
    return Result(
        noticed, f"{len(left)} processes without a supervisor found ({sorted({p.proof for p in left})}), ended, clean={proof['clean']}"
    )


@case("everything of the run killed at once", "vllm")
def _(kit: Kit) -> Result:
    client = kit.ready(kit.start(kit.vllm()))
    since = unguarded(client)
    for process in find_processes(HOST, client.folder).processes:
        strike(process.pid)
    noticed = time.time() - since
    assert not client.status().answering
    proof = client.sweep()
    removed = proof["shared_memory_removed"]
    return Result(noticed, f"the next command says so; {len(removed)} segments of shared memory removed, clean={proof['clean']}")


@case("shard cut before it is read", "vllm")
def _(kit: Kit) -> Result:
    copy = kit.copy(kit.vllm().model_path or "")
    shard = copy / "model.safetensors"
    os.truncate(shard, shard.stat().st_size // 2)
    client = kit.start(kit.vllm(model=str(copy)))
    found = until(client, "died", "ready", seconds=400)
    assert found.kind == "died"
    until(client, "ended")
    return Result(None, f"exit {found.data['returncode']}; the log says so: {log_has(client, 'incomplete metadata')}")


@case("shard deleted before it is read", "vllm")
def _(kit: Kit) -> Result:
    copy = kit.copy(kit.vllm().model_path or "")
    client = kit.start(kit.vllm(model=str(copy)))
    _core(client)
    (copy / "model.safetensors").unlink()
    found = until(client, "died", "ready", seconds=400)
    assert found.kind == "died"
    until(client, "ended")
    return Result(None, f"exit {found.data['returncode']}; the log says so: {log_has(client, 'Cannot find any model weights')}")


@case("embedded FP8 KV cache without the overlay: dies of its first request", "vllm")
def _(kit: Kit) -> Result:
    model = Path(kit.vllm().model_path or "")
    config = json.loads((model / "config.json").read_text())
    if "kv_lora_rank" not in config:
        raise Skip("only a model with MLA dies of it: FIRSTLIGHT_TEST_FOLDER names another")
    copy = kit.copy(str(model))
    scheme = {"dynamic": False, "num_bits": 8, "type": "float"}
    config["quantization_config"] = {
        "quant_method": "modelopt",
        "quant_algo": "FP8",
        "kv_cache_scheme": scheme,
        "ignore": ["*"],
        "producer": {"name": "modelopt", "version": "0.41.0"},
        "config_groups": {},
    }
    (copy / "config.json").write_text(json.dumps(config))
    quantization = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["*"]}
    (copy / "hf_quant_config.json").write_text(
        json.dumps({"producer": config["quantization_config"]["producer"], "quantization": quantization})
    )
    client = kit.ready(kit.start(kit.vllm(model=str(copy))))
    since = time.time()
    status, _ = post(client.status().port, {"model": "tiny", "prompt": "hello", "max_tokens": 4})
    found = until(client, "member-exited", "unhealthy", "died", after=since, seconds=60)
    until(client, "ended", after=since, seconds=90)
    return Result(found.time - since, f"the request fails (status {status}), the engine core's end is named, vLLM is swept")


@case("port stolen while vLLM imports", "vllm")
def _(kit: Kit) -> Result:
    import socket

    client = kit.start(kit.vllm())
    port = client.status().port
    time.sleep(3)
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        thief.bind(("127.0.0.1", port))
        thief.listen()
        found = until(client, "died", "ready", seconds=400)
        until(client, "ended")
    assert found.kind == "died"
    assert event(client, "ready") is None
    return Result(
        None,
        f"vLLM ends with {found.data['returncode']}: {'address already in use' if log_has(client, 'already in use') else 'see its log'}",
    )
