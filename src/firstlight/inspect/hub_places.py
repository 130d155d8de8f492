"""What the environment says about the hub, read as huggingface_hub reads it."""

import posixpath
from collections.abc import Mapping

DEFAULT_ENDPOINT = "https://huggingface.co"
_TRUE = frozenset(("1", "on", "yes", "true"))


def endpoint(env: Mapping[str, str]) -> str:
    return (env.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")


def hf_home(env: Mapping[str, str]) -> str:
    cache = env.get("XDG_CACHE_HOME") or posixpath.join(env.get("HOME", "~"), ".cache")
    return env.get("HF_HOME") or posixpath.join(cache, "huggingface")


def hub_cache(env: Mapping[str, str]) -> str:
    return env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE") or posixpath.join(hf_home(env), "hub")


def is_offline(env: Mapping[str, str]) -> bool:
    return any(env.get(name, "").lower() in _TRUE for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))


def token(env: Mapping[str, str]) -> str | None:
    """HF_TOKEN, else the file that `hf auth login` writes; None under HF_HUB_DISABLE_IMPLICIT_TOKEN."""
    named = env.get("HF_TOKEN") or env.get("HUGGING_FACE_HUB_TOKEN")
    if named:
        return named.strip() or None
    if env.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").lower() in _TRUE:
        return None
    try:
        with open(env.get("HF_TOKEN_PATH") or posixpath.join(hf_home(env), "token"), encoding="utf-8") as f:
            return f.read(4096).strip() or None
    except OSError:
        return None
