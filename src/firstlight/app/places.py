"""Where things are kept: XDG places, never inside a checkpoint or the user's working folder."""

import os
from pathlib import Path


def _xdg(variable: str, default: str) -> Path:
    value = os.environ.get(variable, "")
    base = Path(value) if os.path.isabs(value) else Path.home() / default
    return base / "firstlight"


def state_folder() -> Path:
    """Runs and their logs: `$XDG_STATE_HOME/firstlight`."""
    return _xdg("XDG_STATE_HOME", ".local/state")


def cache_folder() -> Path:
    """Downloads, overlays, compile caches, asked answers: `$XDG_CACHE_HOME/firstlight`."""
    return _xdg("XDG_CACHE_HOME", ".cache")


def data_folder() -> Path:
    """Engine environments: `$XDG_DATA_HOME/firstlight`."""
    return _xdg("XDG_DATA_HOME", ".local/share")


def config_folder() -> Path:
    """The user's own catalog and presets: `$XDG_CONFIG_HOME/firstlight`."""
    return _xdg("XDG_CONFIG_HOME", ".config")
