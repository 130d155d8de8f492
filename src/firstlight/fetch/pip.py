"""Wheels as the user's own pip finds them: its indexes, mirrors, proxies and certificates. No index is named here."""

import asyncio
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from firstlight.core.errors import FirstlightError


def pip_command() -> list[str]:
    """pip of this interpreter, or the one that the standard library bundles for `ensurepip` (environments made without pip)."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    spec = importlib.util.find_spec("ensurepip")
    bundled = sorted(Path(spec.origin).parent.glob("_bundled/pip-*.whl")) if spec and spec.origin else []
    if not bundled:
        raise FirstlightError(
            "pip-missing",
            "this Python has no pip",
            evidence=(sys.executable,),
            hint=f"{sys.executable} -m ensurepip, or your system's python3-pip",
        )
    return [sys.executable, str(bundled[-1] / "pip")]


async def pip_download(package: str, version: str, folder: Path, env: Mapping[str, str]) -> Path:
    """One wheel, without its dependencies, into `folder`. Raises FirstlightError: wheel-not-found."""
    argv = [*pip_command(), "download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--no-input", "-q"]
    process = await asyncio.create_subprocess_exec(
        *argv,
        "-d",
        str(folder),
        f"{package}=={version}",
        env=dict(env),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    wheels = sorted(name for name in os.listdir(folder) if name.endswith(".whl"))
    if process.returncode or not wheels:
        tail = output.decode("utf-8", "replace").strip().splitlines()[-4:]
        raise FirstlightError(
            "wheel-not-found",
            f"pip could not fetch {package} {version}",
            evidence=tuple(tail),
            hint="check the network and `pip config list`: firstlight uses the indexes that pip is set up with",
        )
    return folder / wheels[0]
