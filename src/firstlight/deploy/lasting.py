"""Whether an environment will still be there tomorrow: a service whose interpreter is cleaned away starts once and never again."""

import os
import tempfile
from collections.abc import Mapping

from firstlight.core.errors import Exit, FirstlightError

_FLEETING = ("/tmp", "/var/tmp", "/dev/shm", "/run")


def throw_away_place(path: str, env: Mapping[str, str]) -> str | None:
    """The folder that somebody cleans and `path` lies in: temporary folders, the caches of `uvx` and `pipx run`. None: it stays."""
    home = env.get("HOME", "")
    cache = env.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    data = env.get("XDG_DATA_HOME") or os.path.join(home, ".local", "share")
    places = [*_FLEETING, tempfile.gettempdir(), env.get("UV_CACHE_DIR") or os.path.join(cache, "uv"), os.path.join(cache, "pipx")]
    pipx_homes = [env.get("PIPX_HOME", ""), os.path.join(home, ".local", "pipx"), os.path.join(data, "pipx")]
    places += [os.path.join(p, ".cache") for p in pipx_homes if p]
    absolute = os.path.abspath(path)
    return next((p for p in places if absolute.startswith(p.rstrip("/") + "/")), None)


def refuse_throw_away(path: str, *, what: str, env: Mapping[str, str]) -> None:
    """Raises FirstlightError `throw-away-environment` (exit 4)."""
    if place := throw_away_place(path, env):
        raise FirstlightError(
            "throw-away-environment",
            f"{what} runs from a folder that will be cleaned",
            evidence=(f"{path} lies in {place}",),
            hint="pipx install firstlight (or uv tool install), firstlight engines install ENGINE; then install the service from there",
            exit_code=Exit.PREFLIGHT_BLOCKED,
        )
