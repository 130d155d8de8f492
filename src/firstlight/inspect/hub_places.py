"""What the environment says about the hub, read as huggingface_hub reads it."""

import posixpath
from collections.abc import Mapping

from firstlight.core.errors import InputError

DEFAULT_ENDPOINT = "https://huggingface.co"
_TRUE = frozenset(("1", "on", "yes", "true"))


def endpoint(env: Mapping[str, str]) -> str:
    return (env.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")


def shown(url: str) -> str:
    """Scheme, host and port of an address, for messages: no user, no password, no signature."""
    scheme, separator, rest = url.partition("://")
    host = (rest if separator else scheme).partition("/")[0].partition("?")[0].rpartition("@")[2]
    return f"{scheme}://{host}" if separator else host


def hf_home(env: Mapping[str, str]) -> str:
    cache = env.get("XDG_CACHE_HOME") or posixpath.join(env.get("HOME", "~"), ".cache")
    return env.get("HF_HOME") or posixpath.join(cache, "huggingface")


def hub_cache(env: Mapping[str, str]) -> str:
    return env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE") or posixpath.join(hf_home(env), "hub")


def is_offline(env: Mapping[str, str]) -> bool:
    return any(env.get(name, "").lower() in _TRUE for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))


def token(env: Mapping[str, str]) -> str | None:
    """HF_TOKEN, else the file that `hf auth login` writes; None under HF_HUB_DISABLE_IMPLICIT_TOKEN.

    Raises InputError `hub-unauthorized` for what no HTTP header can carry; the message does not show it.
    """
    named = env.get("HF_TOKEN") or env.get("HUGGING_FACE_HUB_TOKEN")
    if named:
        return _usable(named.replace("\r", "").replace("\n", "").strip(), "HF_TOKEN")
    if env.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").lower() in _TRUE:
        return None
    try:
        with open(env.get("HF_TOKEN_PATH") or posixpath.join(hf_home(env), "token"), encoding="utf-8") as f:
            return _usable(f.read(4096).strip(), f.name)
    except (OSError, UnicodeDecodeError):
        return None


def _usable(value: str, source: str) -> str | None:
    """huggingface_hub drops line breaks, too; a blank inside or a letter beyond ASCII is a wrong paste."""
    if all("!" <= c <= "~" for c in value):
        return value or None
    evidence = (f"expected: letters, digits and signs of ASCII, found: others among its {len(value)} characters",)
    raise InputError(
        "hub-unauthorized", f"the token in {source} cannot be one", evidence=evidence, hint="copy it again from the hub's page"
    )
