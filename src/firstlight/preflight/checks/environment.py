"""Variables that change what an engine does, proxies, and who can reach the endpoint."""

import re
from collections.abc import Iterator

from firstlight.core.findings import Finding
from firstlight.engines.command import has_option
from firstlight.preflight.check import Check, blocker, remark, warning
from firstlight.preflight.context import Context

_P2P_LEVELS = ("LOC", "NVL", "PIX", "PXB", "PXN", "PHB", "SYS", "0", "1", "2", "3", "4", "5")
_PROTOCOLS = ("LL", "LL128", "SIMPLE")
_ALGORITHMS = ("TREE", "RING", "COLLNET", "COLLNETDIRECT", "COLLNETCHAIN", "NVLS", "NVLSTREE", "PAT")
_LOOPBACK = ("localhost", "127.0.0.1", "127.0.0.0/8", "*", "::1")


def nccl(context: Context) -> Iterator[Finding]:
    """Values that NCCL does not know are ignored with a warning in its log; some good ones work against the machine."""
    assert context.machine is not None
    env = context.variables
    for name, allowed in (("NCCL_P2P_LEVEL", _P2P_LEVELS), ("NCCL_PROTO", _PROTOCOLS), ("NCCL_ALGO", _ALGORITHMS)):
        words = [w for w in re.split(r"[,;:^\s]+", env.get(name, "")) if w]
        bad = [w for w in words if w.upper() not in allowed and not w.lower().startswith(("allreduce", "broadcast", "reduce", "allgather"))]
        if bad:
            yield warning(
                "nccl-value-unknown",
                f"{name} has a value that NCCL does not know",
                evidence=[f"{name}={env[name]}", f"known: {', '.join(a for a in allowed if not a.isdigit())}"],
                hint=f"unset {name}, or set it to one of these",
            )
    nvlinks = [link for link in context.machine.links if link.kind == "nvlink"]
    if env.get("NCCL_P2P_DISABLE") == "1" and nvlinks and context.world_size > 1:
        yield warning(
            "nccl-p2p-disabled",
            "NCCL_P2P_DISABLE=1 keeps the NVLink between these GPUs idle",
            evidence=["NCCL_P2P_DISABLE=1", f"NVLink between {len(nvlinks)} pairs of GPUs"],
            hint="unset NCCL_P2P_DISABLE",
        )
    if env.get("CUDA_LAUNCH_BLOCKING") == "1":
        yield warning(
            "cuda-launch-blocking",
            "CUDA_LAUNCH_BLOCKING=1 makes every kernel wait for the last: for finding faults only",
            evidence=["CUDA_LAUNCH_BLOCKING=1"],
            hint="unset CUDA_LAUNCH_BLOCKING",
        )


def proxy(context: Context) -> Iterator[Finding]:
    """A proxy without an exception for loopback catches the health checks of many HTTP clients."""
    env = {k.lower(): v for k, v in context.variables.items()}
    proxies = [name for name in ("http_proxy", "all_proxy") if env.get(name)]
    exceptions = [w.strip() for w in env.get("no_proxy", "").split(",")]
    if proxies and not any(w in _LOOPBACK for w in exceptions):
        yield warning(
            "proxy-catches-loopback",
            "a proxy is set and loopback is not excepted: requests to the endpoint on this machine may go to the proxy",
            evidence=[f"{name}={env[name]}" for name in proxies] + [f"no_proxy={env.get('no_proxy', '(not set)')}"],
            hint="NO_PROXY=localhost,127.0.0.1",
        )


def exposure(context: Context) -> Iterator[Finding]:
    intent = context.intent
    bind = context.option("--host") or (intent.bind if intent else "127.0.0.1")
    open_to_all = bind in ("0.0.0.0", "::", "") or not (bind.startswith("127.") or bind in ("localhost", "::1"))
    keyed = bool(intent and intent.api_key_file) or has_option(context.args, "--api-key") or "VLLM_API_KEY" in context.variables
    if not open_to_all or keyed:
        return
    evidence = [f"listens on {bind}", "no API key"]
    if intent is not None and intent.allow_open:
        yield remark("exposed-without-key", "anybody who reaches this machine can use the endpoint", evidence=evidence)
    else:
        yield blocker(
            "exposed-without-key",
            "anybody who reaches this machine could use the endpoint",
            evidence=evidence,
            hint="--api-key-file FILE, --bind 127.0.0.1, or --allow-open",
        )


def key_in_arguments(context: Context) -> Iterator[Finding]:
    if has_option(context.args, "--api-key") and context.command:
        yield warning(
            "secret-in-arguments",
            "the API key stands on the command line, where every user of the machine can read it",
            evidence=["--api-key"],
            hint="put it into the variable VLLM_API_KEY from a file that only you can read",
        )


CHECKS = (
    Check("nccl-environment", ("machine",), nccl, engines=("vllm", "sglang")),
    Check("proxies", ("machine",), proxy),
    Check("exposure", ("intent",), exposure),
    Check("secrets", ("args",), key_in_arguments, engines=("vllm",)),
)
