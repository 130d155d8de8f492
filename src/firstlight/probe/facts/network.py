"""Ports in use, proxies and the variables that change how engines behave."""

import re
from collections.abc import Mapping

from firstlight.probe.fact import shell

_LISTEN = "0A"


def parse_ports(text: str) -> list[int]:
    """Local ports of /proc/net/tcp and tcp6 rows in state LISTEN."""
    rows = re.findall(r"^\s*\d+: [0-9A-F]+:([0-9A-F]{4}) [0-9A-F]+:[0-9A-F]{4} ([0-9A-F]{2}) ", text, re.M)
    return sorted({int(port, 16) for port, state in rows if state == _LISTEN})


PORTS = shell("ports", "cat /proc/net/tcp /proc/net/tcp6 2>/dev/null; true", parse_ports)

_SHOWN = re.compile(
    r"^(CUDA|NCCL|VLLM|SGLANG|HF|HUGGING_FACE|HUGGINGFACE|TORCH|PYTORCH|TRITON|FLASHINFER|OMP|GLOO|UCX|NVIDIA|LLAMA|GGML|FIRSTLIGHT|RAY|SLURM)_"
    r"|^(CC|CXX|CUDA_HOME|LD_LIBRARY_PATH|LD_PRELOAD|PYTHONPATH|PYTHONHOME|TMPDIR|OMP_NUM_THREADS|(HTTP|HTTPS|ALL|NO)_PROXY)$",
    re.I,
)
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSWORD|CREDENTIAL|AUTH", re.I)
_USERINFO = re.compile(r"//[^/@\s]*@")


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that matter to an engine. Values of secrets read `(set)`; user info in addresses is removed."""
    shown = {k: v for k, v in variables.items() if _SHOWN.search(k)}
    return {k: "(set)" if _SECRET.search(k) else _USERINFO.sub("//", v) for k, v in sorted(shown.items())}


NETWORK_FACTS = (PORTS,)
