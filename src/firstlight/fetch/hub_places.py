"""Where huggingface_hub keeps things, read from the given environment as it reads its own: HF_HOME, HF_HUB_CACHE, HF_TOKEN, HF_ENDPOINT."""

import os
from collections.abc import Mapping
from pathlib import Path

TRUE = frozenset({"1", "on", "yes", "true"})


def _home(env: Mapping[str, str]) -> Path:
    return Path(env.get("HOME") or os.path.expanduser("~"))


def hf_home(env: Mapping[str, str]) -> Path:
    cache = env.get("XDG_CACHE_HOME") or str(_home(env) / ".cache")
    return _expanded(env.get("HF_HOME") or f"{cache}/huggingface", env)


def hub_cache(env: Mapping[str, str]) -> Path:
    """The folder of `models--org--name`."""
    return _expanded(env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE") or str(hf_home(env) / "hub"), env)


def endpoint(env: Mapping[str, str]) -> str:
    """The hub's address; huggingface_hub knows the default one."""
    if value := env.get("HF_ENDPOINT"):
        return value.rstrip("/")
    from huggingface_hub import constants

    return constants.ENDPOINT.rstrip("/")


def token(env: Mapping[str, str]) -> str | None:
    """HF_TOKEN, else the file that `hf auth login` writes; None under HF_HUB_DISABLE_IMPLICIT_TOKEN."""
    named = env.get("HF_TOKEN") or env.get("HUGGING_FACE_HUB_TOKEN")
    if named:
        return named.strip()
    if env.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").lower() in TRUE:
        return None
    try:
        return _expanded(env.get("HF_TOKEN_PATH") or str(hf_home(env) / "token"), env).read_text().strip() or None
    except OSError:
        return None


def is_offline(env: Mapping[str, str]) -> bool:
    return any(env.get(name, "").lower() in TRUE for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))


def repo_folder(cache: Path, repo: str) -> Path:
    return cache / f"models--{repo.replace('/', '--')}"


def _expanded(text: str, env: Mapping[str, str]) -> Path:
    """`~` and `$HOME`-like variables, as huggingface_hub expands them."""
    for name in ("HOME", "USER"):
        text = text.replace(f"${{{name}}}", env.get(name, "")).replace(f"${name}", env.get(name, ""))
    return Path(str(_home(env)) + text[1:]) if text == "~" or text.startswith("~/") else Path(text)
