"""Programs that engines call while they start: compilers, ninja, container runtimes."""

import re

from msgspec import Struct

from firstlight.probe.fact import shell

TOOLS = ("python3", "gcc", "clang", "g++", "cc", "ninja", "cmake", "git", "curl", "docker", "podman", "systemctl", "rsync", "uv", "numactl")


class Tools(Struct, frozen=True):
    """paths: None when not on PATH. versions: of nvcc, gcc and python3."""

    paths: dict[str, str | None] = {}
    nvcc: str | None = None
    nvcc_path: str | None = None
    python: str | None = None
    gcc: str | None = None


_SCRIPT = (
    'for t in "$@"; do printf "tool %s %s\\n" "$t" "$(command -v "$t" 2>/dev/null)"; done;'
    ' for n in "$CUDA_HOME/bin/nvcc" "$(command -v nvcc 2>/dev/null)" /usr/local/cuda/bin/nvcc; do'
    ' [ -x "$n" ] && { echo "nvcc $n"; "$n" --version 2>/dev/null; break; }; done;'
    " gcc -dumpfullversion 2>/dev/null | sed 's/^/gcc-version /'; python3 -V 2>&1; true"
)


def parse_tools(text: str) -> Tools:
    paths = {m[1]: m[2] or None for m in re.finditer(r"^tool (\S+) ?(.*)$", text, re.M)}
    nvcc_path = re.search(r"^nvcc (/.+)$", text, re.M)
    nvcc = re.search(r"release (\d+\.\d+), V(\d[\d.]*)", text)
    python = re.search(r"^Python (\d\S*)$", text, re.M)
    gcc = re.search(r"^gcc-version (\d\S*)$", text, re.M)
    return Tools(
        paths,
        nvcc[2] if nvcc else None,
        nvcc_path[1] if nvcc_path else None,
        python[1] if python else None,
        gcc[1] if gcc else None,
    )


TOOLS_FACT = shell("tools", _SCRIPT, parse_tools, arguments=TOOLS)
