"""What an environment says about the hub, read as huggingface_hub reads it: HF_HOME, HF_HUB_CACHE, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE.

Pure: the environment may be another host's, and the caller reads the token's file. A `~` stays where the environment has no HOME.
"""

import posixpath
from collections.abc import Callable, Mapping

from firstlight.core.errors import InputError

DEFAULT_ENDPOINT = "https://huggingface.co"
TRUE = frozenset(("1", "on", "yes", "true"))
Env = Mapping[str, str]


def endpoint(env: Env) -> str:
    return (env.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")


def shown(url: str) -> str:
    """Scheme, host and port of an address, for messages: no user, no password, no signature."""
    scheme, separator, rest = url.partition("://")
    host = (rest if separator else scheme).partition("/")[0].partition("?")[0].rpartition("@")[2]
    return f"{scheme}://{host}" if separator else host


def hf_home(env: Env) -> str:
    cache = env.get("XDG_CACHE_HOME") or posixpath.join(env.get("HOME") or "~", ".cache")
    return _expanded(env.get("HF_HOME") or posixpath.join(cache, "huggingface"), env)


def hub_cache(env: Env) -> str:
    """The folder of `models--org--name`."""
    return _expanded(env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE") or posixpath.join(hf_home(env), "hub"), env)


def repo_folder(repo: str) -> str:
    """The name of a repository's folder in the cache."""
    return f"models--{repo.replace('/', '--')}"


def is_offline(env: Env) -> bool:
    return any(env.get(name, "").lower() in TRUE for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))


def token(env: Env, read: Callable[[str], str | None]) -> str | None:
    """HF_TOKEN, else the file that `hf auth login` writes; None under HF_HUB_DISABLE_IMPLICIT_TOKEN.

    read: a file's text, None when there is none. Raises InputError `hub-unauthorized` for what no HTTP header can carry; the message
    does not show it.
    """
    named = env.get("HF_TOKEN") or env.get("HUGGING_FACE_HUB_TOKEN")
    if named:
        return _usable(named.replace("\r", "").replace("\n", "").strip(), "HF_TOKEN")
    if env.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").lower() in TRUE:
        return None
    path = _expanded(env.get("HF_TOKEN_PATH") or posixpath.join(hf_home(env), "token"), env)
    text = read(path)
    return _usable(text.strip(), path) if text else None


def _usable(value: str, source: str) -> str | None:
    """huggingface_hub drops line breaks, too; a blank inside or a letter beyond ASCII is a wrong paste."""
    if all("!" <= c <= "~" for c in value):
        return value or None
    evidence = (f"expected: letters, digits and signs of ASCII, found: others among its {len(value)} characters",)
    raise InputError(
        "hub-unauthorized", f"the token in {source} cannot be one", evidence=evidence, hint="copy it again from the hub's page"
    )


def _expanded(path: str, env: Env) -> str:
    """`~`, `$HOME` and `$USER`, as huggingface_hub expands them."""
    for name in ("HOME", "USER"):
        path = path.replace(f"${{{name}}}", env.get(name, "")).replace(f"${name}", env.get(name, ""))
    home = env.get("HOME")
    return home + path[1:] if home and (path == "~" or path.startswith("~/")) else path
